"""A run under way against its projection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_decide import CATALOGUE, _artifact, _records

from raysweep.decision.calibration import calibrate, read_log, remaining_seconds
from raysweep.decision.decide import decide
from raysweep.decision.findings import gather
from raysweep.decision.model import Decision
from raysweep.errors import DataError


@pytest.fixture
def decision(tmp_path: Path) -> Decision:
    return decide(gather([_artifact(tmp_path / "a", _records())]), CATALOGUE)


def _jsonl(folder: Path, rows: list[tuple[int, float]]) -> Path:
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps({"tokens": n, "seconds": s}) + "\n" for n, s in rows))
    return file


def test_a_run_twice_as_slow_takes_twice_as_long(decision: Decision, tmp_path: Path) -> None:
    # The A100's probes give 8 s for two micro-steps of 4,096 tokens: here every micro-step takes twice that.
    rows = [(n, 2 * 4 * n / 4096) for n in (1000, 2000, 4000, 8000)] * 100
    calibration = calibrate(decision, read_log(_jsonl(tmp_path, rows)))
    assert calibration.off_share == pytest.approx(1.0, abs=0.05)
    assert decision.chosen is not None and decision.chosen.projection is not None
    ratio = calibration.projection.hours.expected / decision.chosen.projection.hours.expected
    assert ratio == pytest.approx(2.0, rel=0.05)
    assert calibration.projection.evidence == "measured"


def test_the_runs_own_times_give_a_narrow_range(decision: Decision, tmp_path: Path) -> None:
    rows = [(n, 4 * n / 4096 * wobble) for wobble in (0.99, 1.0, 1.01) for n in (1000, 2000, 4000, 8000)]
    hours = calibrate(decision, read_log(_jsonl(tmp_path, rows))).projection.hours
    assert hours.high < 1.1 * hours.expected


def test_a_trainers_state_scales_the_whole_projection(decision: Decision, tmp_path: Path) -> None:
    assert decision.chosen is not None and decision.chosen.projection is not None
    first = decision.chosen.projection
    steps = round(first.work.optimizer_steps / 4)
    seconds = 1.5 * first.training_seconds.expected / 4
    file = tmp_path / "trainer_state.json"
    history = [{"loss": 1.0, "step": 1}, {"train_runtime": seconds, "step": steps}]
    file.write_text(json.dumps({"global_step": steps, "log_history": history}))
    calibration = calibrate(decision, read_log(file))
    assert calibration.off_share == pytest.approx(0.5)
    assert calibration.projection.training_seconds.expected == pytest.approx(1.5 * first.training_seconds.expected)
    assert remaining_seconds(calibration).expected == pytest.approx(3 * seconds)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "is empty"),
        ('{"tokens": 5}\n', ":1: expected"),
        ('{"tokens": 5, "seconds": 1}\n{"tokens": 0, "seconds": 1}\n', ":2: expected"),
        ('{"tokens": 5, "seconds": "1"}\n', ":1: expected"),
        ("tokens 5", ":1: expected"),
        ('{"log_history": [{"loss": 1}]}', "train_runtime"),
        ('{"log_history": [{"train_runtime": 0, "step": 1}]}', "above 0"),
    ],
)
def test_a_log_without_times_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(DataError, match=wanted):
        read_log(file)


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none"):
        read_log(tmp_path / "none")


def test_a_log_nested_without_end_is_refused_by_its_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"log\.jsonl:1: expected"):
        read_log(log)
