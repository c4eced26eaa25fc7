"""``--data`` on a run of several stages: each file is of a stage, and what is not given is the artifact's own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.cli.options import read_data
from raysweep.data import Items
from raysweep.decision.items import items_table
from raysweep.records import Measurement, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting
from raysweep.space import parse_space
from raysweep.store import Artifact

ONE = "model: qwen2.5-7b\nlengths: [1024]\nflavours: [hf/h200]\ndata: {items: tokens.jsonl, epochs: 3}\n"
TWO = ONE.split("data:", maxsplit=1)[0] + (
    "data: {stages: [{name: stage1, items: a.jsonl, epochs: 2}, {name: stage2, items: b.jsonl, epochs: 3}]}\n"
)


@pytest.fixture(autouse=True)
def _no_refreshed_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def _artifact(folder: Path, text: str, items: dict[str, Items]) -> Path:
    """One measured probe, of a second a step of 1,024 tokens."""
    artifact = Artifact.create(folder, text)
    seen = Measurement(
        peak_allocated_bytes=20 * 10**9, peak_reserved_bytes=21 * 10**9, step_seconds=(1.0,), tokens_per_second=1024.0
    )
    probe = ProbeRecord(
        probe_id="p",
        sweep_id="s",
        session_id="t",
        source=Source.MEASURED,
        model="qwen2.5-7b",
        step=StepSetting(),
        flavour="hf/h200",
        length_tokens=1024,
        state=ProbeState.COMPLETED,
        measurement=seen,
        device_name="NVIDIA H200",
        device_memory_bytes=150_109_880_320,
        started_at=datetime(2026, 9, 1, tzinfo=UTC),
        probe_seconds=1.0,
    )
    artifact.append(probe)
    artifact.write_items(items_table(items))
    return folder


@pytest.fixture
def two(tmp_path: Path) -> Path:
    items = {"stage1": Items.of([1000] * 10), "stage2": Items.of([1000] * 20)}
    return _artifact(tmp_path / "two", TWO, items)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Five items."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"tokens": 1000}\n' * 5)
    return file


def _stages(artifact: Path, *words: str) -> list[tuple[str, float, float]]:
    """Return name, epochs and items over all epochs of each stage that is projected."""
    result = _run("project", artifact, *words, "--json")
    assert result.exit_code == Exit.DONE, result.stderr
    stages = json.loads(result.stdout)["chosen"]["stages"]
    return [(stage["name"], stage["epochs"], stage["items"]) for stage in stages]


def test_stages_that_are_not_given_are_the_artifacts_own(two: Path, mine: Path) -> None:
    assert _stages(two, "--data", f"stage1={mine}") == [("stage1", 2, 10), ("stage2", 3, 60)]
    assert _stages(two, "--data", f"stage2={mine}") == [("stage1", 2, 20), ("stage2", 3, 15)]


def test_stages_run_in_the_spaces_order_whatever_the_order_of_the_files(mine: Path) -> None:
    given = (f"stage2={mine}", f"stage1={mine}")
    assert list(read_data(given, parse_space(TWO, "s"), tokenizer=None, quiet=True)) == ["stage1", "stage2"]


@pytest.mark.parametrize("command", ["project", "choose"])
@pytest.mark.parametrize("name", ["", "stage3="])
def test_data_of_no_stage_of_several_are_refused(two: Path, mine: Path, command: str, name: str) -> None:
    result = _run(command, two, "--data", f"{name}{mine}")
    assert result.exit_code == Exit.BAD_INPUT
    for words in ("--data: expected STAGE=FILE for stage1, stage2", name.rstrip("=") or "'mine'", "--data stage1=FILE"):
        assert words in result.stderr


def test_a_forecast_refuses_them_too(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "space.yaml").write_text(TWO)
    result = _run("forecast", tmp_path / "space.yaml", "--data", mine)
    assert result.exit_code == Exit.BAD_INPUT
    assert "--data: expected STAGE=FILE for stage1, stage2" in result.stderr


def test_a_file_needs_no_name_for_a_single_stage_and_keeps_its_epochs(tmp_path: Path, mine: Path) -> None:
    artifact = _artifact(tmp_path / "one", ONE, {"data": Items.of([1000] * 10)})
    assert _stages(artifact, "--data", str(mine)) == [("mine", 3, 15)]


def test_a_run_of_several_stages_whose_data_are_not_kept_asks_for_those_of_each(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a", TWO, {"stage1": Items.of([1024]), "stage2": Items.of([1024])})
    (artifact / "items.parquet").unlink()
    result = _run("project", artifact)
    assert result.exit_code == Exit.BAD_INPUT
    assert "it keeps none. Add --data stage1=FILE --data stage2=FILE." in result.stderr
