"""What a probe's clock saw, and the rates that follow from it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Timing:
    """Seconds as they come in; lists grow while the probe runs."""

    first_step_seconds: list[float] = field(default_factory=list)
    """Steps that compile, tune or warm up."""
    step_seconds: list[float] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    """Tokens of each measured step, padding not counted."""
    micro_step_seconds: list[float] = field(default_factory=list)
    """One entry a micro-batch of a data probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens a second over the measured steps."""

    median: float
    low: float
    high: float


def rate(timing: Timing) -> Rate | None:
    """Return the measured steps' rate, or None where none was measured."""
    each = [tokens / seconds for tokens, seconds in zip(timing.step_tokens, timing.step_seconds, strict=True)]
    return Rate(median=statistics.median(each), low=min(each), high=max(each)) if each else None
