"""Token counts drawn up from a summary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data import Origin, read_items
from raysweep.data.histogram import Histogram, items_of
from raysweep.errors import DataError

SUMMARY: dict[str, Any] = {"count": 1000, "mean": 700, "p50": 500, "p95": 2000, "max": 8000}


def written(folder: Path, data: object) -> Path:
    path = folder / "summary.json"
    path.write_text(json.dumps(data, indent=2))
    return path


@given(st.lists(st.integers(1, 20_000), min_size=100, max_size=400))
def test_the_items_have_the_summary_of_the_data_it_was_taken_from(lengths: list[int]) -> None:
    p50, p95 = (float(p) for p in np.percentile(lengths, [50, 95], method="inverted_cdf"))
    mean = sum(lengths) / len(lengths)
    items = items_of(Histogram(count=len(lengths), mean=mean, p50=p50, p95=p95, max=max(lengths)), name="h")
    assert len(items) == len(lengths)
    assert items.longest_tokens == max(lengths)
    assert np.percentile(items.tokens, 50, method="inverted_cdf") == pytest.approx(p50, abs=1)
    # A list of a few hundred has its 95th percentile at one of its items: its neighbours bound the mean's error.
    assert items.tokens.mean() == pytest.approx(mean, rel=0.01, abs=1 + max(lengths) / len(lengths))


def test_a_large_histogram_meets_its_mean_closely(tmp_path: Path) -> None:
    items = read_items(written(tmp_path, {**SUMMARY, "count": 200_000}))
    assert items.tokens.mean() == pytest.approx(700, rel=0.001)
    assert np.percentile(items.tokens, [50, 95]).tolist() == pytest.approx([500, 2000], abs=1)
    assert items.origin is Origin.HISTOGRAM


def test_a_loss_share_is_every_items_share(tmp_path: Path) -> None:
    items = read_items(written(tmp_path, {**SUMMARY, "loss_share": 0.25}))
    assert items.total_loss_tokens / items.total_tokens == pytest.approx(0.25, rel=0.001)


def test_reading_twice_gives_the_same_order(tmp_path: Path) -> None:
    path = written(tmp_path, SUMMARY)
    assert np.array_equal(read_items(path).tokens, read_items(path).tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": 4000}, "expected a mean from .* which is what p50 500, p95 2000 and max 8000 allow, found 4000"),
        ({"p95": 400}, "expected 1 <= p50 <= p95 <= max, found 500, 400 and 8000"),
        ({"count": 0}, "count: expected a whole number of 1 or more, found 0"),
        ({"count": True}, "count: expected a number, found True"),
        ({"max": "8k"}, "max: expected a number, found '8k'"),
        ({"loss_share": 25}, "loss_share: expected a share from 0 to 1, found 25"),
        ({"meen": 1}, "found 'meen'. Did you mean 'mean'"),
    ],
)
def test_a_summary_that_no_data_can_have_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_items(written(tmp_path, SUMMARY | change))


def test_a_missing_figure_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found no p95"):
        read_items(written(tmp_path, {k: v for k, v in SUMMARY.items() if k != "p95"}))
