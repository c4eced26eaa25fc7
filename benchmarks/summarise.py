"""Write what the reference measurements show, as Markdown: every number is computed from their files. No GPU.

    python3 -m benchmarks.summarise artifacts/reference > summary.md

Forecasts are made anew with the packages that are installed, a trace for each cell.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.markdown import BYTES_PER_GB, gb, table
from benchmarks.summary_cells import a100, emulated_forecasts, families, families_not_forecast
from benchmarks.summary_times import data_probes, first_items, projected_runs
from raysweep.probe.versions import MEMORY_VARIABLES
from raysweep.records import ProbeRecord, ProbeState
from raysweep.store import Artifact


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the summary and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("reference", type=Path, help="the folder of the reference measurements")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)
    folder: Path = options.reference
    parts = (
        machine,
        families,
        families_not_forecast,
        a100,
        hybrid,
        emulated,
        emulated_forecasts,
        two_gpus,
        varied,
        first_items,
        data_probes,
        projected_runs,
    )
    for part in parts:
        sys.stdout.write("\n".join(part(folder)) + "\n\n")
    return 0


def machine(folder: Path) -> Iterator[str]:
    """Devices, versions and times, from the records."""
    records = [r for path in sorted(folder.rglob("probes.parquet")) for r in Artifact.open(path.parent).records()]
    settings = {"weights_from", *MEMORY_VARIABLES}
    versions = {name: version for r in records for name, version in r.versions.items() if name not in settings}
    begun = [r.started_at for r in records]
    yield "## Machine"
    yield ""
    yield f"- Device: {', '.join(sorted({r.device_name for r in records}))}, "
    yield f"  {', '.join(f'{b:,}' for b in sorted({r.device_memory_bytes for r in records}))} bytes as torch has it."
    yield f"- Software: {', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}."
    yield f"- {len(records)} probes, begun {min(begun):%Y-%m-%d %H:%M} to {max(begun):%Y-%m-%d %H:%M} UTC."


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
                gb(seen.peak_allocated_bytes),
                f"{seen.peak_allocated_bytes / BYTES_PER_GB / estimate - 1:+.0%}",
                gb(seen.peak_reserved_bytes),
                f"{seen.peak_reserved_bytes / BYTES_PER_GB / estimate - 1:+.0%}",
                gb(seen.outside_allocator_bytes),
                gb(seen.host_bytes),
                f"{seen.first_step_seconds[0]:.1f}",
                f"{seen.step_seconds[0]:.2f}",
            ]
        )
    yield "## hybrid-27b: measured beside the estimate by hand (numerics invalid, memory and time real)"
    yield ""
    yield from table(
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
        span = (max(map(ended_at, own)) - min(r.started_at for r in own)).total_seconds()
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
    whole = (max(map(ended_at, records)) - min(r.started_at for r in records)).total_seconds()
    yield f"From the first probe's begin to the last one's end {whole:.0f} s, starting three sessions in it. "
    yield "*Steps* are all that were timed, warm-up included; a probe that runs out of memory has none."
    yield ""
    yield from table(
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
    yield from table(
        ["session", "flavour", "tokens", "begun", "s", "ended", "reserved GB"],
        [
            [
                r.session_id,
                r.flavour,
                f"{r.length_tokens:,}",
                f"{r.started_at:%H:%M:%S.%f}"[:-3],
                f"{r.probe_seconds:.1f}",
                str(r.state),
                gb(r.measurement.peak_reserved_bytes if r.measurement else None),
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
            [run["name"], str(len(run["plan"]["lengths"])), gb(run["cap_bytes"])]
            + [cell for ahead, seen in pairs for cell in (gb(seen), gb(ahead), f"{ahead / seen - 1:+.2%}")]
            + [f"item {died['item']}" if died else run["ended"]]
            + ["finishes" if told["fails_at_item"] is None else f"item {told['fails_at_item']}"]
            + [str(run["retries"]), str(told["retries"])]
        )
    yield "## varied-runs.jsonl: each run beside the forecast made before it"
    yield ""
    yield from table(
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


def _step_seconds(record: ProbeRecord) -> float:
    seen = record.measurement
    return sum(seen.first_step_seconds) + sum(seen.step_seconds) if seen else 0.0


def ended_at(record: ProbeRecord) -> datetime:
    """Return when a probe ended."""
    return record.started_at + timedelta(seconds=record.probe_seconds)


def _overlap(sessions: Sequence[Sequence[ProbeRecord]]) -> float:
    """Seconds in which probes of the first two sessions ran at once."""
    first, second = sessions[:2]
    common = (
        (min(ended_at(a), ended_at(b)) - max(a.started_at, b.started_at)).total_seconds() for a in first for b in second
    )
    return sum(max(0.0, seconds) for seconds in common)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f")


if __name__ == "__main__":
    sys.exit(main())
