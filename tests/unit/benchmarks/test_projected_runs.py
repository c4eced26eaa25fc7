"""Whole runs on an H200, each held against what a short sweep on the same GPU projects of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projected_run import RUN_FILE, Projected, projected
from raysweep.decision.findings import gather
from raysweep.store import Artifact

PROJECTED = Path(__file__).parents[3] / "artifacts" / "reference" / "projected"
DEVICE_BOUND = ("llama-1b", "llama-1b-again", "mistral-7b-nf4-long", "qwen-7b-padded", "qwen-7b-padded-again")
"""Runs of items so long that kernels, and not the host that launches them, take most of the time."""
HOST_BOUND = ("mistral-7b-nf4", "qwen-7b", "qwen-7b-again")
NAMES = (*DEVICE_BOUND, *HOST_BOUND, "gemma-2b-nf4")
AHEAD = ("gemma-2b-nf4", "llama-1b-again", "mistral-7b-nf4-long", "qwen-7b-padded", "qwen-7b-padded-again")
"""Runs that were projected, and then played, when the time model was what it is now."""


@cache
def run_of(name: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((PROJECTED / name / RUN_FILE).read_text(encoding="utf-8"))["run"]
    return run


@cache
def projection_of(name: str) -> Projected:
    return projected(gather([Artifact.open(PROJECTED / name)]))


def error_share(name: str) -> float:
    true_seconds: float = run_of(name)["run_seconds"]
    return projection_of(name).training.expected / true_seconds - 1


@pytest.mark.parametrize("name", NAMES)
def test_the_projected_range_holds_the_true_seconds(name: str) -> None:
    seconds = projection_of(name).training
    assert seconds.low < run_of(name)["run_seconds"] < seconds.high


@pytest.mark.parametrize("name", NAMES)
def test_every_item_of_a_run_of_four_hundred_or_more_was_trained_on(name: str) -> None:
    run = run_of(name)
    assert run["ended"] == "finished"
    assert run["items"] >= 400
    assert len(run["micro_step_seconds"]) == run["items"] // run["step"]["micro_batch"]


@pytest.mark.parametrize("name", DEVICE_BOUND)
def test_a_run_that_the_device_bounds_takes_what_was_projected_within_5_percent(name: str) -> None:
    assert abs(error_share(name)) < 0.05
    assert projection_of(name).probes < 0.1 * run_of(name)["run_seconds"]


@pytest.mark.parametrize("name", HOST_BOUND)
def test_a_run_that_the_host_bounds_takes_what_was_projected_within_8_percent(name: str) -> None:
    assert abs(error_share(name)) < 0.08
    assert projection_of(name).probes < 0.11 * run_of(name)["run_seconds"]


@pytest.mark.parametrize("name", AHEAD)
def test_what_was_projected_before_the_run_came_true(name: str) -> None:
    found = json.loads((PROJECTED / name / RUN_FILE).read_text(encoding="utf-8"))
    seconds, true_seconds = found["projected_before"]["training"], found["run"]["run_seconds"]
    assert abs(seconds["expected"] / true_seconds - 1) < 0.05
    assert seconds["low"] < true_seconds < seconds["high"]
    assert abs(error_share(name)) < 0.05
    assert projection_of(name).probes < 0.12 * true_seconds
