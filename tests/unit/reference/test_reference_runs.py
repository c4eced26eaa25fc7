"""Forecasts of runs of items of varied length against those runs on an H200: free, capped, expandable."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from reference_files import REFERENCE, program_of, varied_runs

from raysweep.memory.conditions import Conditions
from raysweep.memory.outcome import Replay
from raysweep.memory.replay import Replayer
from raysweep.setting import AllocatorSetting, StepSetting

MODELS = ("llama-1b-gpu-chunked", "qwen-7b-none-full")
FREE_SHARE, EXPANDABLE_SHARE = 0.005, 0.01


@cache
def replayer_of(name: str) -> Replayer:
    """Trace the step of a model's runs once, over the lengths of the longest of them."""
    plan = varied_runs()[name]["plan"]
    step = StepSetting.from_dict(plan["step"])
    return Replayer(program_of(plan["model"], step, [min(plan["lengths"]), max(plan["lengths"])]))


@cache
def played(model: str, kind: str) -> tuple[dict[str, Any], Replay]:
    """Return a run as measured, and its replay."""
    run = varied_runs()[model + kind]
    plan = run["plan"]
    conditions = Conditions(allocator=AllocatorSetting(**plan["allocator"]), capacity_bytes=plan["cap_bytes"])
    accumulation = plan["step"]["accumulation"]
    return run, replayer_of(model).run(plan["lengths"], accumulation=accumulation, conditions=conditions)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    """The name of a model's free run, with which the others' names begin."""
    return str(request.param)


def test_a_free_run_finishes_at_the_measured_peaks(model: str) -> None:
    run, replay = played(model, "")
    assert run["ended"] == "finished"
    assert replay.runs
    assert replay.peak_allocated_bytes == pytest.approx(run["peak_allocated_bytes"], rel=FREE_SHARE)
    assert replay.peak_reserved_bytes == pytest.approx(run["peak_reserved_bytes"], rel=FREE_SHARE)
    assert replay.retries == run["retries"] == 0


def test_below_its_edge_a_run_dies_at_the_measured_item_after_the_measured_retries(model: str) -> None:
    run, replay = played(model, "-below")
    assert run["ended"] == "out of memory"
    assert replay.failure is not None
    assert replay.failure.moment.item == run["died"]["item"]
    assert replay.failure.moment.phase == run["died"]["phase"]
    assert replay.retries == run["retries"]


def test_above_its_edge_a_run_finishes_after_the_measured_retries(model: str) -> None:
    run, replay = played(model, "-above")
    assert run["ended"] == "finished"
    assert replay.runs
    assert replay.retries == run["retries"] > 0
    assert replay.peak_allocated_bytes == pytest.approx(run["peak_allocated_bytes"], rel=FREE_SHARE)
    assert replay.peak_reserved_bytes == pytest.approx(run["peak_reserved_bytes"], rel=FREE_SHARE)


def test_expandable_segments_reserve_what_was_measured(model: str) -> None:
    run, replay = played(model, "-expandable")
    assert run["ended"] == "finished"
    assert replay.runs
    assert replay.peak_allocated_bytes == pytest.approx(run["peak_allocated_bytes"], rel=FREE_SHARE)
    assert replay.peak_reserved_bytes == pytest.approx(run["peak_reserved_bytes"], rel=EXPANDABLE_SHARE)
    assert replay.retries == run["retries"] == 0


def test_a_run_of_weights_in_four_bits_reserves_what_was_measured_after_every_micro_step() -> None:
    """420 items of Mistral-7B in nf4 with paged 8-bit AdamW, padded to multiples of 128, from its beginning."""
    run = json.loads((REFERENCE / "projected/mistral-7b-nf4/run.json").read_text(encoding="utf-8"))["run"]
    tokens, step = run["micro_step_tokens"], StepSetting.from_dict(run["step"])
    replayer = Replayer(program_of(run["model"], step, [min(tokens), max(tokens)]))
    replay = replayer.run(tokens, accumulation=1)
    assert replay.peak_allocated_bytes == run["peak_allocated_bytes"]
    assert replay.retries == run["retries"] == 0
    # The first optimizer step makes states after its micro-step was measured; no later one takes anything.
    for done in (2, 3, 12, 60, 420):
        found = replayer.run(tokens[:done], accumulation=1)
        assert found.peak_reserved_bytes == pytest.approx(run["reserved_bytes_after_micro_steps"][done - 1], rel=0.0005)
