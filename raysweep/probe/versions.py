"""Versions of everything that a measurement hangs on."""

from __future__ import annotations

import os
import platform

from raysweep.setting import ALLOCATOR_VARIABLES
from raysweep.versions import package_versions

MEMORY_VARIABLES = (*ALLOCATOR_VARIABLES, "CUBLAS_WORKSPACE_CONFIG")
"""Of the environment: they change what a step takes, and are kept where they are set."""


def installed_versions() -> dict[str, str]:
    """Return the versions by name; what is not installed is not in it."""
    import torch

    found = {"python": platform.python_version(), **package_versions()}
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if cudnn is not None:
            found["cudnn"] = str(cudnn)
    return found | {name: os.environ[name] for name in MEMORY_VARIABLES if os.environ.get(name)}
