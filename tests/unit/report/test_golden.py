"""What people read, held to files. After a change that is meant: RAYSWEEP_WRITE_GOLDEN=1 pytest tests/unit/report."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cost.catalogue import Catalogue
from raysweep.data.items import Items
from raysweep.decision.decide import decide
from raysweep.decision.findings import Findings, gather
from raysweep.decision.items import items_table
from raysweep.decision.model import Decision
from raysweep.records import Measurement, ProbeRecord, ProbeState, Prune, Source
from raysweep.report.decision import decision_json, decision_page
from raysweep.report.html import page_html
from raysweep.report.page import Page
from raysweep.report.projection import projection_json, projection_page
from raysweep.report.sweep import SweepResult, result_json, result_page
from raysweep.report.text import page_text
from raysweep.report.whole import whole_page
from raysweep.space import parse_space
from raysweep.store import Artifact

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
SPACE = """
model: qwen2.5-7b
step: {accumulation: 2, loss: {search: [full, chunked]}}
lengths: [4096, 8192]
flavours:
  - {name: lab/small, memory_bytes: 47704965120, price_usd_per_hour: 1.8}
  - {name: lab/large, memory_bytes: 150109880320, price_usd_per_hour: 5, outside_allocator_bytes: 900000000}
data: {items: tokens.jsonl, epochs: 3}
"""


def _records() -> list[ProbeRecord]:
    """Two flavours, two steps, two lengths: full loss at 8,192 tokens dies on the small one."""
    found = []
    for flavour, memory_bytes, speed in (("lab/small", 47_704_965_120, 1.0), ("lab/large", 150_109_880_320, 3.0)):
        for step in parse_space(SPACE, "s").steps:
            for length in (4096, 8192):
                reserved = round(16e9 + length * (4.2e6 if step.loss == "full" else 1.6e6))
                dies = reserved > memory_bytes - 1.3e9
                found.append(
                    ProbeRecord(
                        probe_id=f"{flavour}-{step.loss}-{length}",
                        sweep_id="sweep",
                        session_id=f"session-{flavour}",
                        source=Source.SIMULATED,
                        model="qwen2.5-7b",
                        step=step,
                        flavour=flavour,
                        length_tokens=length,
                        state=ProbeState.PRUNED if dies else ProbeState.COMPLETED,
                        reason="oom" if dies else None,
                        prune=Prune(phase="loss", requested_bytes=4_980_000_000) if dies else None,
                        measurement=Measurement(
                            peak_allocated_bytes=min(reserved, 44 * 10**9) - 10**9,
                            peak_reserved_bytes=min(reserved, 44 * 10**9),
                            step_seconds=() if dies else (2 * length / 2048 / speed,),
                            tokens_per_second=None if dies else 2048.0 * speed,
                        ),
                        price_usd_per_hour=1.8 if flavour == "lab/small" else 5.0,
                        device_name=f"GPU of {flavour}",
                        device_memory_bytes=memory_bytes,
                        versions={"torch": "2.11.0"},
                        started_at=datetime(2026, 9, 1, tzinfo=UTC),
                        probe_seconds=0.5,
                    )
                )
    return found


@pytest.fixture(scope="module")
def findings() -> Findings:
    artifact = Artifact.create("memory://golden-report", SPACE)
    for record in _records():
        artifact.append(record)
    lengths = [512, 1024, 3000, 6000, 9000] * 40
    artifact.write_items(items_table({"data": Items.of(lengths, name="data")}))
    return gather([artifact])


@pytest.fixture(scope="module")
def decision(findings: Findings) -> Decision:
    return decide(findings, Catalogue.load())


def _result() -> SweepResult:
    return SweepResult(
        records=tuple(_records()),
        wall_seconds=12.3,
        overhead_seconds=7.9,
        step_seconds_sum=41.0,
        spent_usd=0.0,
        stopped={"hf/h200x2": "needs a multi-GPU step"},
        over_budget=False,
        out="artifacts/golden",
    )


def _check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("RAYSWEEP_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def _check_page(name: str, page: Page) -> None:
    _check(f"{name}.txt", page_text(page))


def test_a_decision_as_text(decision: Decision) -> None:
    _check_page("decision", decision_page(decision))


def test_a_decision_as_json(decision: Decision) -> None:
    _check("decision.json", json.dumps(_rounded(decision_json(decision)), indent=1) + "\n")


def test_a_projection_as_text(decision: Decision) -> None:
    _check_page("projection", projection_page(decision, slurm_margin_share=0.2))


def test_a_projection_as_json(decision: Decision) -> None:
    data = projection_json(decision, slurm_margin_share=0.2)
    _check("projection.json", json.dumps(_rounded(data), indent=1) + "\n")


def test_a_sweeps_result_as_text() -> None:
    _check_page("sweep", result_page(_result()))


def test_a_sweeps_result_as_json() -> None:
    data = result_json(_result())
    data["probes"] = data["probes"][:2]
    _check("sweep.json", json.dumps(data, indent=1) + "\n")


def test_a_whole_report_as_text_and_html(findings: Findings, decision: Decision) -> None:
    page = whole_page(findings, decision)
    _check_page("whole", page)
    _check("whole.html", page_html(page))


def test_every_number_of_a_decision_says_where_it_comes_from(decision: Decision) -> None:
    text = page_text(decision_page(decision))
    assert "projected from simulated times" in text
    assert "simulated as GPU of lab/" in text
    assert "an allowance, not measured" in text


def test_nothing_that_fits_is_said_in_one_sentence(findings: Findings) -> None:
    nothing = decide(findings, Catalogue.load(), margin_share=0.95)
    text = page_text(decision_page(nothing))
    assert "Nothing fits with a margin of 95%." in text
    assert decision_json(nothing)["chosen"] is None


def _rounded(value: object) -> object:
    """Twelve digits: what sums of floats share on every machine."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value
