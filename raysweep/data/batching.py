"""What padding, sorting and packing make of lengths: pure functions, for the forecast's advice and for projections."""

from __future__ import annotations

import bisect
from collections import Counter

import numpy as np

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


def pack(tokens: Counts, limit_tokens: int) -> Counts:
    """Return the lengths of packed sequences of at most ``limit_tokens``, longest first, each item kept whole.

    Best fit, longest item first, as packers for fine-tuning do
    (Ding et al., "Fewer Truncations Improve Language Modeling", 2024).

    Raises:
        DataError: an item is longer than the limit.
    """
    if (longest := int(tokens.max())) > limit_tokens:
        raise DataError(
            f"an item of {longest} tokens does not fit packed sequences of {limit_tokens}: truncate or split first"
        )
    rooms: list[
        int
    ] = []  # the different rooms that open sequences have left, ascending: there are far fewer than items
    sequences: Counter[int] = Counter()  # how many sequences have each room left
    for length in np.sort(tokens)[::-1].tolist():
        place = bisect.bisect_left(rooms, length)
        room = rooms[place] if place < len(rooms) else limit_tokens
        if place < len(rooms):
            sequences[room] -= 1
            if not sequences[room]:
                del rooms[place]
        left = room - length
        if left and not sequences[left]:
            bisect.insort(rooms, left)
        sequences[left] += 1
    left_over = np.array(sorted(sequences.elements()), dtype=np.int64)
    return limit_tokens - left_over


def _at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise DataError(f"expected {what} of 1 or more, found {value}")
