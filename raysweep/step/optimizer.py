"""The optimizer of the adapter's parameters."""

from __future__ import annotations

import torch
from torch import nn

from raysweep.errors import SpaceError
from raysweep.setting import Optimizer
from raysweep.step.packages import require

LEARNING_RATE = 1e-4
"""A usual rate for LoRA; neither memory nor time depends on it."""


def make_optimizer(kind: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer, without states: its first step makes them.

    Raises:
        SpaceError: the optimizer does not run on the parameters' device.
        MissingKernelError: bitsandbytes is not installed.
    """
    if kind is Optimizer.ADAMW:
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)
    # On meta there is nothing to run, and managed memory is what the trace says it is.
    if kind is Optimizer.PAGED_ADAMW_8BIT and parameters[0].device.type not in {"cuda", "meta"}:
        raise SpaceError(
            f"step.optimizer: {kind.value!r} keeps its states in CUDA's managed memory, and this step runs on "
            f"{parameters[0].device.type!r}; expected 'adamw' or 'adamw-8bit' there."
        )
    optimizers = require("bitsandbytes", f"step.optimizer: {kind.value!r}").optim
    make = optimizers.AdamW8bit if kind is Optimizer.ADAMW_8BIT else optimizers.PagedAdamW8bit
    optimizer: torch.optim.Optimizer = make(parameters, lr=LEARNING_RATE)
    return optimizer
