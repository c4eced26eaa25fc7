"""What a run under way has logged: micro-steps from JSONL, or stretches of optimizer steps from a Trainer's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from cost.stretches import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One micro-step of a run."""

    tokens: int
    """Of all its items, padding included."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a run has done so far. Either micro-steps or stretches are known."""

    logged: str
    """What the times are of, for people."""
    micro_steps: tuple[MicroStep, ...] = ()
    """Every one from the run's start on."""
    stretches: tuple[Stretch, ...] = ()
    """In order; parts of which no time is known are left out."""
    done_steps: int | None = None
    """Optimizer steps in all, where stretches are known."""
    planned_steps: int | None = None
    """Optimizer steps of the whole run, where its Trainer says so."""
    may_stand_still: bool = False
    """Whether a stretch may hide an interruption of the run."""
    notes: tuple[str, ...] = ()
    """What to mind of these times, in whole sentences."""


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether a value read from JSON is a number above 0 that seconds, steps or tokens can be: finite, under 10^18."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18
