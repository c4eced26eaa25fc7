"""Forecast against measured: every measured probe forecast again from its step's program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysweep.data.batching import is_padded, micro_batches
from raysweep.data.items import Counts
from raysweep.decision.memory import OOM
from raysweep.memory.conditions import (
    Conditions,
    configured_workspace_bytes,
    cublas_workspace_bytes,
    possible_conditions,
)
from raysweep.memory.outcome import Failure, Replay
from raysweep.memory.program import Program
from raysweep.memory.replay import Replayer
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import AllocatorSetting, StepSetting

SHORTEST_ITEM_TOKENS = 2
"""A probe makes shorter items so long: one token has no next one to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakCheck:
    """A completed probe: both peaks, measured and forecast."""

    record: ProbeRecord
    measured_allocated_bytes: int
    forecast_allocated_bytes: int
    measured_reserved_bytes: int
    forecast_reserved_bytes: int
    """In the likeliest process."""
    forecast_reserved_range_bytes: tuple[int, int] | None
    """Over all that is possible: the order of segments, and whether cuBLAS's workspaces were there before the model.
    None where all of it reserves the same."""
    forecast_retries: int
    """How often the forecast's allocator frees its cache and tries again."""

    @property
    def allocated_error_share(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast_allocated_bytes / self.measured_allocated_bytes - 1

    @property
    def reserved_error_share(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast_reserved_bytes / self.measured_reserved_bytes - 1

    @property
    def reserved_beyond_share(self) -> float:
        """The nearest forecast that is possible over measured, less one: 0 where measured lies within the range."""
        low, high = self.forecast_reserved_range_bytes or (self.forecast_reserved_bytes,) * 2
        return min(max(self.measured_reserved_bytes, low), high) / self.measured_reserved_bytes - 1

    @property
    def worst_share(self) -> float:
        """The larger error of the two, without its sign; a range is only off by what lies beyond it."""
        return max(abs(self.allocated_error_share), abs(self.reserved_beyond_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCheck:
    """A probe of which measured or forecast ran out of memory."""

    record: ProbeRecord
    capacity_bytes: int
    """What the allocator could reserve."""
    forecast_runs: bool
    """Whether the forecast at that capacity finishes in every possible process."""
    forecast_may_run: bool
    """Whether it does in some."""
    failure: Failure | None
    """Where the forecast dies, in the likeliest process in which it does."""

    @property
    def agrees(self) -> bool:
        """Whether the forecast ends as the probe did; where the process decides, its answer is no, and it may run."""
        return self.forecast_may_run if self.record.state is ProbeState.COMPLETED else not self.forecast_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A measured probe that was not compared, and why."""

    record: ProbeRecord
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All measured probes of one or several artifacts, compared where they can be; worst first."""

    peaks: tuple[PeakCheck, ...]
    outcomes: tuple[OutcomeCheck, ...]
    skipped: tuple[Skipped, ...]


def merge(parts: Sequence[Verification]) -> Verification:
    """Return several verifications as one, worst first among all."""
    return _sorted(
        [check for part in parts for check in part.peaks],
        [check for part in parts for check in part.outcomes],
        [skip for part in parts for skip in part.skipped],
    )


def verify(
    records: Iterable[ProbeRecord],
    programs: Mapping[StepSetting, Program],
    allocator: AllocatorSetting,
    *,
    capabilities: Mapping[str, str | None],
    outside_bytes: Mapping[str, int | None] | None = None,
    reasons: Mapping[StepSetting, str] | None = None,
) -> Verification:
    """Compare every measured training probe with its forecast.

    A probe of the data's own lengths is replayed in their order from the beginning of a run: the runner drops what its
    warm-up left before it counts.

    Args:
        records: of any source and of one model; only measured ones count.
        programs: by step.
        allocator: the setting under which the probes ran.
        capabilities: compute capability by the device's own name; cuBLAS's workspace hangs on it.
        outside_bytes: by flavour, what was given for it as living outside the allocator: a capped probe was left that
            much less. Where nothing was given, it was what the probe saw.
        reasons: why a step has no program, where that is known.
    """
    replayers = {step: Replayer(program) for step, program in programs.items()}
    peaks: list[PeakCheck] = []
    outcomes: list[OutcomeCheck] = []
    skipped: list[Skipped] = []
    for record in records:
        if record.source is not Source.MEASURED:
            continue
        replayer = replayers.get(record.step)
        reason = _why_not(record, replayer, (reasons or {}).get(record.step))
        if reason or replayer is None:
            skipped.append(Skipped(record=record, reason=reason or "its step has no program"))
            continue
        conditions = Conditions(
            allocator=allocator,
            capacity_bytes=capacity_bytes(record, (outside_bytes or {}).get(record.flavour)),
            workspace_bytes=_workspace_bytes(record, capabilities),
        )
        replays = [_replay(record, replayer, possible) for possible in possible_conditions(conditions)]
        if record.state is ProbeState.COMPLETED and replays[0].runs:
            peaks.append(_peaks(record, replays))
        else:
            outcomes.append(_outcome(record, replays, conditions.capacity_bytes or 0))
    return _sorted(peaks, outcomes, skipped)


def _workspace_bytes(record: ProbeRecord, capabilities: Mapping[str, str | None]) -> int:
    """Of one cuBLAS workspace: what the probe's environment said, as that of an emulated card; else the chip's."""
    config = record.versions.get("CUBLAS_WORKSPACE_CONFIG")
    if config is not None:
        return configured_workspace_bytes(config)
    return cublas_workspace_bytes(capabilities.get(record.device_name))


def needed_lengths(records: Iterable[ProbeRecord]) -> dict[StepSetting, tuple[int, ...]]:
    """Return the lengths that each step's program has to cover so that its measured training probes can be compared."""
    found: dict[StepSetting, set[int]] = {}
    for record in records:
        if record.source is Source.MEASURED and _excluded(record) is None:
            found.setdefault(record.step, set()).update(_lengths(record))
    return {step: tuple(sorted(lengths)) for step, lengths in found.items()}


def padded_steps(records: Iterable[ProbeRecord]) -> set[StepSetting]:
    """Return the steps of which measured training probes had micro-batches in which an item was padded."""
    return {
        record.step
        for record in records
        if record.source is Source.MEASURED and _excluded(record) is None and any(_padded(record) or ())
    }


def capacity_bytes(record: ProbeRecord, given_outside_bytes: int | None) -> int:
    """Return what the allocator could reserve: the cap or the device, less what lives outside the allocator.

    Args:
        record: the probe.
        given_outside_bytes: of the card that a capped probe stands for; None where the runner took its own device's.
    """
    seen = record.measurement.outside_allocator_bytes if record.measurement else None
    if record.memory_cap_bytes is None:
        return record.device_memory_bytes - (seen or 0)
    return record.memory_cap_bytes - (given_outside_bytes if given_outside_bytes is not None else seen or 0)


def _sorted(peaks: Iterable[PeakCheck], outcomes: Iterable[OutcomeCheck], skipped: Iterable[Skipped]) -> Verification:
    return Verification(
        peaks=tuple(sorted(peaks, key=lambda check: (-check.worst_share, -abs(check.reserved_error_share)))),
        outcomes=tuple(sorted(outcomes, key=lambda check: check.agrees)),
        skipped=tuple(skipped),
    )


def _excluded(record: ProbeRecord) -> str | None:
    """Return why a measured probe is not compared, whatever its program."""
    if record.mode is not Mode.TRAIN:
        return "generation is not forecast"
    if record.state is ProbeState.FAILED:
        return f"the probe failed: {record.reason}"
    if record.state is ProbeState.PRUNED and record.reason != OOM:
        return f"the probe was pruned: {record.reason}"
    return None


def _why_not(record: ProbeRecord, replayer: Replayer | None, known: str | None) -> str | None:
    excluded = _excluded(record)
    if excluded is not None:
        return excluded
    if replayer is None:
        return known or "its step has no program in the artifact"
    missing = [length for length in _lengths(record) if not replayer.program.covers(length)]
    if missing:
        return known or f"its program does not cover {missing[0]} tokens"
    return None


def _lengths(record: ProbeRecord) -> list[int]:
    """The padded lengths of a probe's micro-steps; of a probe of one length, that one."""
    if not record.item_tokens:
        return [max(record.length_tokens or 0, SHORTEST_ITEM_TOKENS)]
    return [int(length) for length in micro_batches(_item_tokens(record), record.step.micro_batch)]


def _padded(record: ProbeRecord) -> list[bool] | None:
    """Of each micro-step, whether an item of it was padded; None of a probe of one length."""
    if not record.item_tokens:
        return None
    return [bool(padded) for padded in is_padded(_item_tokens(record), record.step.micro_batch)]


def _item_tokens(record: ProbeRecord) -> Counts:
    return np.maximum(np.array(record.item_tokens, dtype=np.int64), SHORTEST_ITEM_TOKENS)


def _replay(record: ProbeRecord, replayer: Replayer, conditions: Conditions) -> Replay:
    lengths, accumulation = _lengths(record), record.step.accumulation
    if record.item_tokens:
        return replayer.run(lengths, accumulation=accumulation, conditions=conditions, padded=_padded(record))
    return replayer.steady(lengths[0], accumulation=accumulation, conditions=conditions)


def _peaks(record: ProbeRecord, replays: Sequence[Replay]) -> PeakCheck:
    if record.measurement is None:
        raise ValueError("a completed probe has a measurement")
    reserved = [replay.peak_reserved_bytes for replay in replays if replay.runs]
    low, high = min(reserved), max(reserved)
    return PeakCheck(
        record=record,
        measured_allocated_bytes=record.measurement.peak_allocated_bytes,
        forecast_allocated_bytes=replays[0].peak_allocated_bytes,
        measured_reserved_bytes=record.measurement.peak_reserved_bytes,
        forecast_reserved_bytes=replays[0].peak_reserved_bytes,
        forecast_reserved_range_bytes=(low, high) if low != high else None,
        forecast_retries=replays[0].retries,
    )


def _outcome(record: ProbeRecord, replays: Sequence[Replay], capacity: int) -> OutcomeCheck:
    return OutcomeCheck(
        record=record,
        capacity_bytes=capacity,
        forecast_runs=all(replay.runs for replay in replays),
        forecast_may_run=any(replay.runs for replay in replays),
        failure=next((replay.failure for replay in replays if replay.failure is not None), None),
    )
