"""A run under way against its projection: how far the first one was off, and what is left to go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from cost import least_squares
from cost.errors import CostError
from cost.evidence import RANGE_SHARE, Evidence, Range
from cost.money import Terms
from cost.plan import RunPlan, work_of
from cost.project import Projection, project
from cost.stretches import rest_of
from cost.throughput import HOLD_SHARE, HOST_SHARE, TimeModel, Timing, Work
from cost.time_fit import fit
from cost.units import SECONDS_PER_HOUR

SHAPE_LENGTHS = 4
"""Different lengths that a log must hold for the shape to be fitted anew: one more than the shape has terms."""
SHAPE_SPREAD = 2.0
"""How many times as long as the shortest of them the longest must be: the shape is carried to lengths not logged."""
HOST_SPELL_SECONDS = 60.0
"""How long other work slows a host at a time, see ``HOST_SHARE``: a log of many such spells has met their mean."""
MOST_TIMINGS = 1000
"""That a shape is fitted to: more are put together first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A projection that the run itself has corrected."""

    seen_seconds: float
    """What the timed part of the run took, without the pauses that the plan names."""
    first_seconds: Range
    """What the first projection gave for the same part."""
    refitted: bool
    """Whether the log told the model's shape too; else it corrects the level alone."""
    done_share: float
    """Share of the training time that is over, by the corrected model."""
    remaining_seconds: Range
    """On machines until the run's end: training, pauses, and what interruptions waste."""
    remaining_cost: Range | None
    """Of that time, before it is rounded to billing steps; None where no price is known."""
    model: TimeModel
    """The first time model, corrected."""
    projection: Projection
    """Of the whole run, by the corrected model."""

    @property
    def ratio(self) -> float:
        """Seen over first: 1.08 is eight per cent slower than projected."""
        return self.seen_seconds / self.first_seconds.expected

    @property
    def within_range(self) -> bool:
        """Whether the first projection's range held what was seen."""
        return self.first_seconds.low <= self.seen_seconds <= self.first_seconds.high


def calibrate(
    plan: RunPlan, model: TimeModel, timings: Sequence[Timing], terms: Terms | None = None, *, done: Work | None = None
) -> Calibration:
    """Return what the timed part of a run says of the whole.

    Timings of single micro-steps at enough different lengths fit the model's shape anew. Others correct its level
    alone: how far the stretches differ among each other is how sure that is, and of a single total it is taken to be
    as sure as one hold of a machine, ``HOLD_SHARE``. However alike the stretches, of what remains nothing is surer than
    ``_least_share`` says.

    Args:
        plan: Of the whole run.
        model: That the first projection was made with.
        timings: Stretches of the run without its pauses, such as ``cost.stretches`` gives; steady ones.
        terms: As of the first projection.
        done: All that the run has done, where more of it than the timed part; by default that part.

    Raises:
        CostError: There is no timing, one took no time, or the first model gives it none.
    """
    if not timings:
        raise CostError("A run corrects its projection from one timed stretch on; none came.")
    if any(not (math.isfinite(t.seconds) and t.seconds > 0) for t in timings):
        raise CostError("Every logged stretch must have taken some time.")
    expected = [model.expected_seconds(t.work) for t in timings]
    if min(expected) <= 0:
        raise CostError("The first projection gives no time for a logged stretch: it has no steps.")
    timed = _sum(timings).work
    seen_seconds = math.fsum(t.seconds for t in timings)
    refitted = _tell_shape(timings)
    if refitted:
        corrected = fit(
            _grouped(timings),
            evidence=Evidence.MEASURED,
            optimizer_step_seconds=model.optimizer_step_seconds,
            hold_share=0.0,  # the run stays on the machine that its log is of
            host_share=_host_share(seen_seconds),
        )
    else:
        corrected = _levelled(model, timings, expected)
    corrected = _no_surer(corrected, plan, done or timed)
    projection = project(plan, corrected, terms)
    left = corrected.seconds(rest_of(projection.work, done or timed))
    whole_seconds = projection.training_seconds.expected
    left_share = left.expected / whole_seconds
    pauses = left_share * math.fsum(seconds for _, seconds in projection.pause_seconds)
    remaining = _on_machines(left.plus(pauses), terms)
    return Calibration(
        seen_seconds=seen_seconds,
        first_seconds=model.seconds(timed),
        refitted=refitted,
        done_share=1 - left_share,
        remaining_seconds=remaining,
        remaining_cost=_rent(remaining, terms),
        model=corrected,
        projection=projection,
    )


def _host_share(seen_seconds: float) -> float:
    """Return what is left of ``HOST_SHARE`` after a log that long: its spells average out as independent ones do."""
    return HOST_SHARE * math.sqrt(min(1.0, HOST_SPELL_SECONDS / seen_seconds))


def _no_surer(model: TimeModel, plan: RunPlan, done: Work) -> TimeModel:
    """Return the model with as much more doubt in its scale as the rest of the run has too little."""
    work = reduce(Work.plus, (stage.work for stage in work_of(plan)))
    left = model.seconds(rest_of(work, done))
    if left.expected <= 0:
        return model
    least = _least_share(left.expected / model.expected_seconds(work))
    normal = least_squares.student_quantile((1 + RANGE_SHARE) / 2, 10**6)
    found = (left.high - left.expected) / normal / left.expected
    if found >= least:
        return model
    return replace(model, scale_share=math.sqrt(model.scale_share**2 + least**2 - found**2))


def _least_share(left_share: float) -> float:
    """Return the least standard deviation, as a share, of the seconds that remain.

    A log tells how a machine ran so far. That it drifts from there, as it warms up and its neighbours come and go, is
    taken to be as likely as that another machine differs, ``HOLD_SHARE``; the less is left, the less it can.
    """
    return HOLD_SHARE * math.sqrt(left_share)


def _tell_shape(timings: Sequence[Timing]) -> bool:
    """Whether these are single micro-steps of lengths that differ enough; within a longer stretch lengths are lost."""
    if any(timing.work.micro_steps != 1 for timing in timings):
        return False
    lengths = {timing.work.tokens for timing in timings}
    return len(lengths) >= SHAPE_LENGTHS and max(lengths) >= SHAPE_SPREAD * min(lengths)


def _grouped(timings: Sequence[Timing]) -> Sequence[Timing]:
    """Put micro-steps of like lengths together where there are many: they tell the shape as well, and sooner."""
    if len(timings) <= MOST_TIMINGS:
        return timings
    ordered = sorted(timings, key=lambda timing: timing.work.tokens)
    size = math.ceil(len(ordered) / MOST_TIMINGS)
    return [_sum(ordered[i : i + size]) for i in range(0, len(ordered), size)]


def _sum(timings: Sequence[Timing]) -> Timing:
    work = Work.total(timing.work for timing in timings)
    return Timing(work=work, seconds=math.fsum(timing.seconds for timing in timings))


def _levelled(model: TimeModel, timings: Sequence[Timing], expected: Sequence[float]) -> TimeModel:
    """Scale the model by seen over expected.

    A micro-step's own noise is what stretches of n of them show, n times smaller in variance; the level's error is that
    of a mean weighted by expected seconds. The rest of the run has both.
    """
    total = math.fsum(expected)
    ratio = math.fsum(t.seconds for t in timings) / total
    scaled = replace(
        model,
        floor_seconds=model.floor_seconds * ratio,
        linear_seconds_per_token=model.linear_seconds_per_token * ratio,
        quadratic_seconds_per_token2=model.quadratic_seconds_per_token2 * ratio,
        new_length_seconds=model.new_length_seconds * ratio,
        optimizer_step_seconds=model.optimizer_step_seconds * ratio,
        evidence=Evidence.MEASURED,
        covariance=(),
        degrees_of_freedom=0,
        noise_share=0.0,
        scale_share=HOLD_SHARE,
        host_share=_host_share(math.fsum(t.seconds for t in timings)),
    )
    degrees = len(timings) - 1
    if not degrees:
        return scaled
    off = [t.seconds / e / ratio - 1 for t, e in zip(timings, expected, strict=True)]
    variance = math.fsum(t.work.micro_steps * x**2 for t, x in zip(timings, off, strict=True)) / degrees
    error = variance * math.fsum((e / total) ** 2 / t.work.micro_steps for t, e in zip(timings, expected, strict=True))
    terms = scaled.coefficients
    return replace(
        scaled,
        covariance=tuple(tuple(error * a * b for b in terms) for a in terms),
        degrees_of_freedom=degrees,
        noise_share=math.sqrt(variance),
        scale_share=0.0,
    )


def _on_machines(seconds: Range, terms: Terms | None) -> Range:
    if terms is None or terms.spot is None or seconds.expected <= 0:  # nothing is left to be interrupted
        return seconds
    return terms.spot.billed(seconds)


def _rent(seconds: Range, terms: Terms | None) -> Range | None:
    if terms is None or terms.price_per_hour is None:
        return None
    return seconds.times(terms.price_per_hour / SECONDS_PER_HOUR)
