"""The time model against the seconds of six measured runs, from their first items."""

from __future__ import annotations

import pytest
from reference_files import varied_runs

from cost.evidence import Evidence
from cost.throughput import Timing, Work, micro_step_timings
from cost.time_fit import fit
from raysweep.search.cell import SAMPLE_MICRO_STEPS

FINISHED = [name for name, run in varied_runs().items() if run["ended"] == "finished"]


def timings_of(name: str) -> list[Timing]:
    """Return the micro-steps, each known as of a new length or not; the first, which loads libraries, is left out."""
    run = varied_runs()[name]
    return list(micro_step_timings(run["micro_step_tokens"], run["micro_step_seconds"]))[1:]


def test_six_runs_were_measured() -> None:
    assert len(FINISHED) == 6


@pytest.mark.parametrize("name", FINISHED)
def test_the_first_items_of_a_run_give_a_range_that_holds_the_rest(name: str) -> None:
    timings = timings_of(name)
    rest = timings[SAMPLE_MICRO_STEPS:]
    model = fit(timings[:SAMPLE_MICRO_STEPS], evidence=Evidence.MEASURED, optimizer_step_seconds=0.0)
    seconds = model.seconds(Work.total(timing.work for timing in rest))
    true_seconds = sum(timing.seconds for timing in rest)
    assert seconds.low < true_seconds < seconds.high
    assert seconds.expected == pytest.approx(true_seconds, rel=0.25)  # the host bounds these runs, and wanders


@pytest.mark.parametrize("name", FINISHED)
def test_a_whole_run_tells_what_a_new_length_costs(name: str) -> None:
    model = fit(timings_of(name), evidence=Evidence.MEASURED, optimizer_step_seconds=0.0)
    assert 0.6 < model.new_length_seconds / model.floor_seconds < 1.25
    assert model.noise_share < 0.2


def test_nine_ranges_in_ten_hold_the_rest_of_a_run_on_the_same_machine() -> None:
    """Of every window that does not begin with the process, which is slower at first."""
    held = []
    for name in FINISHED:
        timings = timings_of(name)
        for start in range(20, len(timings) - SAMPLE_MICRO_STEPS, 20):
            seen = timings[start : start + SAMPLE_MICRO_STEPS]
            rest = timings[:start] + timings[start + SAMPLE_MICRO_STEPS :]
            model = fit(seen, evidence=Evidence.MEASURED, optimizer_step_seconds=0.0, hold_share=0.0)
            seconds = model.seconds(Work.total(timing.work for timing in rest))
            held.append(seconds.low < sum(timing.seconds for timing in rest) < seconds.high)
    assert len(held) > 60
    assert 0.85 <= sum(held) / len(held) <= 0.99
