"""Verdicts in a table's cells."""

from __future__ import annotations

from cost.verdict import Fit, Verdict
from raysweep.report.labels import fit_cell
from raysweep.report.page import Tone

ROOM = Fit(verdict=Verdict.TIGHT, headroom_bytes=7_700_000_000)
SHORT = Fit(verdict=Verdict.TIGHT, headroom_bytes=-9_800_000_000)


def test_a_verdict_comes_with_what_is_free_or_short() -> None:
    assert fit_cell(Fit(verdict=Verdict.FITS, headroom_bytes=7_700_000_000)).text == "fits +7.7"
    assert fit_cell(SHORT).text == "tight -9.8"


def test_a_probe_that_freed_its_cache_shows_its_retries_and_not_what_that_left_free() -> None:
    assert fit_cell(ROOM, retries=1).text == "tight, 1 retry"
    assert fit_cell(ROOM, retries=1234).text == "tight, 1,234 retries"
    assert fit_cell(ROOM, retries=2).tone is Tone.WARN


def test_a_run_that_dies_is_a_no_whatever_it_retried() -> None:
    assert fit_cell(Fit(verdict=Verdict.NO, headroom_bytes=-1), retries=3).text == "no"
