"""From items to micro-batches: how many there are at each padded length."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum

from cost.errors import CostError
from cost.lengths import LengthCounts


class PackingMethod(StrEnum):
    """How items are put together into sequences of one length."""

    WRAPPED = "wrapped"
    """All items are joined and cut at every full sequence: no padding, items may be cut."""
    BEST_FIT = "best-fit"
    """Best-fit decreasing: the longest item first, each into the fullest sequence that still has room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Sequences of one length that hold several items."""

    sequence_tokens: int
    method: PackingMethod = PackingMethod.WRAPPED
    attends_across_items: bool = True
    """False where attention stays within each item: its quadratic part is then the items', not the sequence's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """One epoch's micro-batches by padded length. Counts are expectations where the order is random."""

    lengths_tokens: tuple[int, ...]
    """Padded lengths, ascending."""
    micro_steps: tuple[float, ...]
    distinct: float
    """Distinct padded lengths in one epoch."""
    drawn_items: tuple[float, ...] | None
    """Items of each length where every epoch draws its batches anew, and may show further lengths; else None."""
    squared_tokens: float
    """Sum of the squared lengths that attention sees."""
    items: float
    """Items, or packed sequences, in all of them."""

    @property
    def count(self) -> float:
        """All micro-batches."""
        return math.fsum(self.micro_steps)

    @property
    def computed_tokens(self) -> float:
        """Tokens of all items of every micro-batch, padded; a last micro-batch may hold fewer items than others."""
        return self.tokens * self.items / self.count

    @property
    def tokens(self) -> float:
        """Sum of the padded lengths, each once."""
        return math.fsum(n * c for n, c in zip(self.lengths_tokens, self.micro_steps, strict=True))

    def distinct_after(self, epochs: float) -> float:
        """Return the distinct padded lengths to expect in so many epochs."""
        if self.drawn_items is not None:
            # Each of c items of a length is the longest of its batch with probability s / c: none is, (1 - s / c)^c.
            return math.fsum(
                -math.expm1(items * epochs * math.log1p(-min(steps / items, 1 - 1e-12)))
                for steps, items in zip(self.micro_steps, self.drawn_items, strict=True)
            )
        if epochs >= 1:
            return self.distinct
        seen = math.fsum(1 - (1 - epochs) ** max(c, 1) for c in self.micro_steps)
        return self.distinct * seen / len(self.micro_steps)


def arrange(
    items: LengthCounts, *, micro_batch: int = 1, sorted_by_length: bool = False, packing: Packing | None = None
) -> Batches:
    """Return one epoch's micro-batches.

    Args:
        items: Already limited, grown and padded to a multiple.
        micro_batch: Items (or packed sequences) a micro-batch; they are padded to the longest of it.
        sorted_by_length: Items of like length share a batch; else any items do.
        packing: Several items a sequence.

    Raises:
        CostError: The micro-batch is below 1, or an item is longer than a packed sequence.
    """
    if micro_batch < 1:
        raise CostError(f"A micro-batch holds 1 item or more, not {micro_batch}.")
    if packing is not None:
        return _packed(items, micro_batch, packing)
    if micro_batch == 1:
        steps = dict(zip(items.lengths_tokens, items.items, strict=True))
        return _batches(steps, items.count, distinct=items.distinct)
    if sorted_by_length:
        return _batches(_in_order(items, micro_batch), items.count)
    drawn = dict(zip(items.lengths_tokens, items.items, strict=True))
    return _batches(_at_random(items, micro_batch), items.count, drawn=drawn)


def _batches(
    steps: dict[int, float], items: float, *, distinct: float | None = None, drawn: dict[int, float] | None = None
) -> Batches:
    lengths = tuple(sorted(n for n, c in steps.items() if c > 0))
    counts = tuple(steps[n] for n in lengths)
    return Batches(
        lengths_tokens=lengths,
        micro_steps=counts,
        distinct=distinct if distinct is not None else len(lengths),
        drawn_items=None if drawn is None else tuple(drawn[n] for n in lengths),
        squared_tokens=math.fsum(n * n * c for n, c in zip(lengths, counts, strict=True)),
        items=items,
    )


def _at_random(items: LengthCounts, micro_batch: int) -> dict[int, float]:
    """Expected micro-batches by their longest item: the largest of B draws is at most l with probability F(l)^B."""
    total = items.count
    batches = math.ceil(total / micro_batch)
    drawn = min(micro_batch, max(total, 1.0))  # fewer items than a micro-batch holds make a smaller one
    steps = {}
    below = before = 0.0
    for length, count in zip(items.lengths_tokens, items.items, strict=True):
        below += count
        reached = min(below / total, 1.0) ** drawn
        steps[length] = batches * (reached - before)
        before = reached
    return steps


def _in_order(items: LengthCounts, micro_batch: int) -> dict[int, float]:
    """Micro-batches of items sorted by length; each is as long as its last item."""
    steps: Counter[int] = Counter()
    done = 0.0
    for length, count in zip(items.lengths_tokens, items.items, strict=True):
        steps[length] = math.floor((done + count) / micro_batch) - math.floor(done / micro_batch)
        done += count
    steps[items.longest_tokens] += math.ceil(done / micro_batch) - math.floor(done / micro_batch)
    return {n: float(c) for n, c in steps.items()}


def _packed(items: LengthCounts, micro_batch: int, packing: Packing) -> Batches:
    size = packing.sequence_tokens
    if packing.method is PackingMethod.WRAPPED:
        sequences = math.ceil(items.tokens / size)
    else:
        sequences = best_fit_decreasing(items, size)
    steps = _batches({size: float(math.ceil(sequences / micro_batch))}, sequences)
    if packing.attends_across_items:
        return steps
    squared = math.fsum(n * n * c for n, c in zip(items.lengths_tokens, items.items, strict=True)) / micro_batch
    return replace(steps, squared_tokens=squared)


def best_fit_decreasing(items: LengthCounts, sequence_tokens: int) -> int:
    """Return how many sequences best-fit decreasing needs.

    Sequences with equally much room are counted together, so the work grows with distinct lengths, not with items.

    Raises:
        CostError: An item is longer than a sequence.
    """
    if items.longest_tokens > sequence_tokens:
        raise CostError(
            f"An item of {items.longest_tokens} tokens does not fit a packed sequence of {sequence_tokens}; "
            "limit, truncate or split the items, or pack them wrapped."
        )
    room: Counter[int] = Counter()  # sequences by the tokens that are still free in them
    rooms: list[int] = []  # its keys, ascending
    opened = 0

    def add(free_tokens: int, sequences: int) -> None:
        if free_tokens > 0 and sequences > 0:
            if free_tokens not in room:
                insort(rooms, free_tokens)
            room[free_tokens] += sequences

    before = 0.0
    for length, count in zip(reversed(items.lengths_tokens), reversed(items.items), strict=True):
        # Data that was scaled has fractions of items: they are rounded up in sum, not length by length.
        left = _whole(before + count) - _whole(before)
        before += count
        while left:
            at = bisect_left(rooms, length)
            if at < len(rooms):
                free = rooms.pop(at)
                sequences = room.pop(free)
            else:  # open as many fresh sequences as the rest of these items fills
                free, sequences = sequence_tokens, math.ceil(left / (sequence_tokens // length))
                opened += sequences
            each = free // length  # after one item the sequence is fuller still: it takes the next too
            full, some = divmod(left, each)
            if full >= sequences:
                add(free - each * length, sequences)
                left -= each * sequences
            else:
                add(free - each * length, full)
                add(free - some * length, 1)
                add(free, sequences - full - 1)
                left = 0
    return opened


def _whole(count: float) -> int:
    return math.ceil(count - 1e-9)  # 3.0000000001 items, as sums come out, are 3
