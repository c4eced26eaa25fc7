"""``raysweep project`` beyond a training run's plain projection: a run under way, generations."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.data import Items
from raysweep.decision.items import items_table
from raysweep.records import Measurement, Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting
from raysweep.store import Artifact

TRAIN = "model: qwen2.5-7b\nlengths: [1024]\nflavours: [hf/h200]\ndata: {items: tokens.jsonl}\n"
GENERATE = "model: qwen2.5-7b\nmode: generate\nprompt_tokens: 64\nnew_tokens: 64\nflavours: [hf/h200]\n"


@pytest.fixture(autouse=True)
def _no_refreshed_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def _probe(**changes: Any) -> ProbeRecord:
    """One second a step of 1,024 tokens, or a generation; measured."""
    seen = Measurement(
        peak_allocated_bytes=20 * 10**9, peak_reserved_bytes=21 * 10**9, step_seconds=(1.0,), tokens_per_second=1024.0
    )
    values: dict[str, Any] = {
        "probe_id": "p",
        "sweep_id": "s",
        "session_id": "t",
        "source": Source.MEASURED,
        "model": "qwen2.5-7b",
        "step": StepSetting(),
        "flavour": "hf/h200",
        "length_tokens": None,
        "state": ProbeState.COMPLETED,
        "measurement": seen,
        "device_name": "NVIDIA H200",
        "device_memory_bytes": 150_109_880_320,
        "started_at": datetime(2026, 9, 1, tzinfo=UTC),
        "probe_seconds": 1.0,
        **changes,
    }
    return ProbeRecord(**values)


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A run of 100 optimizer steps, of a second each as projected."""
    artifact = Artifact.create(tmp_path / "training", TRAIN)
    artifact.append(_probe(length_tokens=1024))
    artifact.write_items(items_table({"data": Items.of([1024] * 100)}))
    return tmp_path / "training"


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    artifact = Artifact.create(tmp_path / "generation", GENERATE)
    artifact.append(_probe(mode=Mode.GENERATE, prompt_tokens=64, new_tokens=64))
    return tmp_path / "generation"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A Trainer's output folder: 1.5 s a step so far."""
    for step in (10, 20, 30, 40):
        file = tmp_path / "output" / f"checkpoint-{step}" / "trainer_state.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"global_step": step, "max_steps": 100, "log_history": []}))
        os.utime(file, (1e9 + 1.5 * step, 1e9 + 1.5 * step))
    return tmp_path / "output"


def test_a_run_under_way_is_projected_again_from_its_checkpoints(training: Path, output: Path) -> None:
    data = json.loads(_run("project", training, "--from-log", output, "--json").stdout)
    found = data["calibration"]
    assert found["seen_seconds"] == pytest.approx(45)
    assert found["ratio"] == pytest.approx(1.5)
    assert found["within_range"] is False
    assert found["done_share"] == pytest.approx(0.4)
    assert found["remaining_seconds"]["expected"] == pytest.approx(90)
    assert found["hours"]["expected"] == pytest.approx(150 / 3600)
    assert found["remaining_cost_usd"]["expected"] == pytest.approx(
        data["chosen"]["cost_usd"]["expected"] * 0.9, rel=0.01
    )


def test_the_page_of_a_run_under_way_begins_with_what_it_showed(training: Path, output: Path) -> None:
    result = _run("project", training, "--from-log", output / "checkpoint-10" / "trainer_state.json")
    assert result.exit_code == Exit.DONE, result.output
    text = " ".join(result.stdout.split())
    assert "so it was off 50.0% slower than projected; outside its range" in text
    assert "30 optimizer steps between 4 checkpoints" in text


def test_an_empty_log_is_not_taken_for_this_folder(
    training: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(output)
    result = _run("project", training, "--from-log", "")
    assert result.exit_code == Exit.BAD_INPUT
    assert "Error: --from-log: expected" in result.stderr


def test_a_log_that_tells_no_time_is_refused_with_what_to_give(training: Path, tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text(json.dumps({"global_step": 5, "log_history": [{"loss": 1.0, "step": 5}]}))
    result = _run("project", training, "--from-log", file)
    assert result.exit_code == Exit.BAD_INPUT
    assert "Give the Trainer's output folder once it has 3 checkpoints" in result.stderr


def test_generations_are_projected_by_the_thousand_without_data(generation: Path) -> None:
    result = _run("project", generation)
    assert result.exit_code == Exit.DONE, result.output
    text = " ".join(result.stdout.split())
    assert "1,000 generations of 64 tokens after a prompt of 64" in text
    assert "time 16.7 min" in text
    data = json.loads(_run("project", generation, "--json").stdout)
    assert data["chosen"]["hours"]["expected"] == pytest.approx(1000 / 3600)
    assert data["chosen"]["time_source"] == "measured"


def test_a_run_under_way_is_held_against_the_flavour_that_it_is_on(tmp_path: Path, output: Path) -> None:
    artifact = Artifact.create(tmp_path / "two", TRAIN.replace("[hf/h200]", "[hf/h200, hf/a100-large]"))
    artifact.append(_probe(length_tokens=1024))
    other = {"flavour": "hf/a100-large", "device_name": "NVIDIA A100-SXM4-80GB", "device_memory_bytes": 85_000_000_000}
    artifact.append(_probe(length_tokens=1024, probe_id="q", session_id="u", **other))
    artifact.write_items(items_table({"data": Items.of([1024] * 100)}))
    for flavour in ("hf/h200", "hf/a100-large"):
        result = _run("project", tmp_path / "two", "--from-log", output, "--flavour", flavour, "--json")
        assert json.loads(result.stdout)["calibration"]["flavour"] == flavour


@pytest.mark.parametrize(
    ("command", "option"),
    [("project", name) for name in ("--data", "--scale", "--from-log", "--lengths")]
    + [("choose", "--data"), ("choose", "--lengths")],
)
def test_generations_have_neither_data_nor_lengths_nor_a_training_log(
    command: str, option: str, generation: Path
) -> None:
    result = _run(command, generation, option, "x=2")
    assert result.exit_code == Exit.BAD_INPUT
    assert result.stderr.startswith(f"Error: {option}: expected none") and "mode generate" in result.stderr


def test_generations_that_nothing_measured_are_a_negative_answer(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "none", GENERATE)
    artifact.append(_probe(mode=Mode.GENERATE, prompt_tokens=64, new_tokens=64, flavour="hf/l40sx1"))
    result = _run("project", tmp_path / "none", "--margin", "95%")
    assert result.exit_code == Exit.NEGATIVE
    assert "Nothing fits" in result.stdout
