"""Forecast against measured: every measured probe forecast again from its step's program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from raysweep.data.batching import micro_batches
from raysweep.decision.memory import OOM
from raysweep.memory.program import Program
from raysweep.memory.replay import Conditions, Replay, Replayer, cublas_workspace_bytes
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import AllocatorSetting, StepSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakCheck:
    """A completed probe: both peaks, measured and forecast."""

    record: ProbeRecord
    measured_allocated_bytes: int
    forecast_allocated_bytes: int
    measured_reserved_bytes: int
    forecast_reserved_bytes: int

    @property
    def allocated_error_share(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast_allocated_bytes / self.measured_allocated_bytes - 1

    @property
    def reserved_error_share(self) -> float:
        """Forecast over measured, less one."""
        return self.forecast_reserved_bytes / self.measured_reserved_bytes - 1

    @property
    def worst_share(self) -> float:
        """The larger error of the two, without its sign."""
        return max(abs(self.allocated_error_share), abs(self.reserved_error_share))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCheck:
    """A probe that ran out of memory, and whether the forecast at its capacity does too."""

    record: ProbeRecord
    capacity_bytes: int
    forecast_runs: bool

    @property
    def agrees(self) -> bool:
        """Whether the forecast dies as the probe did."""
        return not self.forecast_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A measured probe that was not compared, and why."""

    record: ProbeRecord
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All measured probes of an artifact, compared where they can be; worst first."""

    peaks: tuple[PeakCheck, ...]
    outcomes: tuple[OutcomeCheck, ...]
    skipped: tuple[Skipped, ...]


def verify(
    records: Iterable[ProbeRecord],
    programs: Mapping[StepSetting, Program],
    allocator: AllocatorSetting,
    *,
    capabilities: Mapping[str, str | None],
    reasons: Mapping[StepSetting, str] | None = None,
) -> Verification:
    """Compare every measured training probe with its forecast.

    Args:
        records: of any source; only measured ones count.
        programs: by step.
        allocator: the setting under which the probes ran.
        capabilities: compute capability by the device's own name; cuBLAS's workspace hangs on it.
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
        workspace_bytes = cublas_workspace_bytes(capabilities.get(record.device_name))
        conditions = Conditions(allocator=allocator, workspace_bytes=workspace_bytes)
        if reason or replayer is None:
            skipped.append(Skipped(record=record, reason=reason or "its step has no program"))
        elif record.state is ProbeState.COMPLETED and record.measurement is not None:
            replay = _replay(record, replayer, conditions)
            peaks.append(
                PeakCheck(
                    record=record,
                    measured_allocated_bytes=record.measurement.peak_allocated_bytes,
                    forecast_allocated_bytes=replay.peak_allocated_bytes,
                    measured_reserved_bytes=record.measurement.peak_reserved_bytes,
                    forecast_reserved_bytes=replay.peak_reserved_bytes,
                )
            )
        else:
            capacity = _capacity_bytes(record)
            replay = _replay(record, replayer, replace(conditions, capacity_bytes=capacity))
            outcomes.append(OutcomeCheck(record=record, capacity_bytes=capacity, forecast_runs=replay.runs))
    return Verification(
        peaks=tuple(sorted(peaks, key=lambda check: -check.worst_share)),
        outcomes=tuple(sorted(outcomes, key=lambda check: check.agrees)),
        skipped=tuple(skipped),
    )


def _why_not(record: ProbeRecord, replayer: Replayer | None, known: str | None) -> str | None:
    if record.mode is not Mode.TRAIN:
        return "generation is not forecast"
    if record.state is ProbeState.FAILED:
        return f"the probe failed: {record.reason}"
    if record.state is ProbeState.PRUNED and record.reason != OOM:
        return f"the probe was pruned: {record.reason}"
    if replayer is None:
        return known or "its step has no program in the artifact"
    longest = max(record.item_tokens, default=record.length_tokens or 0)
    if not replayer.program.covers(longest):
        return f"its program does not reach {longest} tokens"
    return None


def _replay(record: ProbeRecord, replayer: Replayer, conditions: Conditions) -> Replay:
    step = record.step
    if record.item_tokens:
        lengths = micro_batches(np.array(record.item_tokens, dtype=np.int64), step.micro_batch).tolist()
        return replayer.run(lengths, accumulation=step.accumulation, conditions=conditions)
    return replayer.steady(record.length_tokens or 0, accumulation=step.accumulation, conditions=conditions)


def _capacity_bytes(record: ProbeRecord) -> int:
    """What the allocator could reserve: the cap or the device, less what the probe saw outside the allocator."""
    outside = record.measurement.outside_allocator_bytes if record.measurement else None
    return (record.memory_cap_bytes or record.device_memory_bytes) - (outside or 0)
