"""Token counts drawn up from a summary."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data import Origin, read_items
from raysweep.data.histogram import histogram_items
from raysweep.errors import DataError

SUMMARY: dict[str, Any] = {"count": 1000, "mean": 700, "p50": 500, "p95": 2000, "max": 8000}


def written(folder: Path, data: object) -> Path:
    path = folder / "summary.json"
    path.write_text(json.dumps(data, indent=2))
    return path


@pytest.mark.parametrize("count", [1000, 200_000])
def test_the_items_have_the_summary(tmp_path: Path, count: int) -> None:
    items = read_items(written(tmp_path, {**SUMMARY, "count": count}))
    assert len(items) == count
    assert items.longest_tokens == 8000
    assert items.tokens.mean() == pytest.approx(700, rel=0.01)
    assert np.percentile(items.tokens, [50, 95]).tolist() == pytest.approx([500, 2000], rel=0.01)
    assert items.origin is Origin.HISTOGRAM


@given(st.lists(st.integers(1, 20_000), min_size=100, max_size=400))
def test_any_datas_own_summary_is_accepted(lengths: list[int]) -> None:
    p50, p95 = (float(p) for p in np.percentile(lengths, [50, 95], method="inverted_cdf"))
    summary = {"count": len(lengths), "mean": np.mean(lengths).item(), "p50": p50, "p95": p95, "max": max(lengths)}
    items = histogram_items(summary, Path("summary.json"))
    assert (len(items), items.longest_tokens) == (len(lengths), max(lengths))


def test_a_loss_share_is_every_items_share(tmp_path: Path) -> None:
    items = read_items(written(tmp_path, {**SUMMARY, "loss_share": 0.25}))
    assert items.total_loss_tokens / items.total_tokens == pytest.approx(0.25, rel=0.001)


def test_reading_twice_gives_the_same_order(tmp_path: Path) -> None:
    path = written(tmp_path, SUMMARY)
    assert np.array_equal(read_items(path).tokens, read_items(path).tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": 4000}, "No lengths have p50 500, p95 2000, max 8000 and a mean of 4000"),
        ({"p95": 400}, "1 <= p50 <= p95 <= max; not count 1000, p50 500, p95 400, max 8000"),
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
