"""Every flavour, step and length of the findings, with the best evidence of its memory and of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cost.candidate import Candidate
from cost.domain import Flavour
from cost.errors import CostError, NeverEndsError
from cost.evidence import Evidence, Range
from cost.lengths import OverLength
from cost.plan import RunPlan, Stage
from cost.project import Projection, project
from cost.throughput import TimeModel
from cost.verdict import Fit
from raysweep.decision.findings import Findings
from raysweep.decision.generation import generation_cells
from raysweep.decision.memory import CellMemory, Forecaster, cell_records, from_record
from raysweep.decision.model import Cell
from raysweep.decision.outside import outside_of
from raysweep.decision.plan import million_tokens, run_plan, terms_of
from raysweep.decision.roofline import roofline_timings, run_flops
from raysweep.decision.times import time_model, timed
from raysweep.records import Mode, Source
from raysweep.setting import StepSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyRun:
    """Why a length limit leaves no run to project."""

    stage: str
    """The first one of which too little is left."""
    loses: str
    """What becomes of its items, in words that go on from the stage's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is to be decided among."""

    findings: Findings
    flavours: tuple[Flavour, ...]
    labels: dict[StepSetting, str]
    lengths: tuple[int, ...]
    stages: tuple[Stage, ...]
    """Empty where no data are named: each length then stands for a million tokens of its own."""
    forecaster: Forecaster
    timed_lengths: tuple[int, ...]
    """At which a roofline is laid."""
    _warm_ups: dict[tuple[str, StepSetting], float] = field(default_factory=dict)
    _time_models: dict[tuple[str, StepSetting], TimeModel | None] = field(default_factory=dict)
    _projections: dict[tuple[str, StepSetting, int], Projection | None] = field(default_factory=dict)
    _unending: dict[tuple[str, StepSetting, int], str] = field(default_factory=dict)
    """Why interruptions would hardly ever let the run of a cell end."""
    _empty_runs: dict[int, EmptyRun | None] = field(default_factory=dict)

    def cells(self, margin_share: float) -> tuple[Cell, ...]:
        """Return every cell, judged with this margin."""
        space = self.findings.space
        if space.mode is Mode.GENERATE:
            return generation_cells(self.findings.records, space, self.flavours, self.labels, margin_share=margin_share)
        return tuple(
            self._cell(flavour, step, length, margin_share)
            for flavour in self.flavours
            for step in self.labels
            for length in self.lengths
        )

    def plan(self, flavour: Flavour, step: StepSetting, length_tokens: int) -> RunPlan:
        """Return the run on a flavour with a step under a length limit."""
        if not self.stages:
            return million_tokens(step, length_tokens)
        key = (flavour.name, step)
        if key not in self._warm_ups:
            self._warm_ups[key] = timed(self.findings.records, flavour, step, Source.MEASURED).warm_up_seconds
        return run_plan(
            self.stages, self.findings.space, step, length_tokens, measured_warm_up_seconds=self._warm_ups[key]
        )

    def _cell(self, flavour: Flavour, step: StepSetting, length_tokens: int, margin_share: float) -> Cell:
        memory = self._memory(flavour, step, length_tokens, margin_share)
        model = self._time_model(flavour, step)
        projection = self._projection(flavour, step, length_tokens, model)
        return Cell(
            candidate=self._candidate(flavour, step, length_tokens, memory, projection),
            flavour=flavour,
            step=step,
            memory=memory,
            time_model=model,
            projection=projection,
        )

    def _memory(
        self, flavour: Flavour, step: StepSetting, length_tokens: int, margin_share: float
    ) -> CellMemory | None:
        records = self.findings.records
        allowance = self.forecaster.allowance_bytes(step)
        outside = outside_of(flavour, step, records, allowance_bytes=allowance)
        if found := cell_records(records, flavour.name, step, length_tokens):
            return from_record(found[0], flavour, outside, margin_share=margin_share)
        if not self.forecaster.covers(step, length_tokens) or not _has_memory(flavour):
            return None
        return self.forecaster.judge(step, length_tokens, flavour, outside, margin_share=margin_share)

    def _time_model(self, flavour: Flavour, step: StepSetting) -> TimeModel | None:
        key = (flavour.name, step)
        if key not in self._time_models:
            roofline = roofline_timings(self.findings.programs.get(step), flavour, self.timed_lengths)
            self._time_models[key] = time_model(self.findings.records, flavour, step, roofline)
        return self._time_models[key]

    def _projection(
        self, flavour: Flavour, step: StepSetting, length_tokens: int, model: TimeModel | None
    ) -> Projection | None:
        if model is None or self.empty_run(length_tokens):
            return None
        key = (flavour.name, step, length_tokens)
        if key not in self._projections:
            terms = terms_of(self.findings.space, flavour.usd_per_hour, flavour.gpu_count)
            self._projections[key] = None
            try:
                self._projections[key] = project(self.plan(flavour, step, length_tokens), model, terms)
            except NeverEndsError as error:
                self._unending[key] = str(error).rstrip(".")
        return self._projections[key]

    def empty_run(self, length_tokens: int) -> EmptyRun | None:
        """Return why a limit leaves no run to project: a stage's every item is dropped, or all of its loss is lost.

        A stage's loss has to be there where shares of the loss say how long stages go on.
        """
        if length_tokens not in self._empty_runs:
            found = (self._emptied(stage, length_tokens) for stage in self.stages)
            self._empty_runs[length_tokens] = next((empty for empty in found if empty), None)
        return self._empty_runs[length_tokens]

    def _emptied(self, stage: Stage, length_tokens: int) -> EmptyRun | None:
        over = self.findings.space.run.over_length
        if over is OverLength.DROP and stage.items.lengths_tokens[0] > length_tokens:
            return EmptyRun(stage=stage.name, loses="is longer and would be dropped")
        by_share = any(other.loss_share is not None for other in self.stages)
        if by_share and stage.items.loss_tokens and not stage.items.limited(length_tokens, over)[0].loss_tokens:
            return EmptyRun(stage=stage.name, loses="would lose all its loss-bearing tokens, which loss_share needs")
        return None

    def _candidate(
        self,
        flavour: Flavour,
        step: StepSetting,
        length_tokens: int,
        memory: CellMemory | None,
        projection: Projection | None,
    ) -> Candidate:
        device = flavour.device
        program = self.findings.programs.get(step)
        hours: Range | None = projection.hours if projection else None
        fit: Fit | None = memory.fit if memory else None
        empty = self.empty_run(length_tokens)
        unending = self._unending.get((flavour.name, step, length_tokens))
        return Candidate(
            flavour=flavour.name,
            step=self.labels[step],
            length_tokens=length_tokens,
            fit=fit,
            memory_evidence=Evidence(memory.source.value) if memory else None,
            cost=projection.cost if projection else None,
            hours=hours,
            time_evidence=projection.evidence if projection else None,
            no_time=f"every item of {empty.stage} {empty.loses}" if empty else unending,
            price_per_hour=terms_of(self.findings.space, flavour.usd_per_hour, flavour.gpu_count).price_per_hour,
            gpu_count=flavour.gpu_count,
            run_flops=run_flops(program, projection.work) if projection and program else None,
            peak_flops_per_second=device.dense_bf16_flops_per_second if device else None,
        )


def lengths_to_decide(findings: Findings, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths asked for, else the space's and every length that was probed."""
    if findings.space.mode is Mode.GENERATE:
        return ((findings.space.prompt_tokens or 0) + (findings.space.new_tokens or 0),)
    if lengths:
        return tuple(sorted(set(lengths)))
    probed = {r.length_tokens for r in findings.records if r.length_tokens and not r.item_tokens}
    return tuple(sorted(set(findings.space.lengths) | probed))


def _has_memory(flavour: Flavour) -> bool:
    try:
        return flavour.total_memory_bytes > 0
    except CostError:
        return False
