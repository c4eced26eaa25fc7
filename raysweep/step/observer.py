"""Who watches a step: the phases it goes through, and the chunks of its loss."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """A part of a probe, in the order in which they come."""

    LOAD = "load"
    FORWARD = "forward"
    LOSS = "loss"
    """From the output head on."""
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    GENERATE = "generate"


class Observer(Protocol):
    """Told where a step is, as it goes."""

    def phase(self, name: Phase) -> None:
        """Note that a phase begins."""

    def loss_chunk(self, index: int, count: int) -> None:
        """Note that chunk ``index`` of ``count`` begins, in the forward and again as the backward recomputes it."""


class Silent:
    """An observer that notes nothing."""

    def phase(self, name: Phase) -> None:
        """Ignore the phase."""

    def loss_chunk(self, index: int, count: int) -> None:
        """Ignore the chunk."""


SILENT = Silent()
