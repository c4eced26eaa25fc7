"""How much one machine of a flavour differs from the next, learnt where a step was timed on several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cost import least_squares
from cost.errors import CostError
from cost.evidence import RANGE_SHARE, Evidence
from cost.throughput import HOLD_SHARE, TimeModel, Timing
from cost.time_fit import fit

_PRIOR_HOLDS = 0.5
"""How many holds' worth of belief ``HOLD_SHARE`` has before any was seen. Small: of 4,000 simulated flavours
whose machines differ by 3 and 10 %, ranges from two holds then hold 97 and 81 %, from three 97 and 90, from five 92
and 89."""


def fit_holds(
    holds: Sequence[Sequence[Timing]], *, evidence: Evidence, optimizer_step_seconds: float | None = None
) -> TimeModel:
    """Return the time model of timings from several holds, each one machine held once.

    The holds are brought to one level before their shape is fitted; how far their levels lay apart widens the range of
    the next machine, on which the run will be. With a single hold, that is taken as ``HOLD_SHARE``.

    Raises:
        CostError: There is no timing, or one is not positive.
    """
    given = [tuple(timings) for timings in holds if timings]
    pooled = [timing for timings in given for timing in timings]
    if not pooled:
        raise CostError("A time model needs at least one timing; probe the step at one or more lengths first.")
    model = fit(pooled, evidence=evidence, optimizer_step_seconds=optimizer_step_seconds)
    if len(given) < 2:
        return model
    levels = [_level(model, timings) for timings in given]
    centre = math.exp(math.fsum(math.log(x) for x in levels) / len(levels))
    evened = [
        replace(timing, seconds=timing.seconds * centre / level)
        for timings, level in zip(given, levels, strict=True)
        for timing in timings
    ]
    return fit(
        evened,
        evidence=evidence,
        optimizer_step_seconds=optimizer_step_seconds,
        hold_share=learned_hold_share(levels),
    )


def learned_hold_share(levels: Sequence[float]) -> float:
    """Return the standard deviation, as a share, of the next hold about the mean of those seen.

    With n levels it is Student's predictive width, ``s sqrt(1 + 1/n)`` and the wider quantile, put as the share that
    gives the same range under the normal law; s joins what was seen to a weak belief in ``HOLD_SHARE``.

    Args:
        levels: Seconds seen over seconds fitted, one a hold.
    """
    count = len(levels)
    if count < 2:
        return HOLD_SHARE
    logs = [math.log(level) for level in levels]
    mean = math.fsum(logs) / count
    squares = math.fsum((x - mean) ** 2 for x in logs)
    deviation = math.sqrt((_PRIOR_HOLDS * HOLD_SHARE**2 + squares) / (_PRIOR_HOLDS + count - 1))
    tail = (1 + RANGE_SHARE) / 2
    degrees = max(2, count - 1)  # two holds have one, and half a belief
    wider = least_squares.student_quantile(tail, degrees) / least_squares.student_quantile(tail, 10**6)
    return deviation * math.sqrt(1 + 1 / count) * wider


def _level(model: TimeModel, timings: Sequence[Timing]) -> float:
    return math.fsum(t.seconds for t in timings) / math.fsum(model.expected_seconds(t.work) for t in timings)
