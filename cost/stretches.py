"""Stretches of a run, as its log tells them, in the terms of its plan: what was done in each, and for how long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost.errors import CostError
from cost.plan import RunPlan, work_of
from cost.throughput import TimeModel, Timing, Work

STANDSTILL = 2.0
"""A stretch that took this many times as long as the median one, by the model, had a stop in it: a run that was
interrupted and went on. Stretches of many steps differ by per cents."""
_NOTHING = Work(micro_steps=0, tokens=0, squared_tokens=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a run between two entries of its log."""

    first_step: float
    """Optimizer steps that were done when it began."""
    last_step: float
    """Optimizer steps that were done when it ended."""
    seconds: float
    """Wall time, with every pause in it."""
    tokens: float | None = None
    """Tokens trained on, where the log counts them: with padding or without, as it does."""


def merged(stretches: Sequence[Stretch], most: int) -> tuple[Stretch, ...]:
    """Return at most about so many stretches: neighbours are put together, never across a gap.

    Args:
        stretches: In order.
        most: Of them; a gap may leave one more.
    """
    size = math.ceil(len(stretches) / most)
    groups: list[list[Stretch]] = []
    for stretch in stretches:
        if groups and len(groups[-1]) < size and groups[-1][-1].last_step == stretch.first_step:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    return tuple(_joined(group) for group in groups)


def timings_of(plan: RunPlan, stretches: Sequence[Stretch]) -> tuple[Timing, ...]:
    """Return each stretch's work by the plan, and its seconds less the pauses and the warm-up that the plan puts in it.

    A log tells optimizer steps and not lengths: within a stage every step is taken as the average one, but for new
    lengths, of which the first steps meet the most. Where the log counts tokens, the work follows them.

    Raises:
        CostError: A stretch is over the run's end, or not longer than what the plan puts in it besides its steps.
    """
    share = tokens_share(plan, stretches)
    padded = share is not None and share.padded
    timings = []
    for stretch in stretches:
        begin, end = _reached(plan, stretch.first_step), _reached(plan, stretch.last_step)
        seconds = stretch.seconds - (end.pause_seconds - begin.pause_seconds)
        if not (math.isfinite(seconds) and seconds > 0):
            raise CostError(
                f"The steps {stretch.first_step:,.0f} to {stretch.last_step:,.0f} took {stretch.seconds:,.1f} s, which "
                f"the plan's own pauses and warm-up fill ({stretch.seconds - seconds:,.1f} s): correct those first."
            )
        work = rest_of(end.work, begin.work)
        if stretch.tokens:
            work = _with_tokens(work, stretch.tokens / (end.tokens(padded=padded) - begin.tokens(padded=padded)))
        timings.append(Timing(work=work, seconds=seconds))
    return tuple(timings)


def work_until(plan: RunPlan, step: float) -> Work:
    """Return the plan's work up to an optimizer step.

    Raises:
        CostError: The run has fewer steps.
    """
    return _reached(plan, step).work


def rest_of(work: Work, done: Work) -> Work:
    """Return what of some work is left after a part of it."""
    return Work(
        micro_steps=max(work.micro_steps - done.micro_steps, 0.0),
        tokens=max(work.tokens - done.tokens, 0.0),
        squared_tokens=max(work.squared_tokens - done.squared_tokens, 0.0),
        new_lengths=max(work.new_lengths - done.new_lengths, 0.0),
        optimizer_steps=max(work.optimizer_steps - done.optimizer_steps, 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensShare:
    """Tokens that a log counts against those that the plan gives the same steps."""

    seen_over_planned: float
    padded: bool
    """Whether the log counts padding too, by which of the two is nearer; it does not say."""


def tokens_share(plan: RunPlan, stretches: Sequence[Stretch]) -> TokensShare | None:
    """Return how the log's tokens compare with the plan's; None where the log counts none.

    Raises:
        CostError: A stretch is over the run's end.
    """
    counted = [stretch for stretch in stretches if stretch.tokens]
    if not counted:
        return None
    seen = math.fsum(stretch.tokens or 0.0 for stretch in counted)
    found = []
    for padded in (True, False):
        planned = math.fsum(
            _reached(plan, s.last_step).tokens(padded=padded) - _reached(plan, s.first_step).tokens(padded=padded)
            for s in counted
        )
        found.append(TokensShare(seen_over_planned=seen / planned, padded=padded))
    return min(found, key=lambda share: abs(math.log(share.seen_over_planned)))


def without_standstill(model: TimeModel, timings: Sequence[Timing]) -> tuple[tuple[Timing, ...], tuple[int, ...]]:
    """Return the timings without those in which the run stood still, and the indices of these. See ``STANDSTILL``."""
    if not timings:
        return (), ()
    ratios = [timing.seconds / max(model.expected_seconds(timing.work), 1e-9) for timing in timings]
    most = STANDSTILL * sorted(ratios)[(len(ratios) - 1) // 2]  # the lower one of two in the middle
    still = tuple(i for i, ratio in enumerate(ratios) if ratio > most)
    return tuple(timing for i, timing in enumerate(timings) if i not in still), still


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """What the plan has done and spent by a step."""

    work: Work = _NOTHING
    pause_seconds: float = 0.0
    """Those of the steps so far, and the warm-up."""
    own_tokens: float = 0.0
    padded_tokens: float = 0.0

    def tokens(self, *, padded: bool) -> float:
        return self.padded_tokens if padded else self.own_tokens


def _reached(plan: RunPlan, step: float) -> _Reached:
    """Cut the plan at a step; whatever its stage has to pause is spread over the stage's steps."""
    whole = work_of(plan)
    all_steps = sum(stage.work.optimizer_steps for stage in whole)
    if step > all_steps * (1 + 1e-9):
        raise CostError(
            f"The log is at optimizer step {step:,.0f}, and the run of the projection has {all_steps:,.0f}: their "
            "data, epochs, batch or accumulation differ. Project the run that is logged."
        )
    stages, pause_seconds, left = [], 0.0, step
    for stage, own in zip(plan.stages, whole, strict=True):
        if left <= 0:
            break
        share = min(left / own.work.optimizer_steps, 1.0)
        stages.append(replace(stage, epochs=own.epochs * share, loss_share=None))
        pause_seconds += share * sum(seconds for _, seconds in own.pauses)
        left -= own.work.optimizer_steps
    if not stages:
        return _Reached()
    cut = work_of(replace(plan, stages=tuple(stages)))
    processes = len(cut) if plan.process_per_stage else 1
    return _Reached(
        work=replace(Work.total(stage.work for stage in cut), optimizer_steps=step),
        pause_seconds=pause_seconds + processes * plan.warm_up_seconds,
        own_tokens=math.fsum(stage.tokens for stage in cut),
        padded_tokens=math.fsum(stage.padded_tokens for stage in cut),
    )


def _joined(group: Sequence[Stretch]) -> Stretch:
    counts = [stretch.tokens for stretch in group if stretch.tokens is not None]
    return Stretch(
        first_step=group[0].first_step,
        last_step=group[-1].last_step,
        seconds=math.fsum(stretch.seconds for stretch in group),
        tokens=math.fsum(counts) if len(counts) == len(group) else None,
    )


def _with_tokens(work: Work, factor: float) -> Work:
    """As many micro-steps of lengths that are greater by a factor."""
    return replace(work, tokens=work.tokens * factor, squared_tokens=work.squared_tokens * factor**2)
