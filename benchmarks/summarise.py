"""Write what the reference measurements show, as Markdown: every number is computed from their files. No GPU.

    python3 -m benchmarks.summarise artifacts/reference > summary.md

Forecasts are made anew with the packages that are installed, a trace for each cell.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from raysweep.decision.verification import PeakCheck, Verification, capacity_bytes, needed_lengths, verify
from raysweep.memory.replay import Conditions, Replayer, cublas_workspace_bytes
from raysweep.records import Mode, ProbeRecord, ProbeState
from raysweep.setting import AllocatorSetting, Attention, StepSetting, Weights
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.trace import kept
from raysweep.trace.build import model_program

GIVEN_OUTSIDE_BYTES = {"lab/a100-40": 550_000_000, "lab/a100-pcie-40gb": 550_000_000}
"""As the spaces of the measurements give it; for other flavours the probes' own device counted."""
H200 = {"NVIDIA H200": "9.0"}
GB = 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("reference", type=Path, help="the folder of the reference measurements")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    folder: Path = options.reference
    for part in (machine, families, a100, hybrid, emulated, two_gpus, varied):
        sys.stdout.write("\n".join(part(folder)) + "\n\n")
    return 0


def machine(folder: Path) -> Iterator[str]:
    """Devices, versions and times, from the records."""
    records = [r for path in sorted(folder.rglob("probes.parquet")) for r in Artifact.open(path.parent).records()]
    versions = {name: version for r in records for name, version in r.versions.items()}
    begun = [r.started_at for r in records]
    yield "## Machine"
    yield ""
    yield f"- Device: {', '.join(sorted({r.device_name for r in records}))}, "
    yield f"  {', '.join(f'{b:,}' for b in sorted({r.device_memory_bytes for r in records}))} bytes as torch has it."
    yield f"- Software: {', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}."
    yield f"- {len(records)} probes, begun {min(begun):%Y-%m-%d %H:%M} to {max(begun):%H:%M} UTC."


def families(folder: Path) -> Iterator[str]:
    """Every cell of every family: both peaks, forecast against measured."""
    checks = [c for path in sorted((folder / "families").iterdir()) for c in _verified(path).peaks]
    plain = [c for c in checks if not _hangs(c)]
    hanging = [c for c in checks if _hangs(c)]
    yield "## families: forecast against measured"
    yield ""
    yield f"{len(checks)} cells. Allocated: all within {_worst(c.allocated_error_share for c in checks)}. Reserved: "
    yield f"the {len(plain)} cells of bf16 weights and SDPA within {_worst(c.reserved_error_share for c in plain)}; of "
    yield f"the {len(hanging)} of fp32 weights or eager attention {sum(c.reserved_beyond_share == 0 for c in hanging)} "
    yield "lie within the forecast's range, and the others at most "
    yield f"{_worst(c.reserved_beyond_share for c in hanging)} beyond it."
    yield ""
    yield from _table(
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


def a100(folder: Path) -> Iterator[str]:
    """The A100's own table beside a capped H200, and beside a forecast with an A100's workspaces."""
    with (folder / "a100-40gb-probe.csv").open(encoding="utf-8") as file:
        theirs = list(csv.DictReader(file))
    records = Artifact.open(folder / "a100-table").records()
    rows = []
    for row, record in zip(theirs, records, strict=True):
        seen = record.measurement
        own = f"rank {row['rank'] or '-'}, {row['length_tokens']} tokens, {row['mode']}"
        given = [row["peak_allocated_gb"], row["peak_reserved_gb"] or "-"]
        if seen is None:
            raise ValueError(f"{record.probe_id}: a probe without a measurement")
        died = record.prune
        ours = [_gb(seen.peak_allocated_bytes), _gb(seen.peak_reserved_bytes)]
        if died:
            ours = [
                f"out of memory in {died.phase} (reached {ours[0]})",
                f"{ours[1]}, {seen.allocation_retries} retries",
            ]
        rows.append([own, *given, *ours, *_off_a100(row, record), *_forecast_a100(record)])
    yield "## a100-table: an A100's own measurements beside a capped H200"
    yield ""
    yield from _table(
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


def hybrid(folder: Path) -> Iterator[str]:
    """The hybrid 27B beside the estimate by hand."""
    with (folder / "qwen3.5-27b-hand-estimate.csv").open(encoding="utf-8") as file:
        hand = {(r["length_tokens"], r["checkpointing"], r["loss"]): r for r in csv.DictReader(file)}
    rows = []
    for record in Artifact.open(folder / "hybrid-27b").records():
        seen, step = record.measurement, record.step
        guess = hand[str(record.length_tokens), str(step.checkpointing), str(step.loss)]
        if seen is None:
            continue
        estimate = float(guess["estimated_peak_gb"])
        rows.append(
            [
                f"{record.length_tokens:,}",
                f"{step.checkpointing}, {step.loss}",
                f"{estimate:.0f}",
                _gb(seen.peak_allocated_bytes),
                f"{seen.peak_allocated_bytes / GB / estimate - 1:+.0%}",
                _gb(seen.peak_reserved_bytes),
                f"{seen.peak_reserved_bytes / GB / estimate - 1:+.0%}",
                _gb(seen.outside_allocator_bytes),
                _gb(seen.host_bytes),
                f"{seen.first_step_seconds[0]:.1f}",
                f"{seen.step_seconds[0]:.2f}",
            ]
        )
    yield "## hybrid-27b: measured beside the estimate by hand (numerics invalid, memory and time real)"
    yield ""
    yield from _table(
        [
            "tokens",
            "checkpointing, loss",
            "estimate GB",
            "allocated, measured GB",
            "to estimate",
            "reserved GB",
            "to estimate",
            "outside the allocator GB",
            "host GB",
            "first step s",
            "next step s",
        ],
        rows,
    )


def emulated(folder: Path) -> Iterator[str]:
    """The sweep over three emulated cards: its overhead, what prunes left, where probes landed."""
    records = Artifact.open(folder / "emulated").records()
    yield "## emulated: 24 probes over three cards that one H200 stood for"
    yield ""
    rows = []
    for flavour in dict.fromkeys(r.flavour for r in records):
        own = [r for r in records if r.flavour == flavour]
        wall, steps = sum(r.probe_seconds for r in own), sum(map(_step_seconds, own))
        loading = sum(r.load_seconds or 0 for r in own)
        span = (max(map(_end, own)) - min(r.started_at for r in own)).total_seconds()
        states = ", ".join(
            f"{sum(r.state is s for r in own)} {s}" for s in ProbeState if any(r.state is s for r in own)
        )
        rows.append(
            [
                flavour,
                str(len(own)),
                states,
                f"{span:.1f}",
                f"{wall:.1f}",
                f"{loading:.1f}",
                f"{steps:.1f}",
                f"{(span - wall) / len(own):.2f}",
                f"{(wall - loading - steps) / len(own):.2f}",
            ]
        )
    whole = (max(map(_end, records)) - min(r.started_at for r in records)).total_seconds()
    yield f"From the first probe's begin to the last one's end {whole:.0f} s, starting three sessions in it. "
    yield "*Steps* are all that were timed, warm-up included; a probe that runs out of memory has none."
    yield ""
    yield from _table(
        [
            "flavour",
            "probes",
            "ended",
            "session s",
            "in probes s",
            "loading s",
            "steps s",
            "between two probes s",
            "within a probe, beside loading and steps s",
        ],
        rows,
    )
    yield ""
    checks = _verified(folder / "emulated")
    yield f"Forecast: {len(checks.peaks)} completed probes, allocated within "
    yield f"{_worst(c.allocated_error_share for c in checks.peaks)}, reserved within "
    yield f"{_worst(c.reserved_error_share for c in checks.peaks)}; of {len(checks.outcomes)} that ran out of memory "
    yield f"{sum(c.agrees for c in checks.outcomes)} are forecast to:"
    yield ""
    yield from _table(
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


def two_gpus(folder: Path) -> Iterator[str]:
    """Two sessions at once: what both GPUs held, and when."""
    records = Artifact.open(folder / "two-gpus").records()
    with (folder / "two-gpus" / "gpus.csv").open(encoding="utf-8") as file:
        samples = [(t.strip(), int(gpu), int(used.split()[0])) for t, gpu, used in csv.reader(file)]
    used: dict[str, dict[int, int]] = {}
    for at, gpu, mib in samples:
        # The two GPUs of one sample may be stamped some milliseconds apart.
        moments = [m for m in list(used)[-2:] if abs(_moment(m) - _moment(at)) < timedelta(milliseconds=200)]
        used.setdefault(moments[0] if moments else at, {})[gpu] = mib
    busy = [at for at, by_gpu in used.items() if len(by_gpu) == 2 and min(by_gpu.values()) > 2000]
    peaks = {gpu: max(mib for _, g, mib in samples if g == gpu) for gpu in sorted({g for _, g, _ in samples})}
    overlap = _overlap([[r for r in records if r.session_id == s] for s in sorted({r.session_id for r in records})])
    yield "## two-gpus: two sessions at once"
    yield ""
    yield f"{len(records)} probes in {len({r.session_id for r in records})} sessions; both had a probe running for "
    yield f"{overlap:.1f} s in all. Of {len(used)} samples of nvidia-smi, {len(busy)} show more than 2,000 MiB used on "
    yield f"both GPUs at once, {busy[0] if busy else '-'} to {busy[-1] if busy else '-'}. Most used: "
    yield ", ".join(f"GPU {gpu} {mib:,} MiB" for gpu, mib in peaks.items()) + "."
    yield ""
    yield from _table(
        ["session", "flavour", "tokens", "begun", "s", "ended", "reserved GB"],
        [
            [
                r.session_id,
                r.flavour,
                f"{r.length_tokens:,}",
                f"{r.started_at:%H:%M:%S.%f}"[:-3],
                f"{r.probe_seconds:.1f}",
                str(r.state),
                _gb(r.measurement.peak_reserved_bytes if r.measurement else None),
            ]
            for r in sorted(records, key=lambda r: r.started_at)
        ],
    )


def varied(folder: Path) -> Iterator[str]:
    """Runs of items of varied length beside what was forecast for each before it ran."""
    rows = []
    for line in (folder / "varied-runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        told = run["plan"]["forecast"]
        died = run.get("died")
        pairs = [(told[f"peak_{k}_bytes"], run[f"peak_{k}_bytes"]) for k in ("allocated", "reserved")]
        rows.append(
            [run["name"], str(len(run["plan"]["lengths"])), _gb(run["cap_bytes"])]
            + [cell for ahead, seen in pairs for cell in (_gb(seen), _gb(ahead), f"{ahead / seen - 1:+.2%}")]
            + [f"item {died['item']}" if died else run["ended"]]
            + ["finishes" if told["fails_at_item"] is None else f"item {told['fails_at_item']}"]
            + [str(run["retries"]), str(told["retries"])]
        )
    yield "## varied-runs.jsonl: each run beside the forecast made before it"
    yield ""
    yield from _table(
        [
            "run",
            "items",
            "cap GB",
            "allocated GB",
            "forecast GB",
            "off",
            "reserved GB",
            "forecast GB",
            "off",
            "measured: died at",
            "forecast: dies at",
            "retries",
            "forecast",
        ],
        rows,
    )


def _verified(path: Path) -> Verification:
    records = Artifact.open(path).records()
    programs = {}
    for step, lengths in needed_lengths(records).items():
        config = load_config(records[0].model)
        key = kept.program_key(config, step, lengths)
        program = kept.load(key)
        if program is None:
            program = model_program(records[0].model, config, step, lengths)
            kept.keep(key, program)
        programs[step] = program
    allocator = AllocatorSetting()
    return verify(records, programs, allocator, capabilities=H200, outside_bytes=GIVEN_OUTSIDE_BYTES)


def _hangs(check: PeakCheck) -> bool:
    return check.record.step.weights is Weights.FP32 or check.record.step.attention is Attention.EAGER


def _cell_row(check: PeakCheck) -> list[str]:
    record = check.record
    low, high = check.forecast_reserved_range_bytes or (check.forecast_reserved_bytes,) * 2
    return [
        Path(record.model).name,
        _step(record.step),
        f"{record.length_tokens:,}",
        _gb(check.measured_allocated_bytes),
        _gb(check.forecast_allocated_bytes),
        f"{check.allocated_error_share:+.3%}",
        _gb(check.measured_reserved_bytes),
        _gb(check.forecast_reserved_bytes),
        f"{check.reserved_error_share:+.3%}",
        f"{_gb(low)} to {_gb(high)}",
    ]


def _step(step: StepSetting) -> str:
    words = [f"{step.micro_batch} x {step.accumulation}", f"checkpoints {step.checkpointing}", f"{step.loss} loss"]
    words += [str(step.weights)] if step.weights is not Weights.BF16 else []
    words += [str(step.attention)] if step.attention is not Attention.SDPA else []
    words += [f"adapter {step.adapter.dtype}"] if str(step.adapter.dtype) != "fp32" else []
    words += ["clipped"] if step.max_grad_norm is not None else []
    return ", ".join(words)


def _off_a100(row: dict[str, str], record: ProbeRecord) -> list[str]:
    seen = record.measurement
    if seen is None or record.state is not ProbeState.COMPLETED or not row["peak_reserved_gb"]:
        return ["-", "-"]
    return [
        f"{seen.peak_allocated_bytes / GB / float(row['peak_allocated_gb']) - 1:+.2%}",
        f"{seen.peak_reserved_bytes / GB / float(row['peak_reserved_gb']) - 1:+.2%}",
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
    return [_gb(replay.peak_allocated_bytes), _gb(replay.peak_reserved_bytes), end]


def _outcome_row(check: Any) -> list[str]:
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
        _gb(check.capacity_bytes),
        f"{prune.phase}{f', item {prune.item}' if record.item_tokens else ''}" if prune else "-",
        _gb(asked),
        f"{failure.moment.phase}{f', item {failure.moment.item}' if record.item_tokens else ''}" if failure else "runs",
        _gb(failure.requested_bytes if failure else None),
        f"{freed[0]:,}",
        f"{freed[1]:,}",
        f"{(freed[1] - freed[0]) / 2**20:.0f}",
    ]


def _step_seconds(record: ProbeRecord) -> float:
    seen = record.measurement
    return sum(seen.first_step_seconds) + sum(seen.step_seconds) if seen else 0.0


def _end(record: ProbeRecord) -> datetime:
    return record.started_at + timedelta(seconds=record.probe_seconds)


def _overlap(sessions: Sequence[Sequence[ProbeRecord]]) -> float:
    """Seconds in which probes of the first two sessions ran at once."""
    first, second = sessions[:2]
    common = ((min(_end(a), _end(b)) - max(a.started_at, b.started_at)).total_seconds() for a in first for b in second)
    return sum(max(0.0, seconds) for seconds in common)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f")


def _worst(shares: Iterable[float]) -> str:
    return f"{max((abs(share) for share in shares), default=0.0):.2%}"


def _gb(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / GB:.3f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())
