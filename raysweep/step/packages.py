"""Packages that only some settings need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from raysweep.errors import MachineError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

INSTALL_NAMES = {
    "bitsandbytes": "bitsandbytes",
    "accelerate": "accelerate",
    "liger_kernel": "liger-kernel",
    "flash_attn": "flash-attn",
    "fla": "flash-linear-attention",
    "triton": "triton",
}
"""What ``pip install`` calls the packages that a setting may need."""


class MissingKernelError(MachineError):
    """A package whose kernels this step needs is not installed here, or does not work here."""


def require(module: str, need: str) -> Any:
    """Import and return a package.

    Args:
        module: the package's import name, one of ``INSTALL_NAMES``; a submodule's dotted name is as good.
        need: what needs it, such as ``"step.weights: 'nf4'"``.

    Raises:
        MissingKernelError: it is not installed, or fails to import.
    """
    top = module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        raise MissingKernelError(
            f"{need} needs {INSTALL_NAMES[top]}, which is not installed: pip install {INSTALL_NAMES[top]}"
        )
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingKernelError(
            f"{need} needs {INSTALL_NAMES[top]}, which is installed but cannot be imported ({error}): "
            f"pip install --upgrade {INSTALL_NAMES[top]}"
        ) from error


def has_linear_attention(config: PretrainedConfig) -> bool:
    """Return whether some layers of the model are linear attention, which on CUDA runs on flash-linear-attention."""
    return "linear_attention" in (getattr(config.get_text_config(), "layer_types", None) or ())
