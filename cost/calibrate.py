"""A run under way against its projection: how far the first one was off, and what is left to go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost import least_squares
from cost.errors import CostError
from cost.evidence import RANGE_SHARE, Evidence, Range
from cost.money import Terms
from cost.plan import RunPlan
from cost.project import Projection, project
from cost.throughput import TimeModel, Timing, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A projection that the run itself has corrected."""

    seen_seconds: float
    """What the timed part of the run took."""
    first_seconds: Range
    """What the first projection gave for the same part."""
    ratio: float
    """Seen over first: 1.08 is eight per cent slower than projected."""
    within_range: bool
    """Whether the first projection's range held what was seen."""
    done_share: float
    """Share of the training time that is over, by the first projection."""
    remaining_seconds: Range
    """Of training, without pauses."""
    model: TimeModel
    """The first time model, corrected."""
    projection: Projection
    """Of the whole run, by the corrected model."""


def calibrate(plan: RunPlan, model: TimeModel, timings: Sequence[Timing], terms: Terms | None = None) -> Calibration:
    """Return what the timed part of a run says of the whole.

    A log rarely tells the lengths within a step, so its seconds correct the model's level and not its shape. How far
    the stretches differ among each other is how sure that is.

    Args:
        plan: Of the whole run.
        model: That the first projection was made with.
        timings: Consecutive stretches of the run, such as the logging intervals of a trainer; steady ones.
        terms: As of the first projection.

    Raises:
        CostError: There are fewer than three stretches, or one of no time.
    """
    if len(timings) < 3:
        raise CostError(f"A run corrects its projection from three logged stretches on; {len(timings)} came.")
    if any(not (math.isfinite(t.seconds) and t.seconds > 0) for t in timings):
        raise CostError("Every logged stretch must have taken some time.")
    expected = [model.expected_seconds(t.work) for t in timings]
    if min(expected) <= 0:
        raise CostError("The first projection gives no time for a logged stretch: it has no steps.")
    seen = math.fsum(t.seconds for t in timings)
    ratio = seen / math.fsum(expected)
    done = timings[0].work
    for timing in timings[1:]:
        done = done.plus(timing.work)
    corrected = _corrected(model, ratio, timings, expected)
    projection = project(plan, corrected, terms)
    first = model.seconds(done)
    return Calibration(
        seen_seconds=seen,
        first_seconds=first,
        ratio=ratio,
        within_range=first.low <= seen <= first.high,
        done_share=min(1.0, model.expected_seconds(done) / model.expected_seconds(projection.work)),
        remaining_seconds=corrected.seconds(_less(projection.work, done)),
        model=corrected,
        projection=projection,
    )


def _corrected(model: TimeModel, ratio: float, timings: Sequence[Timing], expected: Sequence[float]) -> TimeModel:
    """Scale the model; what stretches leave unsure is the standard error of their mean ratio."""
    weights = [e / math.fsum(expected) for e in expected]
    spread = math.fsum(w * (t.seconds / e - ratio) ** 2 for w, t, e in zip(weights, timings, expected, strict=True))
    degrees = len(timings) - 1
    error_share = math.sqrt(spread / degrees) / ratio
    # ``scale_share`` is read against the normal law; few stretches deserve Student's wider one.
    tail = (1 + RANGE_SHARE) / 2
    widened = least_squares.student_quantile(tail, degrees) / least_squares.student_quantile(tail, 10**6)
    return replace(
        model,
        floor_seconds=model.floor_seconds * ratio,
        linear_seconds_per_token=model.linear_seconds_per_token * ratio,
        quadratic_seconds_per_token2=model.quadratic_seconds_per_token2 * ratio,
        new_length_seconds=model.new_length_seconds * ratio,
        optimizer_step_seconds=model.optimizer_step_seconds * ratio,
        evidence=Evidence.MEASURED,
        covariance=(),
        degrees_of_freedom=0,
        scale_share=error_share * widened,
    )


def _less(work: Work, done: Work) -> Work:
    return Work(
        micro_steps=max(work.micro_steps - done.micro_steps, 0.0),
        tokens=max(work.tokens - done.tokens, 0.0),
        squared_tokens=max(work.squared_tokens - done.squared_tokens, 0.0),
        new_lengths=max(work.new_lengths - done.new_lengths, 0.0),
        optimizer_steps=max(work.optimizer_steps - done.optimizer_steps, 0.0),
    )
