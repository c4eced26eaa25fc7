"""Cells and probes of one length beside their forecasts, as Markdown."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.markdown import BYTES_PER_GB, gb, table, worst
from raysweep.decision.verification import (
    OutcomeCheck,
    PeakCheck,
    Verification,
    capacity_bytes,
    needed_lengths,
    padded_steps,
    verify,
)
from raysweep.errors import NotForecastError
from raysweep.memory.conditions import Conditions, cublas_workspace_bytes
from raysweep.memory.program import Program
from raysweep.memory.replay import Replayer
from raysweep.records import Measurement, Mode, ProbeRecord, ProbeState
from raysweep.setting import AllocatorSetting, Attention, Optimizer, StepSetting, Weights
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.trace import kept
from raysweep.trace.build import model_program

GIVEN_OUTSIDE_BYTES = {"lab/a100-40": 550_000_000, "lab/a100-pcie-40gb": 550_000_000}
"""As the spaces of the measurements give it; for other flavours the probes' own device counted."""
H200 = {"NVIDIA H200": "9.0"}


def families(folder: Path) -> Iterator[str]:
    """Every cell of every family: both peaks, forecast against measured."""
    checks = [c for path in sorted((folder / "families").iterdir()) for c in _verified(path).peaks]
    plain = [c for c in checks if not _hangs(c)]
    hanging = [c for c in checks if _hangs(c)]
    yield "## families: forecast against measured"
    yield ""
    yield f"{len(checks)} cells. Allocated: all within {worst(c.allocated_error_share for c in checks)}. Reserved: "
    yield f"the {len(plain)} cells of bf16 weights and SDPA within {worst(c.reserved_error_share for c in plain)}; of "
    within = sum(c.reserved_beyond_share == 0 for c in hanging)
    yield f"the {len(hanging)} of fp32 or nf4 weights or of eager attention {within} "
    yield "lie within the forecast's range, and the others at most "
    yield f"{worst(c.reserved_beyond_share for c in hanging)} beyond it."
    yield ""
    yield from table(
        [
            "model",
            "step",
            "tokens",
            "allocated, measured GB",
            "forecast GB",
            "off",
            "reserved, measured GB",
            "forecast GB",
            "off",
            "forecast's range GB",
        ],
        [_cell_row(c) for c in sorted(checks, key=lambda c: (_hangs(c), c.record.model))],
    )


def families_not_forecast(folder: Path) -> Iterator[str]:
    """Cells of steps that no forecast covers yet: measured alone."""
    paths = sorted((folder / "families").iterdir())
    skipped = [s for path in paths for s in _verified(path).skipped if s.record.measurement is not None]
    yield "### Measured alone: steps that no forecast covers yet"
    yield ""
    yield from table(
        [
            "model",
            "step",
            "tokens",
            "loaded GB",
            "allocated GB",
            "reserved GB",
            "outside the allocator GB",
            "next steps s",
        ],
        [_measured_row(s.record) for s in skipped],
    )


def a100(folder: Path) -> Iterator[str]:
    """The A100's own table beside a capped H200, and beside a forecast with an A100's workspaces."""
    with (folder / "a100-40gb-probe.csv").open(encoding="utf-8") as file:
        theirs = list(csv.DictReader(file))
    records = Artifact.open(folder / "a100-table").records()
    rows = []
    for row, record in zip(theirs, records, strict=True):
        seen = _seen(record)
        own = f"rank {row['rank'] or '-'}, {row['length_tokens']} tokens, {row['mode']}"
        given = [row["peak_allocated_gb"], row["peak_reserved_gb"] or "-"]
        died = record.prune
        ours = [gb(seen.peak_allocated_bytes), gb(seen.peak_reserved_bytes)]
        if died:
            ours = [
                f"out of memory in {died.phase} (reached {ours[0]})",
                f"{ours[1]}, {seen.allocation_retries} retries",
            ]
        rows.append([own, *given, *ours, *_off_a100(row, record), *_forecast_a100(record)])
    yield "## a100-table: an A100's own measurements beside a capped H200"
    yield ""
    yield from table(
        [
            "probe",
            "A100 allocated GB",
            "A100 reserved GB",
            "H200 allocated GB",
            "H200 reserved GB",
            "allocated, H200 to A100",
            "reserved",
            "forecast for an A100: allocated GB",
            "reserved GB",
            "ends",
        ],
        rows,
    )


def emulated_forecasts(folder: Path) -> Iterator[str]:
    """The probes of emulated cards beside their forecasts: peaks, and where they died."""
    yield "### Forecasts of emulated probes"
    yield ""
    checks = _verified(folder / "emulated")
    yield f"Forecast: {len(checks.peaks)} completed probes, allocated within "
    yield f"{worst(c.allocated_error_share for c in checks.peaks)}, reserved within "
    yield f"{worst(c.reserved_error_share for c in checks.peaks)}; of {len(checks.outcomes)} that ran out of memory "
    yield f"{sum(c.agrees for c in checks.outcomes)} are forecast to:"
    yield ""
    yield from table(
        [
            "flavour",
            "probe",
            "capacity GB",
            "measured: dies in",
            "asked GB",
            "forecast: dies in",
            "asks GB",
            "free afterwards bytes",
            "before it bytes",
            "difference MiB",
        ],
        [_outcome_row(c) for c in checks.outcomes],
    )


def _verified(path: Path) -> Verification:
    records = Artifact.open(path).records()
    programs: dict[StepSetting, Program] = {}
    reasons: dict[StepSetting, str] = {}
    for step, lengths in needed_lengths(records).items():
        config = load_config(records[0].model)
        padded = step in padded_steps(records)
        key = kept.program_key(config, step, lengths, padded=padded)
        program = kept.load(key)
        if program is None:
            try:
                program = model_program(records[0].model, config, step, lengths, padded=padded)
            except NotForecastError as error:
                reasons[step] = str(error)
                continue
            kept.keep(key, program)
        programs[step] = program
    allocator = AllocatorSetting()
    return verify(records, programs, allocator, capabilities=H200, outside_bytes=GIVEN_OUTSIDE_BYTES, reasons=reasons)


def _hangs(check: PeakCheck) -> bool:
    step = check.record.step
    return step.weights in {Weights.FP32, Weights.NF4} or step.attention is Attention.EAGER


def _cell_row(check: PeakCheck) -> list[str]:
    record = check.record
    low, high = check.forecast_reserved_range_bytes or (check.forecast_reserved_bytes,) * 2
    return [
        Path(record.model).name,
        _step(record.step),
        f"{record.length_tokens:,}",
        gb(check.measured_allocated_bytes),
        gb(check.forecast_allocated_bytes),
        f"{check.allocated_error_share:+.3%}",
        gb(check.measured_reserved_bytes),
        gb(check.forecast_reserved_bytes),
        f"{check.reserved_error_share:+.3%}",
        f"{gb(low)} to {gb(high)}",
    ]


def _seen(record: ProbeRecord) -> Measurement:
    if record.measurement is None:
        raise ValueError(f"{record.probe_id}: a probe without a measurement")
    return record.measurement


def _measured_row(record: ProbeRecord) -> list[str]:
    seen = _seen(record)
    return [
        Path(record.model).name,
        _step(record.step),
        f"{record.length_tokens:,}",
        gb(seen.loaded_bytes),
        gb(seen.peak_allocated_bytes),
        gb(seen.peak_reserved_bytes),
        gb(seen.outside_allocator_bytes),
        ", ".join(f"{seconds:.2f}" for seconds in seen.step_seconds),
    ]


def _step(step: StepSetting) -> str:
    words = [f"{step.micro_batch} x {step.accumulation}", f"checkpoints {step.checkpointing}", f"{step.loss} loss"]
    words += [str(step.weights)] if step.weights is not Weights.BF16 else []
    words += [str(step.attention)] if step.attention is not Attention.SDPA else []
    words += [f"adapter {step.adapter.dtype}"] if str(step.adapter.dtype) != "fp32" else []
    words += [str(step.optimizer)] if step.optimizer is not Optimizer.ADAMW else []
    words += ["autocast"] if step.autocast else []
    words += ["clipped"] if step.max_grad_norm is not None else []
    return ", ".join(words)


def _off_a100(row: dict[str, str], record: ProbeRecord) -> list[str]:
    seen = record.measurement
    if seen is None or record.state is not ProbeState.COMPLETED or not row["peak_reserved_gb"]:
        return ["-", "-"]
    return [
        f"{seen.peak_allocated_bytes / BYTES_PER_GB / float(row['peak_allocated_gb']) - 1:+.2%}",
        f"{seen.peak_reserved_bytes / BYTES_PER_GB / float(row['peak_reserved_gb']) - 1:+.2%}",
    ]


def _forecast_a100(record: ProbeRecord) -> list[str]:
    """Forecast a training probe with an A100's cuBLAS workspaces, at the A100's capacity."""
    if record.mode is not Mode.TRAIN or record.length_tokens is None:
        return ["-", "-", "-"]
    program = model_program(record.model, load_config(record.model), record.step, [record.length_tokens])
    conditions = Conditions(
        capacity_bytes=capacity_bytes(record, GIVEN_OUTSIDE_BYTES.get(record.flavour)),
        workspace_bytes=cublas_workspace_bytes("8.0"),
    )
    replay = Replayer(program).steady(record.length_tokens, accumulation=1, conditions=conditions)
    end = f"runs, {replay.retries} retries" if replay.failure is None else f"dies in {replay.failure.moment.phase}"
    return [gb(replay.peak_allocated_bytes), gb(replay.peak_reserved_bytes), end]


def _outcome_row(check: OutcomeCheck) -> list[str]:
    record: ProbeRecord = check.record
    freed = [
        int(n.replace(",", ""))
        for n in re.findall(r"([\d,]+) bytes of the device were free, ([\d,]+)", record.detail or "")[0]
    ]
    prune, failure = record.prune, check.failure
    items = f"{len(record.item_tokens)} items"
    asked = prune.requested_bytes if prune else None
    return [
        record.flavour,
        f"{items if record.item_tokens else f'{record.length_tokens:,} tokens'}, {record.step.checkpointing}",
        gb(check.capacity_bytes),
        f"{prune.phase}{f', item {prune.item}' if record.item_tokens else ''}" if prune else "-",
        gb(asked),
        f"{failure.moment.phase}{f', item {failure.moment.item}' if record.item_tokens else ''}" if failure else "runs",
        gb(failure.requested_bytes if failure else None),
        f"{freed[0]:,}",
        f"{freed[1]:,}",
        f"{(freed[1] - freed[0]) / 2**20:.0f}",
    ]
