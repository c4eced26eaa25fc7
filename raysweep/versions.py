"""Versions of the packages that decide what a step allocates or how long it takes."""

from __future__ import annotations

from importlib import metadata

PACKAGES = (
    "raysweep",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "triton",
    "bitsandbytes",
    "liger-kernel",
    "flash-attn",
    "flash-linear-attention",
    "fla-core",
    "causal-conv1d",
    "tilelang",
    "kernels",
)


def package_versions() -> dict[str, str]:
    """Return the versions by name; what is not installed is not in it."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
