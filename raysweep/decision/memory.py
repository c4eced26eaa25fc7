"""Whether each cell fits: from a probe where one ran, else from the step's program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cost.domain import Flavour
from cost.verdict import Fit, judge
from raysweep.decision.outside import ALLOWANCE_BYTES, Outside, OutsideSource
from raysweep.memory.forecast import Card, Study
from raysweep.memory.program import Program
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import AllocatorSetting, StepSetting

_PREFERENCE = (Source.MEASURED, Source.SIMULATED, Source.FORECAST)
OOM = "oom"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMemory:
    """The verdict on one step at one length on one flavour, and where it comes from."""

    fit: Fit
    source: Source
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    """None where a run died before its peak was known."""
    memory_bytes: int
    outside: Outside
    evidence: str
    """A few words for people: which device, capped or not, at what it died."""
    retries: int = 0
    """How often the allocator freed its cache in the probe whose peaks these are; 0 of a forecast."""


def cell_records(
    records: Iterable[ProbeRecord], flavour: str, step: StepSetting, length_tokens: int
) -> list[ProbeRecord]:
    """Return the probes of exactly this cell whose memory is known: best evidence first, the latest of equals."""
    mine = [
        record
        for record in records
        if record.mode is Mode.TRAIN
        and not record.item_tokens
        and record.flavour == flavour
        and record.step == step
        and record.length_tokens == length_tokens
        and tells_memory(record)
    ]
    return preferred(mine)


def preferred(records: Iterable[ProbeRecord]) -> list[ProbeRecord]:
    """Return probes of one cell, the best evidence first and the latest of equals."""
    latest_first = sorted(records, key=lambda record: record.started_at, reverse=True)
    return sorted(latest_first, key=lambda record: _PREFERENCE.index(record.source))


def from_record(record: ProbeRecord, flavour: Flavour, outside: Outside, *, margin_share: float) -> CellMemory:
    """Return the verdict that a probe of the cell gives.

    A device that is the flavour's own says itself how much memory it has; one that was capped stands for the
    flavour's catalogue bytes.
    """
    capped = record.memory_cap_bytes is not None
    memory_bytes = flavour.total_memory_bytes if capped else record.device_memory_bytes
    seen = record.measurement
    runs = record.state is ProbeState.COMPLETED
    reserved = seen.peak_reserved_bytes if seen else 0
    retries = seen.allocation_retries if seen else 0
    fit = judge(
        memory_bytes=memory_bytes,
        margin_share=margin_share,
        outside_bytes=outside.size_bytes,
        peak_reserved_bytes=reserved,
        runs=runs,
        retries=retries,
    )
    return CellMemory(
        fit=fit,
        source=record.source,
        peak_allocated_bytes=seen.peak_allocated_bytes if seen and runs else None,
        peak_reserved_bytes=reserved if runs else None,
        memory_bytes=memory_bytes,
        outside=outside,
        evidence=_evidence(record),
        retries=retries,
    )


class Forecaster:
    """Verdicts from the programs of an artifact: each replay is made once, whatever margin or flavour asks for it."""

    def __init__(self, programs: Mapping[StepSetting, Program], allocator: AllocatorSetting) -> None:
        """Take the programs; nothing is replayed yet."""
        self._studies = {step: Study(program, allocator) for step, program in programs.items()}

    def covers(self, step: StepSetting, length_tokens: int) -> bool:
        """Whether there is a program for the step that reaches this length."""
        return step in self._studies and self._studies[step].program.covers(length_tokens)

    def allowance_bytes(self, step: StepSetting) -> int:
        """Return what to allow for outside the allocator while nothing was measured."""
        study = self._studies.get(step)
        return ALLOWANCE_BYTES[study.program.outside_kind if study else "plain"]

    def judge(
        self, step: StepSetting, length_tokens: int, flavour: Flavour, outside: Outside, *, margin_share: float
    ) -> CellMemory:
        """Return the forecast verdict on a cell that ``covers`` covers."""
        study = self._studies[step]
        card = Card.of(
            flavour,
            outside_bytes=outside.size_bytes,
            outside_is_allowance=outside.source is OutsideSource.ALLOWANCE,
        )
        replay = study.steady(length_tokens, workspace_bytes=card.workspace_bytes)
        _, reserved = study.reserved_range(length_tokens, workspace_bytes=card.workspace_bytes)
        return CellMemory(
            fit=study.fit(length_tokens, card, margin_share=margin_share),
            source=Source.FORECAST,
            peak_allocated_bytes=replay.peak_allocated_bytes,
            peak_reserved_bytes=reserved,
            memory_bytes=card.memory_bytes,
            outside=outside,
            evidence="forecast from the step's program",
        )


def tells_memory(record: ProbeRecord) -> bool:
    """Whether a probe says if its cell runs: it did, or it ran out of memory."""
    return record.state is ProbeState.COMPLETED or (record.state is ProbeState.PRUNED and record.reason == OOM)


def _evidence(record: ProbeRecord) -> str:
    verb = "simulated as" if record.source is Source.SIMULATED else f"{record.source.value} on"
    cap = "" if record.memory_cap_bytes is None else f", capped at {record.memory_cap_bytes / 1e9:.1f} GB"
    where = f"{verb} {record.device_name}{cap if record.source is Source.MEASURED else ''}"
    if record.state is ProbeState.COMPLETED:
        return where
    phase = f" in {record.prune.phase}" if record.prune else ""
    asked = record.prune.requested_bytes if record.prune else None
    size = "" if asked is None else f", asking for {asked / 1e9:.2f} GB"
    return f"out of memory{phase}{size}; {where}"
