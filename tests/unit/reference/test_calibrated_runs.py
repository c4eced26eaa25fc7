"""Runs on an H200, each projected from the first 100 micro-steps of its own log and held against the rest of it."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import pytest
from reference_files import varied_runs

from cost.calibrate import Calibration, calibrate
from cost.evidence import Evidence
from cost.lengths import LengthCounts
from cost.plan import RunPlan, Stage
from cost.stretches import Stretch, timings_of, work_until
from cost.throughput import HOLD_SHARE, TimeModel, Work, micro_step_timings

NAMES = [name for name, run in varied_runs().items() if run["ended"] == "finished"]
LOGGED_MICRO_STEPS = 100
FIRST = TimeModel(floor_seconds=0.2, linear_seconds_per_token=1e-4, evidence=Evidence.FORECAST, scale_share=0.435)
"""Of neither model: its level is corrected, and its shape too where a log tells it."""


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A run that ended as planned."""
    return varied_runs()[request.param]


def _plan(run: dict[str, Any]) -> RunPlan:
    items = LengthCounts.of(run["micro_step_tokens"])
    return RunPlan(stages=(Stage(name="all", items=items, epochs=1),), accumulation=run["plan"]["step"]["accumulation"])


def _holds(found: Calibration, rest_seconds: float, *, within_share: float) -> None:
    remaining = found.remaining_seconds
    assert remaining.low <= rest_seconds <= remaining.high
    assert remaining.expected == pytest.approx(rest_seconds, rel=within_share)


def _of_micro_steps(run: dict[str, Any]) -> Calibration:
    lengths, seconds = run["micro_step_tokens"], run["micro_step_seconds"]
    logged = lengths[:LOGGED_MICRO_STEPS]
    timings = micro_step_timings(logged, seconds[:LOGGED_MICRO_STEPS])
    return calibrate(_plan(run), FIRST, timings[1:], done=Work.of(logged, new_lengths=len(set(logged))))


def test_a_log_of_micro_steps_projects_the_rest(run: dict[str, Any]) -> None:
    found = _of_micro_steps(run)
    assert found.refitted
    _holds(found, sum(run["micro_step_seconds"][LOGGED_MICRO_STEPS:]), within_share=0.1)


def test_the_rest_of_the_runs_is_off_by_no_less_than_the_least_that_is_doubted() -> None:
    off = []
    for run in (varied_runs()[name] for name in NAMES):
        found, seconds = _of_micro_steps(run), run["micro_step_seconds"]
        off.append(sum(seconds[LOGGED_MICRO_STEPS:]) / found.remaining_seconds.expected - 1)
    assert math.sqrt(sum(x**2 for x in off) / len(off)) > HOLD_SHARE


@pytest.mark.parametrize("counts_tokens", [True, False])
def test_a_log_of_optimizer_steps_projects_the_rest(run: dict[str, Any], counts_tokens: bool) -> None:
    plan, seconds, lengths = _plan(run), run["micro_step_seconds"], run["micro_step_tokens"]
    size = plan.accumulation
    of_steps = [
        sum(seconds[i * size : (i + 1) * size]) + update for i, update in enumerate(run["optimizer_step_seconds"])
    ]
    reached = [0.0, *accumulate(of_steps)]
    every = LOGGED_MICRO_STEPS // size // 4
    checkpoints = [every * i for i in range(1, 5)]
    stretches = [
        Stretch(
            first_step=a,
            last_step=b,
            seconds=reached[b] - reached[a],
            tokens=sum(lengths[a * size : b * size]) if counts_tokens else None,
        )
        for a, b in pairwise(checkpoints)
    ]
    found = calibrate(plan, FIRST, timings_of(plan, stretches), done=work_until(plan, checkpoints[-1]))
    assert not found.refitted
    _holds(found, reached[-1] - reached[checkpoints[-1]], within_share=0.2)
