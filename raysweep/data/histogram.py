"""Token counts drawn up from a summary of them, for data that cannot be shared."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.data.items import Counts, Items, Origin
from raysweep.errors import DataError, nearest

KEYS = ("count", "mean", "p50", "p95", "max")
"""What a histogram says of the items' tokens; all of them are needed."""
OPTIONAL_KEYS = ("loss_share",)
_SEED = 0
"""The true order is unknown; a fixed shuffle makes every reading of a file the same."""
_FITTED_POINTS = 20_000
"""Lengths among which the exponent is fitted: enough for the mean to come within 0.1 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A summary of items' tokens: how many items, their mean, median, 95th percentile and longest."""

    count: int
    mean: float
    p50: float
    p95: float
    max: int
    loss_share: float | None = None
    """Share of all tokens that bears loss, from 0 to 1; None where every token does."""


def read_histogram(path: Path) -> Items:
    """Return items that fit the histogram in a JSON file: an object of count, mean, p50, p95, max, maybe loss_share.

    Raises:
        DataError: the file is no such object, or no data can have such a summary.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: expected one JSON object with {', '.join(KEYS)}, found {error}") from error
    return items_of(_checked(path, data), name=path.name)


def is_histogram(row: dict[str, Any]) -> bool:
    """Tell whether a JSON object is meant as a histogram rather than as an item."""
    return "count" in row and "mean" in row


def items_of(histogram: Histogram, *, name: str) -> Items:
    """Return items that fit the histogram, in a shuffled order that is the same each time.

    Between 1, p50, p95 and max the lengths rise as powers of the rank, all three with the exponent that gives the mean.

    Raises:
        DataError: no data can have such a summary.
    """
    tokens = _lengths(histogram, name)
    loss = None if histogram.loss_share is None else np.rint(tokens * histogram.loss_share).astype(np.int64)
    order = np.random.default_rng(_SEED).permutation(tokens.size)
    return Items(
        name=name,
        tokens=tokens[order],
        loss_tokens=None if loss is None else loss[order],
        origin=Origin.HISTOGRAM,
    )


def _lengths(histogram: Histogram, name: str) -> Counts:
    low, high = 0.0, 1.0  # a share between the lowest and the highest mean that these percentiles allow
    points = min(histogram.count, _FITTED_POINTS)
    lowest, highest = _rising(histogram, low, points).mean(), _rising(histogram, high, points).mean()
    # Half a token, since the lengths are whole; a list of a few items has coarse percentiles besides.
    slack = 0.5 + (highest - lowest) / histogram.count
    if not lowest - slack <= histogram.mean <= highest + slack:
        raise DataError(
            f"{name}: expected a mean from {lowest:.1f} to {highest:.1f}, which is what p50 {histogram.p50:g}, "
            f"p95 {histogram.p95:g} and max {histogram.max} allow, found {histogram.mean:g}"
        )
    for _ in range(40):  # the mean rises with the share: halving finds it far within half a token
        middle = (low + high) / 2
        if _rising(histogram, middle, points).mean() < histogram.mean:
            low = middle
        else:
            high = middle
    return _rising(histogram, high, histogram.count)


def _rising(histogram: Histogram, share: float, count: int) -> Counts:
    """Return ``count`` lengths, ascending: 0 keeps them at the low end of each stretch, 1 puts them at the high end."""
    rank = np.arange(1, count + 1)
    # The item that is the percentile: the first that at least such a share of all items does not exceed.
    knots = np.array([0, -(-count // 2), -(-count * 19 // 20), count])
    values = np.array([1.0, histogram.p50, histogram.p95, float(histogram.max)])
    stretch = np.clip(np.searchsorted(knots, rank, side="left") - 1, 0, 2)
    within = (rank - knots[stretch]) / np.diff(knots)[stretch]
    exponent = 1 / share - 1 if share > 0 else math.inf  # a power's mean over its stretch is 1 / (1 + exponent) = share
    lengths = values[stretch] + np.diff(values)[stretch] * within**exponent
    lengths[-1] = histogram.max
    whole: Counts = np.maximum(np.rint(lengths), 1).astype(np.int64)
    return whole


def _checked(path: Path, data: Any) -> Histogram:
    if not isinstance(data, dict):
        raise DataError(f"{path}: expected one JSON object with {', '.join(KEYS)}, found {type(data).__name__}")
    for key in data:
        if key not in KEYS + OPTIONAL_KEYS:
            hint = nearest(key, KEYS + OPTIONAL_KEYS)
            raise DataError(f"{path}: expected {', '.join(KEYS)} and maybe loss_share, found {key!r}.{hint}")
    if missing := [key for key in KEYS if key not in data]:
        raise DataError(f"{path}: expected {', '.join(KEYS)}, found no {', '.join(missing)}")
    for key, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{path}, {key}: expected a number, found {value!r}")
    for key in ("count", "max"):
        if data[key] != int(data[key]) or data[key] < 1:
            raise DataError(f"{path}, {key}: expected a whole number of 1 or more, found {data[key]!r}")
    if not 1 <= data["p50"] <= data["p95"] <= data["max"]:
        found = f"{data['p50']}, {data['p95']} and {data['max']}"
        raise DataError(f"{path}: expected 1 <= p50 <= p95 <= max, found {found}")
    share = data.get("loss_share")
    if share is not None and not 0 <= share <= 1:
        raise DataError(f"{path}, loss_share: expected a share from 0 to 1, found {share!r}")
    return Histogram(
        count=int(data["count"]),
        mean=data["mean"],
        p50=data["p50"],
        p95=data["p95"],
        max=int(data["max"]),
        loss_share=share,
    )
