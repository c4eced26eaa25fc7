"""What ``raysweep sweep`` leaves in its artifact besides probes, and what later commands make of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.cli.sweep_job import SweepJob
from raysweep.records import Measurement, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting
from raysweep.store import Artifact, SweepStatus
from raysweep.sweep import SweepSummary

SPACE = "model: qwen2.5-7b\nlengths: [1024, 2048]\nflavours: [lab/h100]\n"
PRICES = "flavour,gpu_id,gpu_count,price_usd_per_hour\nlab/h100,h100-sxm,1,2.0\n"


def _probe(length_tokens: int) -> ProbeRecord:
    return ProbeRecord(
        probe_id=str(length_tokens),
        sweep_id="s",
        session_id="t",
        source=Source.MEASURED,
        model="qwen2.5-7b",
        step=StepSetting(),
        flavour="lab/h100",
        length_tokens=length_tokens,
        state=ProbeState.COMPLETED,
        measurement=Measurement(
            peak_allocated_bytes=20 * 10**9,
            peak_reserved_bytes=21 * 10**9,
            step_seconds=(1.0,),
            tokens_per_second=float(length_tokens),
        ),
        device_name="NVIDIA H100",
        device_memory_bytes=85_000_000_000,
        started_at=datetime(2026, 9, 1, tzinfo=UTC),
        probe_seconds=1.0,
    )


def _ending(lengths: tuple[int, ...], end: Callable[[], SweepSummary]) -> Callable[..., SweepSummary]:
    """Return a run that keeps probes of these lengths, and then ends so."""

    def run(job: SweepJob, artifact: Artifact, programs: object, **options: Any) -> SweepSummary:
        for length in lengths:
            artifact.append(_probe(length))
        for record in artifact.records():
            job.policy.tell(record)
        return end()

    return run


def _interrupt() -> SweepSummary:
    raise KeyboardInterrupt


def _finish() -> SweepSummary:
    return SweepSummary(
        sweep_id="s", records=(), wall_seconds=1.0, spent_usd=0.0, stopped={}, over_budget=False, trials=()
    )


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SweepJob, "programs", lambda job, kept, *, quiet: {})
    Path("mine.yaml").write_text(SPACE)
    Path("prices.csv").write_text(PRICES)

    def command(lengths: tuple[int, ...], end: Callable[[], SweepSummary], *words: str) -> Result:
        monkeypatch.setattr(SweepJob, "run", _ending(lengths, end))
        sweep = ["sweep", "mine.yaml", "--out", "out", "--device", "simulated", "--prices", "prices.csv", *words]
        return CliRunner().invoke(app, sweep)

    return command


def test_an_interrupted_sweep_says_what_is_kept_and_how_to_go_on(sweep: Callable[..., Result]) -> None:
    result = sweep((1024,), _interrupt)
    assert result.exit_code == Exit.INTERRUPTED, result.output
    again = "raysweep sweep mine.yaml --out out --device simulated --prices prices.csv --resume"
    assert f"Interrupted. 1 of at most 2 probes are kept in out. Go on with: {again}\n" in result.stderr
    kept = Artifact.open("out").sweep_status()
    assert kept == SweepStatus(resume=again, probes_at_most=2, probes_left=1)
    chosen = CliRunner().invoke(app, ["choose", "out"]).stdout
    assert "up to 1 of its 2 probes are missing" in chosen


def test_a_sweep_that_goes_on_to_its_end_has_nothing_missing(sweep: Callable[..., Result]) -> None:
    sweep((1024,), _interrupt)
    (Path("out") / "programs.parquet").unlink()
    assert sweep((2048,), _finish, "--resume").exit_code == Exit.DONE
    chosen = CliRunner().invoke(app, ["choose", "out"]).stdout
    assert "missing" not in chosen


def test_a_card_of_the_sweeps_own_price_list_is_known_to_the_commands_that_follow(sweep: Callable[..., Result]) -> None:
    assert sweep((1024, 2048), _finish).exit_code == Exit.DONE
    Path("prices.csv").unlink()
    chosen = CliRunner().invoke(app, ["choose", "out"])
    assert chosen.exit_code == Exit.DONE, chosen.output
    assert "2.00 USD an hour" in chosen.stdout


def test_a_price_list_given_now_wins_over_the_sweeps_own(sweep: Callable[..., Result]) -> None:
    sweep((1024, 2048), _finish)
    Path("now.csv").write_text("flavour,price_usd_per_hour\nlab/h100,1.5\n")
    assert "1.50 USD an hour" in CliRunner().invoke(app, ["choose", "out", "--prices", "now.csv"]).stdout


def test_an_artifact_that_lacks_the_list_says_how_to_name_it(sweep: Callable[..., Result]) -> None:
    sweep((1024, 2048), _finish)
    (Path("out") / "prices.csv").unlink()
    refused = CliRunner().invoke(app, ["choose", "out"])
    assert refused.exit_code == Exit.BAD_INPUT
    assert "name that list with --prices FILE" in refused.stderr
