"""What padding, batching and sorting make of a sequence of lengths, whose order matters to the allocator.

``cost.batches`` has the same for histograms, where only how often each length occurs matters.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from raysweep.data.items import Counts
from raysweep.errors import DataError


def pad_to_multiple(tokens: Counts, multiple_tokens: int) -> Counts:
    """Return each length rounded up to a multiple, so that fewer different lengths occur.

    Raises:
        DataError: the multiple is below 1.
    """
    _at_least_one("a multiple", multiple_tokens)
    return -(-tokens // multiple_tokens) * multiple_tokens


def micro_batches(tokens: Counts, micro_batch: int) -> Counts:
    """Return the padded length of each micro-batch: its longest item's, shape [ceil(items / micro_batch)].

    Raises:
        DataError: the micro-batch is below 1.
    """
    _at_least_one("a micro-batch", micro_batch)
    return np.maximum.reduceat(tokens, np.arange(0, tokens.size, micro_batch))


def differ_in_length(parts: Iterable[Counts]) -> bool:
    """Return whether items of some part differ in length, so that micro-batches of several may be padded."""
    return any(tokens.min() < tokens.max() for tokens in parts)


def is_padded(tokens: Counts, micro_batch: int) -> NDArray[np.bool_]:
    """Return of each micro-batch whether its items differ in length, so that some are padded; shape as above.

    Raises:
        DataError: the micro-batch is below 1.
    """
    _at_least_one("a micro-batch", micro_batch)
    starts = np.arange(0, tokens.size, micro_batch)
    return np.minimum.reduceat(tokens, starts) < np.maximum.reduceat(tokens, starts)


def sort_by_length(tokens: Counts) -> Counts:
    """Return the lengths, longest first: a run too long for the device then dies at its first item, not hours in."""
    return np.sort(tokens)[::-1].copy()


def bucket_by_length(tokens: Counts, bucket_items: int) -> Counts:
    """Return the lengths with each run of ``bucket_items`` sorted by length, longest first; the runs keep their order.

    Raises:
        DataError: the bucket is below 1.
    """
    _at_least_one("a bucket", bucket_items)
    buckets = [sort_by_length(tokens[i : i + bucket_items]) for i in range(0, tokens.size, bucket_items)]
    return np.concatenate(buckets)


def _at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise DataError(f"expected {what} of 1 or more, found {value}")
