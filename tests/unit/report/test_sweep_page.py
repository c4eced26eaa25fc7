"""What a sweep says at its end."""

from __future__ import annotations

import dataclasses

from raysweep.report.sweep import NOTHING_LEFT, SweepResult, result_page
from raysweep.report.text import page_text

NOTHING_DONE = SweepResult(
    records=(),
    wall_seconds=1.0,
    overhead_seconds=1.0,
    step_seconds_sum=0.0,
    spent_usd=0.0,
    stopped={},
    over_budget=False,
    out="out",
)


def test_a_finished_sweep_that_is_gone_on_with_says_that_nothing_was_left_to_do() -> None:
    assert NOTHING_LEFT in page_text(result_page(dataclasses.replace(NOTHING_DONE, nothing_left=True)))


def test_a_sweep_that_did_nothing_though_something_was_left_does_not() -> None:
    stopped = dataclasses.replace(NOTHING_DONE, stopped={"lab/a": "the budget of 1.00 USD is spent"}, over_budget=True)
    assert NOTHING_LEFT not in page_text(result_page(stopped))
