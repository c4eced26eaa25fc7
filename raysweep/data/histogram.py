"""Token counts drawn up from a summary of them, for data that cannot be shared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from cost.errors import CostError
from cost.length_summary import of_summary
from raysweep.data.items import Items, Origin
from raysweep.errors import DataError, nearest

KEYS = ("count", "mean", "p50", "p95", "max")
"""What a histogram says of the items' tokens; all of them are needed."""
LOSS_SHARE = "loss_share"
"""Share of all tokens that bears loss, from 0 to 1; left out where every token does."""
_SEED = 0
"""The true order is unknown; a fixed shuffle makes every reading of a file the same."""


def is_histogram(row: dict[str, Any]) -> bool:
    """Tell whether a JSON object is meant as a histogram rather than as an item."""
    return "count" in row and "mean" in row


def histogram_items(data: dict[str, Any], path: Path) -> Items:
    """Return items that fit the histogram in a file: an object of count, mean, p50, p95, max, and maybe loss_share.

    Their order is shuffled, and the same each time.

    Raises:
        DataError: a figure is missing or malformed, or no data can have such a summary.
    """
    _check(data, path)
    try:
        lengths = of_summary(
            count=int(data["count"]),
            mean_tokens=data["mean"],
            p50_tokens=data["p50"],
            p95_tokens=data["p95"],
            max_tokens=int(data["max"]),
        )
    except CostError as error:
        raise DataError(f"{path}: {error}") from error
    # Of a large histogram each length stands for a fraction of items: whole ones by where the running sums fall.
    ends = np.rint(np.cumsum(lengths.items)).astype(np.int64)
    tokens = np.repeat(np.array(lengths.lengths_tokens, dtype=np.int64), np.diff(ends, prepend=0))
    tokens = np.random.default_rng(_SEED).permutation(tokens)
    loss = np.rint(tokens * data[LOSS_SHARE]).astype(np.int64) if LOSS_SHARE in data else None
    return Items(name=path.name, tokens=tokens, loss_tokens=loss, origin=Origin.HISTOGRAM)


def _check(data: dict[str, Any], path: Path) -> None:
    expected = f"{', '.join(KEYS)} and maybe {LOSS_SHARE}"
    for key, value in data.items():
        if key not in (*KEYS, LOSS_SHARE):
            raise DataError(f"{path}: expected {expected}, found {key!r}.{nearest(key, (*KEYS, LOSS_SHARE))}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{path}, {key}: expected a number, found {value!r}")
        if key in ("count", "max") and (value != int(value) or value < 1):
            raise DataError(f"{path}, {key}: expected a whole number of 1 or more, found {value!r}")
        if key == LOSS_SHARE and not 0 <= value <= 1:
            raise DataError(f"{path}, {key}: expected a share from 0 to 1, found {value!r}")
    if missing := [key for key in KEYS if key not in data]:
        raise DataError(f"{path}: expected {expected}, found no {', '.join(missing)}")
