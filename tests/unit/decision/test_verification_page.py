"""Forecast against measured, as people read it."""

from __future__ import annotations

import pytest
from records_for_tests import record

from raysweep.decision.verification import PeakCheck, Verification
from raysweep.report.text import page_text
from raysweep.report.verification import verification_page


def off_by(forecast_bytes: int) -> str:
    """The page of one probe that took 30 GB."""
    check = PeakCheck(
        record=record(),
        measured_allocated_bytes=30 * 10**9,
        forecast_allocated_bytes=forecast_bytes,
        measured_reserved_bytes=30 * 10**9,
        forecast_reserved_bytes=30 * 10**9,
        forecast_reserved_range_bytes=None,
        forecast_retries=0,
    )
    return page_text(verification_page(Verification(peaks=(check,), outcomes=(), skipped=())))


@pytest.mark.parametrize("bytes_off", [-1000, 0, 1000])
def test_an_error_of_nothing_to_two_places_has_no_sign(bytes_off: int) -> None:
    text = off_by(30 * 10**9 + bytes_off)
    assert " 0.00%" in text
    assert "-0.00%" not in text and "+0.00%" not in text


def test_an_error_says_which_way_it_is() -> None:
    assert "+1.00%" in off_by(30_300_000_000)
    assert "-1.00%" in off_by(29_700_000_000)
