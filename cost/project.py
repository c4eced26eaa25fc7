"""From a run's plan and a step's time model to hours and money, each with a range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cost.errors import NeverEndsError
from cost.evidence import Evidence, Range
from cost.money import Terms
from cost.plan import RunPlan, StageWork, work_of
from cost.throughput import TimeModel, Work
from cost.units import SECONDS_PER_HOUR

PADDING_MULTIPLES_TOKENS = (64, 128, 256, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Time and money of a whole run. Every number is projected, from evidence of the kind named."""

    evidence: Evidence
    """What the time model rests on."""
    assumed: tuple[str, ...]
    """Terms of the time model that nothing has shown yet."""
    stages: tuple[StageWork, ...]
    work: Work
    """All stages together."""
    training_seconds: Range
    """Micro-steps, new lengths and optimizer steps."""
    new_length_seconds: float
    """Expected, within ``training_seconds``."""
    pause_seconds: tuple[tuple[str, float], ...]
    """Evaluations, checkpoints, by name."""
    start_seconds: float
    """Image, download, loading, warm-up and one-off steps of every process."""
    redone_seconds: float
    """Expected restarts after interruptions, and work done again since the last checkpoint."""
    machine_seconds: Range
    """All time on machines, what interruptions waste included."""
    wait_seconds: Range
    """Time without a machine, after interruptions."""
    cost: Range | None
    """None where no price is known."""
    currency: str
    beyond_tokens: int | None
    """The longest timed length, where the run has longer steps: the model extrapolates there."""

    @property
    def hours(self) -> Range:
        """Wall time in hours: on machines and waiting for them."""
        wall = Range(
            expected=self.machine_seconds.expected + self.wait_seconds.expected,
            low=self.machine_seconds.low + self.wait_seconds.low,
            high=self.machine_seconds.high + self.wait_seconds.high,
        )
        return wall.times(1 / SECONDS_PER_HOUR)

    @property
    def tokens(self) -> float:
        """Tokens trained on, over all stages and epochs, without padding."""
        return math.fsum(stage.tokens for stage in self.stages)

    @property
    def padding_share(self) -> float:
        """Share of the computed tokens that is padding."""
        computed = math.fsum(stage.padded_tokens for stage in self.stages)
        return max(0.0, 1 - self.tokens / computed)


def project(plan: RunPlan, model: TimeModel, terms: Terms | None = None) -> Projection:
    """Return hours and money of a run.

    Args:
        plan: What the run does.
        model: Seconds of its step, on one flavour.
        terms: The flavour's price and terms; None for hours alone.

    Raises:
        CostError: The plan or the terms contradict themselves.
    """
    terms = terms or Terms(price_per_hour=None)
    stages = work_of(plan)
    work = Work.total(stage.work for stage in stages)
    training = model.seconds(work)
    pauses: dict[str, float] = {}
    for stage in stages:
        for name, seconds in stage.pauses:
            pauses[name] = pauses.get(name, 0.0) + seconds
    processes = len(stages) if plan.process_per_stage else 1
    start_seconds = processes * (plan.start_up.seconds + plan.warm_up_seconds + model.one_off_seconds)
    busy = training.plus(math.fsum(pauses.values()) + start_seconds)
    machine, wait = busy, Range.exactly(0.0)
    if terms.spot is not None:
        machine = terms.spot.billed(busy)
        wait = terms.spot.waited(machine)
    return Projection(
        evidence=model.evidence,
        assumed=model.assumed,
        stages=stages,
        work=work,
        training_seconds=training,
        new_length_seconds=model.new_length_seconds * work.new_lengths,
        pause_seconds=tuple(pauses.items()),
        start_seconds=start_seconds,
        redone_seconds=max(0.0, machine.expected - busy.expected),
        machine_seconds=machine,
        wait_seconds=wait,
        cost=terms.cost(machine),
        currency=terms.currency,
        beyond_tokens=_beyond(plan, model),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingOption:
    """What padding items to a multiple would change. Projected; memory grows with the longest length."""

    multiple_tokens: int
    hours_saved: float
    """Negative where it costs time."""
    cost_saved: float | None
    new_lengths: float
    longest_tokens: int
    """To be forecast for memory before the advice is given."""
    projection: Projection


def padding_options(
    plan: RunPlan, model: TimeModel, terms: Terms | None = None, multiples_tokens: Iterable[int] = ()
) -> tuple[PaddingOption, ...]:
    """Return what padding to each multiple would change, the most hours saved first."""
    base = project(plan, model, terms)
    options = []
    for multiple in tuple(multiples_tokens) or PADDING_MULTIPLES_TOKENS:
        padded_plan = replace(plan, pad_to_multiple_tokens=multiple)
        try:
            projection = project(padded_plan, model, terms)
        except NeverEndsError:  # longer steps between interruptions: no option
            continue
        saved = None
        if base.cost is not None and projection.cost is not None:
            saved = base.cost.expected - projection.cost.expected
        options.append(
            PaddingOption(
                multiple_tokens=multiple,
                hours_saved=base.hours.expected - projection.hours.expected,
                cost_saved=saved,
                new_lengths=projection.work.new_lengths,
                longest_tokens=longest_step_tokens(padded_plan),
                projection=projection,
            )
        )
    return tuple(sorted(options, key=lambda option: -option.hours_saved))


def longest_step_tokens(plan: RunPlan) -> int:
    """Return the longest padded length of any step of the run: what has to fit in memory."""
    if plan.packing is not None:
        return plan.packing.sequence_tokens
    longest = max(stage.items.longest_tokens for stage in plan.stages)
    if plan.limit_tokens is not None:
        longest = min(longest, plan.limit_tokens)
    multiple = plan.pad_to_multiple_tokens
    return math.ceil(longest / multiple) * multiple


def _beyond(plan: RunPlan, model: TimeModel) -> int | None:
    timed = model.longest_timed_tokens
    return timed if timed is not None and longest_step_tokens(plan) > timed else None
