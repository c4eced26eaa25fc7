"""A run under way against its projection."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from test_decide import CATALOGUE, _artifact, _records

from cost.errors import CostError
from cost.project import Projection
from cost.stretches import Stretch
from raysweep.decision.calibration import Calibration, calibrate
from raysweep.decision.decide import decide
from raysweep.decision.findings import gather
from raysweep.decision.model import Decision
from raysweep.decision.run_log import MicroStep, RunLog
from raysweep.errors import InputError
from raysweep.report.calibration import calibrated_page, calibration_json
from raysweep.report.projection import projection_page
from raysweep.report.text import page_text


@pytest.fixture(scope="module")
def decision(tmp_path_factory: pytest.TempPathFactory) -> Decision:
    """Two epochs of 200 items, two micro-steps an optimizer step: 200 steps on an A100, from simulated times."""
    return decide(gather([_artifact(tmp_path_factory.mktemp("run") / "a", _records())]), CATALOGUE)


@pytest.fixture(scope="module")
def first(decision: Decision) -> Projection:
    assert decision.chosen is not None and decision.chosen.projection is not None
    assert decision.chosen.projection.work.optimizer_steps == 200
    return decision.chosen.projection


@pytest.fixture(scope="module")
def step_seconds(first: Projection) -> float:
    """Of an average optimizer step, as first projected."""
    return first.training_seconds.expected / 200


def micro_steps(rows: Sequence[tuple[int, float]]) -> RunLog:
    return RunLog(logged="micro-steps", micro_steps=tuple(MicroStep(tokens=n, seconds=s) for n, s in rows))


def stretches(ends: Sequence[int], seconds_a_step: Callable[[int], float], planned: int = 200) -> RunLog:
    parts = pairwise(ends)
    return RunLog(
        logged="steps",
        stretches=tuple(
            Stretch(first_step=a, last_step=b, seconds=seconds_a_step(b) * (b - a) * (1 + 0.01 * (-1) ** b))
            for a, b in parts
        ),
        done_steps=ends[-1],
        planned_steps=planned,
        may_stand_still=True,
    )


def text_of(calibration: Calibration, decision: Decision) -> str:
    first = projection_page(decision, slurm_margin_share=None)
    return " ".join(page_text(calibrated_page(calibration, first, slurm_margin_share=0.2)).split())


def test_a_run_twice_as_slow_takes_twice_as_long(decision: Decision, first: Projection) -> None:
    # The A100's probes give 8 s for two micro-steps of 4,096 tokens: here every micro-step takes twice that.
    rows = [(n, 2 * 4 * n / 4096) for n in (1000, 2000, 4000, 8000)] * 25
    found = calibrate(decision, micro_steps(rows)).result
    assert found.ratio == pytest.approx(2.0, abs=0.05)
    assert found.refitted
    assert found.projection.hours.expected / first.hours.expected == pytest.approx(2.0, rel=0.05)
    assert found.projection.evidence == "measured"
    assert found.done_share == pytest.approx(0.25, abs=0.02)


def test_the_runs_own_times_give_a_narrow_range(decision: Decision) -> None:
    rows = [(n, 4 * n / 4096 * wobble) for wobble in (0.99, 1.0, 1.01) for n in (1000, 2000, 4000, 8000)]
    hours = calibrate(decision, micro_steps(rows)).result.projection.hours
    assert hours.high < 1.1 * hours.expected


def test_the_first_micro_step_which_warms_up_is_done_but_not_timed(decision: Decision) -> None:
    rows = [(n, 4 * n / 4096) for n in (1000, 2000, 4000, 8000)] * 3
    slow = [(rows[0][0], 300.0), *rows[1:]]
    assert calibrate(decision, micro_steps(slow)) == calibrate(decision, micro_steps(rows))


def test_tokens_of_a_micro_step_are_those_of_all_its_items(decision: Decision) -> None:
    assert decision.plan is not None
    rows = [(n, 4 * n / 4096) for n in (1000, 2000, 4000, 8000)] * 3
    twice = replace(decision, plan=replace(decision.plan, micro_batch=2))
    one = calibrate(decision, micro_steps(rows)).result
    two = calibrate(twice, micro_steps([(2 * n, s) for n, s in rows])).result
    assert two.ratio == pytest.approx(one.ratio)


def test_more_micro_steps_than_the_run_has_are_refused(decision: Decision) -> None:
    with pytest.raises(InputError, match="at most the 400 micro-steps of the projection's run; 500 came"):
        calibrate(decision, micro_steps([(1000, 1.0)] * 500))


def test_a_total_scales_the_whole_projection(decision: Decision, first: Projection, step_seconds: float) -> None:
    log = RunLog(
        logged="50 steps", stretches=(Stretch(first_step=0, last_step=50, seconds=75 * step_seconds),), done_steps=50
    )
    found = calibrate(decision, log).result
    assert not found.refitted
    assert found.ratio == pytest.approx(1.5, rel=0.02)  # the first steps meet more new lengths than the average one
    assert found.projection.training_seconds.expected == pytest.approx(found.ratio * first.training_seconds.expected)
    assert found.remaining_seconds.expected == pytest.approx(150 * 1.5 * step_seconds, rel=0.02)
    assert found.remaining_cost is not None
    assert found.remaining_cost.expected == pytest.approx(found.remaining_seconds.expected / 3600 * 2.5)


def test_steps_before_the_first_checkpoint_are_done_though_nothing_timed_them(
    decision: Decision, step_seconds: float
) -> None:
    found = calibrate(decision, stretches([50, 75, 100], lambda _: step_seconds))
    assert found.result.done_share == pytest.approx(0.5, abs=0.01)
    assert found.result.ratio == pytest.approx(1.0, abs=0.02)
    assert found.notes == ()


def test_a_stretch_in_which_the_run_stood_still_is_left_out_and_named(decision: Decision, step_seconds: float) -> None:
    log = stretches([20, 40, 60, 80, 100], lambda b: step_seconds * (10 if b == 80 else 1))
    found = calibrate(decision, log)
    assert found.result.ratio == pytest.approx(1.0, abs=0.02)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("Steps 60 to 80 are left out")


def test_a_standstill_between_the_only_checkpoints_is_refused(decision: Decision, step_seconds: float) -> None:
    log = stretches([20, 40, 60], lambda b: step_seconds * (10 if b == 60 else 1))
    with pytest.raises(InputError, match=r"Steps 40 to 60 are left out.*another checkpoint"):
        calibrate(decision, log)


def test_a_log_beyond_the_runs_end_is_refused(decision: Decision) -> None:
    with pytest.raises(CostError, match="at optimizer step 300, and the run of the projection has 200"):
        calibrate(decision, stretches([100, 200, 300], lambda _: 1.0, planned=400))


def test_a_trainer_that_plans_other_steps_is_warned_of(decision: Decision) -> None:
    (note,) = calibrate(decision, stretches([20, 40, 60], lambda _: 1.0, planned=120)).notes
    assert "The Trainer's run has 120 optimizer steps, the projection's 200" in note


def test_a_trainer_that_rounds_its_epochs_otherwise_ends_where_the_run_does(decision: Decision) -> None:
    found = calibrate(decision, stretches([100, 150, 202], lambda _: 1.0, planned=202))
    assert found.result.done_share == pytest.approx(1.0)
    assert found.notes == ()


def test_a_stage_that_ran_as_a_run_of_its_own_is_found_by_its_steps(decision: Decision, step_seconds: float) -> None:
    plan = decision.plan
    assert plan is not None and decision.chosen is not None
    (stage,) = plan.stages
    staged = replace(plan, stages=(replace(stage, name="one", epochs=1.0), replace(stage, name="two", epochs=3.0)))
    found = calibrate(replace(decision, plan=staged), stretches([100, 200, 300], lambda _: step_seconds, planned=300))
    assert found.notes == ("The log is of a run of 300 optimizer steps: it is taken to be the stage two.",)
    assert found.result.done_share == pytest.approx(1.0)


def test_tokens_of_other_data_are_warned_of(decision: Decision) -> None:
    log = stretches([20, 40, 60], lambda _: 10.0)
    counted = replace(log, stretches=tuple(replace(s, tokens=20 * 2 * 3750 * 4) for s in log.stretches))
    (note,) = calibrate(decision, counted).notes
    assert note.startswith("The log counts 4 times the tokens")


def test_nothing_chosen_is_nothing_to_hold_a_run_against(tmp_path: Path) -> None:
    nothing = decide(gather([_artifact(tmp_path / "a", _records())]), CATALOGUE, margin_share=0.95)
    with pytest.raises(InputError, match="nothing that fits has a known time"):
        calibrate(nothing, micro_steps([(1000, 1.0)] * 5))


def test_the_page_says_how_far_off_the_first_projection_was_and_what_remains(
    decision: Decision, step_seconds: float
) -> None:
    text = text_of(calibrate(decision, stretches([50, 75, 100], lambda _: 1.25 * step_seconds)), decision)
    assert "so it was off 2" in text and "% slower than projected; within its range" in text
    assert "done 50." in text or "done 49." in text
    assert "still to go" in text and "USD (range" in text
    assert "the whole run" in text and "projected from measured times" in text
    assert "every time is scaled alike" in text
    assert text.index("The run under way") < text.index("As first projected")


def test_a_range_that_did_not_hold_is_said(decision: Decision, step_seconds: float) -> None:
    text = text_of(calibrate(decision, stretches([50, 75, 100], lambda _: 5 * step_seconds)), decision)
    assert "so it was off 5.0" in text and "times the projected time; outside its range" in text
    assert "slower" not in text


def test_the_json_has_the_same_numbers(decision: Decision, step_seconds: float) -> None:
    found = calibrate(decision, stretches([50, 75, 100], lambda _: 1.25 * step_seconds))
    data = json.loads(json.dumps(calibration_json(found, slurm_margin_share=0.2)))
    assert data["ratio"] == pytest.approx(1.25, abs=0.02)
    assert data["within_range"] is True
    assert data["fitted"] == "level"
    assert data["done_share"] == pytest.approx(0.5, abs=0.01)
    for key in ("first_seconds", "remaining_seconds", "remaining_cost_usd", "hours", "cost_usd"):
        assert data[key]["low"] <= data[key]["expected"] <= data[key]["high"]


def minutes(slurm_time: str) -> int:
    hours, minutes, _ = slurm_time.split(":")
    return 60 * int(hours) + int(minutes)


def test_slurm_is_asked_for_what_remains_or_for_the_whole_run_by_the_runs_own_times(
    decision: Decision, first: Projection, step_seconds: float
) -> None:
    found = calibrate(decision, stretches([50, 75, 100], lambda _: 5 * step_seconds))
    data, text = calibration_json(found, slurm_margin_share=0.2), text_of(found, decision)
    left, whole = data["remaining_slurm_time"], data["slurm_time"]
    assert f"for Slurm, to go on --time={left}" in text
    assert f"for Slurm, from the start --time={whole}" in text
    assert text.count("--time=") == 2
    asked = 1.2 * (found.result.remaining_seconds.high + found.result.projection.start_seconds)
    assert 0 <= 60 * minutes(left) - asked <= 60
    assert minutes(whole) > 3 * 60 * first.hours.expected


def test_a_run_that_is_done_asks_slurm_for_nothing_more(decision: Decision, step_seconds: float) -> None:
    found = calibrate(decision, stretches([50, 100, 200], lambda _: step_seconds))
    assert calibration_json(found, slurm_margin_share=0.2)["remaining_slurm_time"] is None
    assert "to go on" not in text_of(found, decision)
