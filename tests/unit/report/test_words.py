"""Amounts in the columns of tables."""

from __future__ import annotations

import pytest

from cost.evidence import Range
from raysweep.report.words import range_words, signed_words


@pytest.mark.parametrize(
    ("expected", "low", "high", "text"),
    [
        (1234.5, 1000.0, 2000.0, "1,234.50 (1,000.00 to 2,000.00)"),
        (0.12, 0.1, 0.14, "0.12 (0.10 to 0.14)"),
        (0.0042, 0.004, 0.0051, "0.0042 (0.0040 to 0.0051)"),
        (0.0, 0.0, 0.0, "0.00 (0.00 to 0.00)"),
    ],
)
def test_a_small_amount_keeps_two_digits_that_tell(expected: float, low: float, high: float, text: str) -> None:
    assert range_words(Range(expected=expected, low=low, high=high)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1.234, "-1.23 USD"), (0.00042, "+0.00042 USD"), (0.0, "0.00 USD"), (-1e-17, "0.00 USD"), (None, None)],
)
def test_a_small_change_keeps_its_sign_and_two_digits(value: float | None, text: str | None) -> None:
    assert signed_words(value, "USD") == text
