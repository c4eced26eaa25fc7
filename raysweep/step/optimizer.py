"""The optimizer of the adapter's parameters."""

from __future__ import annotations

import torch
from torch import nn

from raysweep.errors import SpaceError
from raysweep.setting import Optimizer

LEARNING_RATE = 1e-4
"""A usual rate for LoRA; neither memory nor time depends on it."""


def make_optimizer(kind: Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer, without states: its first step makes them."""
    if kind is Optimizer.ADAMW:
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=True)
    raise SpaceError(f"step.optimizer: {kind.value!r} is not supported; expected 'adamw'.")
