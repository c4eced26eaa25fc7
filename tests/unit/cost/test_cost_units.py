import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost import units
from cost.errors import CostError


def test_gb_is_decimal_and_gib_is_binary():
    assert units.format_gb(150_109_880_320) == "150.1 GB"
    assert units.format_gib(150_109_880_320) == "139.8 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.21, "4.2 s"), (41, "41 s"), (750, "12.5 min"), (11_147, "3.1 h"), (864_000, "240.0 h (10.0 days)")],
)
def test_durations_take_a_readable_unit(seconds, text):
    assert units.format_duration(seconds) == text


def test_money_carries_its_currency_and_cents_where_they_matter():
    assert units.format_money(7.742) == "7.74 USD"
    assert units.format_money(0.0123, "EUR") == "0.012 EUR"
    assert units.format_money(0.00041) == "0.00041 USD"


@pytest.mark.parametrize(("count", "text"), [(512, "512"), (16_384, "16.4 k"), (3_300_000, "3.30 M")])
def test_token_counts_are_short(count, text):
    assert units.format_tokens(count) == text


@pytest.mark.parametrize(
    ("seconds", "margin_share", "text"),
    [
        (1, 0.0, "00:01:00"),
        (60, 0.0, "00:01:00"),
        (61, 0.0, "00:02:00"),
        (3600, 0.2, "01:12:00"),
        (86_400, 0.0, "1-00:00:00"),
        (100 * 3600, 0.25, "5-05:00:00"),
    ],
)
def test_a_slurm_time_has_the_margin_asked_for_and_is_rounded_up(seconds, margin_share, text):
    assert units.slurm_time(seconds, margin_share=margin_share) == text


@given(seconds=st.floats(1e-3, 1e7), margin_share=st.floats(0, 3))
def test_a_slurm_time_is_never_short_and_at_most_a_minute_long(seconds, margin_share):
    days, hours, minutes = re.fullmatch(
        r"(?:(\d+)-)?(\d\d):(\d\d):00", units.slurm_time(seconds, margin_share=margin_share)
    ).groups("0")
    asked_seconds = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60
    wanted_seconds = seconds * (1 + margin_share)
    assert wanted_seconds - 1e-5 <= asked_seconds <= wanted_seconds + 60


@pytest.mark.parametrize(("seconds", "margin_share"), [(0, 0), (float("inf"), 0), (60, -0.1)])
def test_an_impossible_slurm_time_is_refused(seconds, margin_share):
    with pytest.raises(CostError):
        units.slurm_time(seconds, margin_share=margin_share)


@pytest.mark.parametrize(("share", "text"), [(0.08, "8%"), (0.025, "2.5%"), (0.9999, "99.99%"), (0, "0%")])
def test_a_share_is_shown_as_it_was_given(share, text):
    assert units.percent(share) == text
