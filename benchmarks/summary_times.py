"""What short probes say of the seconds of whole runs, beside what the runs took, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.projected_run import RUN_FILE, projected
from cost.catalogue import Catalogue
from cost.evidence import Evidence
from cost.throughput import TimeModel, Work, micro_step_timings
from cost.time_fit import fit
from raysweep.decision.findings import gather
from raysweep.decision.times import time_model
from raysweep.search.cell import SAMPLE_MICRO_STEPS
from raysweep.store import Artifact

TERM_COLUMNS = ["floor s", "s a 1,000 tokens", "s a 1,000 squared", "new length s", "optimizer step s", "noise"]


def data_probes(folder: Path) -> Iterator[str]:
    """The time model of each sweep of one fixed length and a sample of the data's own items."""
    flavour = Catalogue.load().flavour("hf/h200")
    rows = []
    for path in sorted((folder / "data-probes").iterdir()):
        records = Artifact.open(path).records()
        model = time_model(records, flavour, records[0].step, ())
        if model is None:
            raise ValueError(f"{path}: no probe timed anything")
        sample = next(record for record in records if record.item_tokens)
        rows.append([path.name, f"{len(sample.item_tokens)} items", *_terms(model), f"{model.one_off_seconds:.1f}"])
    yield "## data-probes: seconds of a micro-step, fitted"
    yield ""
    yield from table(["sweep", "sample", *TERM_COLUMNS, "one-off steps s"], rows)


def first_items(folder: Path) -> Iterator[str]:
    """The varied runs of 220 and 400 items, each projected from its own first ones."""
    lines = (folder / "varied-runs.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [_first_items_row(run) for run in map(json.loads, lines) if run["ended"] == "finished"]
    yield "### Their seconds, projected from their own first items"
    yield ""
    yield f"Items 2 to {SAMPLE_MICRO_STEPS + 1} project the rest; the first loads libraries. Micro-steps alone."
    yield ""
    columns = ["run", "items", "projected s", "range s", "true s", "off", "in the range"]
    yield from table(columns, rows)


def projected_runs(folder: Path) -> Iterator[str]:
    """Whole runs beside what sweeps of theirs projected before they began."""
    rows = []
    for path in sorted((folder / "projected").glob(f"*/{RUN_FILE}")):
        played = json.loads(path.read_text(encoding="utf-8"))
        run, before = played["run"], played["projected_before"]["training"]["expected"]
        found = projected(gather([Artifact.open(path.parent)]))
        rows.append(
            [
                path.parent.name,
                f"{run['items']:,}",
                f"{found.probes:.1f}",
                f"{found.probes / run['run_seconds']:.1%}",
                *_beside(found.training.expected, found.training.low, found.training.high, run["run_seconds"]),
                f"{before:.1f} ({before / run['run_seconds'] - 1:+.1%})",
            ]
        )
    if rows:
        yield "## projected: whole runs beside their projections"
        yield ""
        columns = ["run", "items", "probes s", "of the run", "projected s", "range s", "true s", "off", "in the range"]
        yield from table([*columns, "as projected before the run"], rows)


def _first_items_row(run: dict[str, Any]) -> list[str]:
    timings = micro_step_timings(run["micro_step_tokens"], run["micro_step_seconds"])
    sample, rest = timings[1 : SAMPLE_MICRO_STEPS + 1], timings[SAMPLE_MICRO_STEPS + 1 :]
    model = fit(sample, evidence=Evidence.MEASURED, optimizer_step_seconds=0.0)
    seconds = model.seconds(Work.total(timing.work for timing in rest))
    true_seconds = sum(timing.seconds for timing in rest)
    return [run["name"], f"{run['items']}", *_beside(seconds.expected, seconds.low, seconds.high, true_seconds)]


def _beside(expected: float, low: float, high: float, true_seconds: float) -> list[str]:
    inside = low <= true_seconds <= high
    return [
        f"{expected:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{true_seconds:.1f}",
        f"{expected / true_seconds - 1:+.1%}",
        "yes" if inside else "no",
    ]


def _terms(model: TimeModel) -> list[str]:
    floor, linear, quadratic, new_length, optimizer_step = model.coefficients
    return [
        f"{floor:.3f}",
        f"{linear * 1e3:.4f}",
        f"{quadratic * 1e6:.5f}",
        f"{new_length:.3f}",
        f"{optimizer_step:.4f}",
        f"{model.noise_share:.0%}",
    ]
