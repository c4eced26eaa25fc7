"""A run under way against its projection: its log brought to the terms of ``cost.calibrate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost import calibrate as arithmetic
from cost.plan import RunPlan, work_of
from cost.stretches import Stretch, merged, timings_of, tokens_share, without_standstill, work_until
from cost.throughput import TimeModel, Timing, Work, micro_step_timings
from raysweep.decision.model import Cell, Decision
from raysweep.decision.run_log import MicroStep, RunLog
from raysweep.errors import InputError

MOST_STRETCHES = 20
"""A log of thousands of entries is as telling as so many parts of it, and each is worked out from the whole data."""
OTHER_TOKENS = 1.5
"""A log that counts this many times the tokens of the projection's steps, or so many times fewer, is of other ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The first projection held against the run, and the one that follows."""

    cell: Cell
    """What the run is taken to run on: the decision's choice."""
    logged: str
    """What was logged, for people."""
    result: arithmetic.Calibration
    notes: tuple[str, ...]
    """What to mind of it, in whole sentences."""


def calibrate(decision: Decision, log: RunLog) -> Calibration:
    """Hold a run's log against the projection of the decision's chosen cell, which it is taken to run on.

    Raises:
        InputError: nothing was chosen, or its time is not known: there is no projection to hold it against; or the run
            stood still in all that was logged but one stretch.
        CostError: the log is of another run than the projection.
    """
    chosen = decision.chosen
    if chosen is None or chosen.time_model is None or chosen.projection is None or decision.plan is None:
        raise InputError(
            "--from-log: expected a projection to hold the run against; nothing that fits has a known time. A run that "
            "goes on inside the margin: --margin 0%."
        )
    notes = list(log.notes)
    if log.micro_steps:
        timings, done = _of_micro_steps(decision.plan, log.micro_steps)
    else:
        timings, done = _of_stretches(decision.plan, chosen.time_model, log, notes)
    return Calibration(
        cell=chosen,
        logged=log.logged,
        result=arithmetic.calibrate(decision.plan, chosen.time_model, timings, decision.terms, done=done),
        notes=tuple(notes),
    )


def _of_micro_steps(plan: RunPlan, steps: Sequence[MicroStep]) -> tuple[tuple[Timing, ...], Work]:
    """Return the timings but for the first micro-step, which warms up, and the work of all.

    Optimizer steps were done between micro-steps; nobody timed them.
    """
    planned = sum(stage.work.micro_steps for stage in work_of(plan))
    if len(steps) > planned + 1:  # an expectation, so not always whole
        raise InputError(
            f"--from-log: expected at most the {planned:,.0f} micro-steps of the projection's run; "
            f"{len(steps):,} came. Project the run that is logged: its data, epochs and micro_batch."
        )
    lengths = [max(round(step.tokens / plan.micro_batch), 1) for step in steps]
    timings = micro_step_timings(lengths, [step.seconds for step in steps])
    done = Work.of(lengths, new_lengths=len(set(lengths)), optimizer_steps=len(steps) / plan.accumulation)
    return timings[1:], done


def _of_stretches(plan: RunPlan, model: TimeModel, log: RunLog, notes: list[str]) -> tuple[tuple[Timing, ...], Work]:
    """Return the timings of steady stretches by the plan, and the work of everything up to the last step."""
    place = _Place.of(plan, log, notes)
    stretches = merged([place.moved(stretch) for stretch in log.stretches], MOST_STRETCHES)
    share = tokens_share(plan, stretches)
    if share is not None and not 1 / OTHER_TOKENS <= share.seen_over_planned <= OTHER_TOKENS:
        notes.append(
            f"The log counts {share.seen_over_planned:.2g} times the tokens that the projection has for these steps: "
            "what remains is projected with the projection's own. Are its data, batch and number of GPUs the run's?"
        )
    # What a process pays once is in the log's first stretch, and in the projection's start-up.
    once = replace(plan, warm_up_seconds=plan.warm_up_seconds + model.one_off_seconds)
    timings = timings_of(once, stretches)
    if log.may_stand_still:
        timings, still = without_standstill(model, timings)
        notes += [
            f"Steps {place.back(stretches[i].first_step):,.0f} to {place.back(stretches[i].last_step):,.0f} are left "
            f"out: they took {stretches[i].seconds:,.0f} s, as if the run had stood still among them."
            for i in still
        ]
        if still and len(timings) < 2:
            raise InputError(
                f"--from-log: expected two steady stretches between checkpoints or more; {len(timings)} is left. "
                f"{notes[-1]} Try again when the run has written another checkpoint."
            )
    return timings, work_until(plan, place.of_step(log.done_steps or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the log's optimizer steps are among the projection's."""

    before_steps: float = 0.0
    """Those of earlier stages, which ran as runs of their own."""
    factor: float = 1.0
    """The projection's steps a step of the log: a Trainer rounds an epoch's last step otherwise."""

    @classmethod
    def of(cls, plan: RunPlan, log: RunLog, notes: list[str]) -> _Place:
        stages = work_of(plan)
        planned, whole = log.planned_steps, sum(stage.work.optimizer_steps for stage in stages)
        if planned is None:
            return cls()
        if _is_near(planned, whole, sum(stage.epochs for stage in stages)):
            return cls(factor=whole / planned)
        same = [i for i, s in enumerate(stages) if _is_near(planned, s.work.optimizer_steps, s.epochs)]
        if len(stages) > 1 and len(same) == 1:
            stage = stages[same[0]]
            notes.append(
                f"The log is of a run of {planned:,} optimizer steps: it is taken to be the stage {stage.name}."
            )
            before = sum(earlier.work.optimizer_steps for earlier in stages[: same[0]])
            return cls(before_steps=before, factor=stage.work.optimizer_steps / planned)
        notes.append(
            f"The Trainer's run has {planned:,} optimizer steps, the projection's {whole:,.0f}: where their data, "
            "epochs, batch or accumulation differ, so do their steps. What remains is the projection's run."
        )
        return cls()

    def of_step(self, step: float) -> float:
        return self.before_steps + step * self.factor

    def back(self, step: float) -> float:
        return (step - self.before_steps) / self.factor

    def moved(self, stretch: Stretch) -> Stretch:
        return Stretch(
            first_step=self.of_step(stretch.first_step),
            last_step=self.of_step(stretch.last_step),
            seconds=stretch.seconds,
            tokens=stretch.tokens,
        )


def _is_near(planned: int, steps: float, epochs: float) -> bool:
    """Whether two counts are of one run: a step an epoch apart, since a last incomplete one may be left out, or 1 %."""
    return abs(planned - steps) <= max(0.01 * steps, epochs, 1.0)
