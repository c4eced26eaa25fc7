"""How long the items of a data set are: a histogram, so that a million items cost only their distinct lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from cost.errors import CostError

_BLOCK_ITEMS = 20
"""Enough to tell how dense lengths lie, few enough for the density to be even among them."""


class OverLength(StrEnum):
    """What a run does with an item that is longer than its limit."""

    DROP = "drop"
    TRUNCATE = "truncate"
    SPLIT = "split"
    """Into pieces of the limit and a rest, each an item of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What a length limit costs."""

    items: float
    """Items over the limit, whatever becomes of them."""
    tokens: float
    """Tokens that are not trained on."""
    loss_tokens: float | None
    """Loss-bearing tokens among them; None where the data did not count them."""
    loss_share: float | None
    """The same as a share of all loss-bearing tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCounts:
    """Items by length. Counts may be fractions, since data that is expected to grow is scaled."""

    lengths_tokens: tuple[int, ...]
    """Distinct lengths, ascending."""
    items: tuple[float, ...]
    """Items of each length."""
    loss_tokens_by_length: tuple[float, ...] | None = None
    """Loss-bearing tokens of all the items of each length; None where they were not counted."""
    growth: float = 1.0
    """Times the items that were counted: grown data has lengths besides the counted ones, a part of it has fewer."""
    multiple_tokens: int = 1
    """What every length is a multiple of, up to the limit's own."""

    def __post_init__(self) -> None:
        """Refuse histograms that are none.

        Raises:
            CostError: There is no item, a length or count is not positive, or more tokens bear loss than there are.
        """
        if not self.lengths_tokens:
            raise CostError("Data of no items cannot be projected: give at least one length.")
        if self.lengths_tokens[0] < 1 or min(self.items) <= 0:
            raise CostError("Every length must be 1 token or more, and every count above 0.")
        if self.loss_tokens_by_length is not None:
            for length, count, loss in zip(self.lengths_tokens, self.items, self.loss_tokens_by_length, strict=True):
                if not 0 <= loss <= length * count * (1 + 1e-9):
                    raise CostError(f"Of {length * count:g} tokens in items of {length}, {loss:g} cannot bear loss.")

    @classmethod
    def of(cls, lengths_tokens: Iterable[int], loss_tokens: Iterable[int] | None = None) -> Self:
        """Return the histogram of items' lengths, and of their loss-bearing tokens where given (one number an item)."""
        if loss_tokens is None:
            return cls.of_counts(Counter(lengths_tokens))
        counts: Counter[int] = Counter()
        losses: Counter[int] = Counter()
        for length, loss in zip(lengths_tokens, loss_tokens, strict=True):
            counts[length] += 1
            losses[length] += loss
        lengths = tuple(sorted(counts))
        return cls(
            lengths_tokens=lengths,
            items=tuple(counts[n] for n in lengths),
            loss_tokens_by_length=tuple(losses[n] for n in lengths),
        )

    @classmethod
    def of_counts(cls, counts: Mapping[int, float], *, loss_share: float | None = None) -> Self:
        """Return the histogram that a mapping from length to items describes.

        Args:
            counts: Items by length.
            loss_share: Share of every item's tokens that bears loss, where it is known only like this.
        """
        lengths = tuple(sorted(counts))
        items = tuple(counts[n] for n in lengths)
        losses = None
        if loss_share is not None:
            losses = tuple(n * count * loss_share for n, count in zip(lengths, items, strict=True))
        return cls(lengths_tokens=lengths, items=items, loss_tokens_by_length=losses)

    @classmethod
    def of_totals(cls, *, items: int, tokens: int, loss_share: float | None = None) -> Self:
        """Return items as equal as whole tokens allow, for data of which only the totals are known.

        Raises:
            CostError: There are fewer tokens than items, or no items.
        """
        if items < 1 or tokens < items:
            raise CostError(
                f"Totals need an item or more, each of a token or more; not {items} items, {tokens} tokens."
            )
        short, longer = divmod(tokens, items)
        counts = {short: items - longer, short + 1: longer}
        return cls.of_counts({n: c for n, c in counts.items() if c}, loss_share=loss_share)

    @property
    def count(self) -> float:
        """All items."""
        return math.fsum(self.items)

    @property
    def tokens(self) -> float:
        """Tokens of all items."""
        return math.fsum(n * c for n, c in zip(self.lengths_tokens, self.items, strict=True))

    @property
    def loss_tokens(self) -> float | None:
        """Loss-bearing tokens of all items; None where they were not counted."""
        return None if self.loss_tokens_by_length is None else math.fsum(self.loss_tokens_by_length)

    @property
    def longest_tokens(self) -> int:
        """The longest item."""
        return self.lengths_tokens[-1]

    @property
    def distinct(self) -> float:
        """How many lengths differ: an expectation where the data were scaled."""
        return len(self.lengths_tokens) if self.growth == 1 else self._distinct_when_grown()

    def padded(self, multiple_tokens: int) -> LengthCounts:
        """Return the items padded up to a multiple; their loss-bearing tokens stay."""
        if multiple_tokens < 1:
            raise CostError(f"Items are padded to a multiple of 1 token or more, not {multiple_tokens}.")
        if multiple_tokens == 1:
            return self
        padded = [math.ceil(n / multiple_tokens) * multiple_tokens for n in self.lengths_tokens]
        return replace(
            self._regrouped(zip(padded, self.items, self._losses(), strict=True)), multiple_tokens=multiple_tokens
        )

    def scaled(self, factor: float) -> LengthCounts:
        """Return the data grown (or cut at random) to ``factor`` times its items, with lengths like those it has.

        Raises:
            CostError: The factor is not positive.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise CostError(f"Data grows by a positive factor, not {factor}.")
        losses = self.loss_tokens_by_length
        return replace(
            self,
            items=tuple(c * factor for c in self.items),
            loss_tokens_by_length=None if losses is None else tuple(x * factor for x in losses),
            growth=self.growth * factor,
        )

    def limited(self, limit_tokens: int, over: OverLength) -> tuple[LengthCounts, Lost]:
        """Return the items as a run with a length limit sees them, and what the limit costs.

        Loss-bearing tokens are taken to stand at an item's end, as a completion after its prompt: truncation loses
        them first, which is the dearest case.

        Raises:
            CostError: The limit is below 1, or no item is left.
        """
        if limit_tokens < 1:
            raise CostError(f"A length limit is 1 token or more, not {limit_tokens}.")
        total = self.loss_tokens
        if limit_tokens >= self.longest_tokens:
            none = None if total is None else 0.0
            return self, Lost(items=0.0, tokens=0.0, loss_tokens=none, loss_share=none if total else None)
        kept: list[tuple[int, float, float]] = []
        items = tokens = loss = 0.0
        for length, count, losses in zip(self.lengths_tokens, self.items, self._losses(), strict=True):
            if length <= limit_tokens:
                kept.append((length, count, losses))
                continue
            items += count
            if over is OverLength.SPLIT:
                kept += _pieces(length, limit_tokens, count, losses)
                continue
            cut_tokens = length - limit_tokens if over is OverLength.TRUNCATE else length
            lost = min(losses, cut_tokens * count)
            tokens += cut_tokens * count
            loss += lost
            if over is OverLength.TRUNCATE:
                kept.append((limit_tokens, count, losses - lost))
        if not kept:
            raise CostError(f"Every item is longer than the limit of {limit_tokens} tokens; truncate or split them.")
        return self._regrouped(kept), Lost(
            items=items,
            tokens=tokens,
            loss_tokens=None if total is None else loss,
            loss_share=None if not total else loss / total,
        )

    def _losses(self) -> tuple[float, ...]:
        return self.loss_tokens_by_length or (0.0,) * len(self.items)

    def _regrouped(self, entries: Iterable[tuple[int, float, float]]) -> LengthCounts:
        counts: Counter[int] = Counter()
        losses: dict[int, float] = {}
        for length, count, loss in entries:
            counts[length] += count  # type: ignore[assignment]  # a Counter also counts fractions
            losses[length] = losses.get(length, 0.0) + loss
        lengths = tuple(sorted(counts))
        known = self.loss_tokens_by_length is not None
        return LengthCounts(
            lengths_tokens=lengths,
            items=tuple(counts[n] for n in lengths),
            loss_tokens_by_length=tuple(losses[n] for n in lengths) if known else None,
            growth=self.growth,
            multiple_tokens=self.multiple_tokens,
        )

    def _distinct_when_grown(self) -> float:
        """Distinct lengths to expect of data that was counted before it grew.

        Items are taken to fall on lengths at random, with a density that is even within each block of some twenty
        neighbours: a block of m items over w lengths then shows ``w (1 - exp(-m / w))`` of them. The estimate is
        scaled so that it gives the number seen when nothing grows, and bounded by how many there can be. A length with
        twenty items of its own, as the limit that cuts many, is a block by itself.
        """
        counted = [count / self.growth for count in self.items]
        if self.growth < 1:
            return math.fsum(1 - (1 - self.growth) ** max(c, 1) for c in counted)
        seen = grown = 0.0
        for width, items in self._blocks(counted):
            seen += -width * math.expm1(-items / width)
            grown += -width * math.expm1(-items * self.growth / width)
        return min(len(self.lengths_tokens) * grown / seen, math.ceil(self.longest_tokens / self.multiple_tokens))

    def _blocks(self, counted: Iterable[float]) -> Iterator[tuple[float, float]]:
        """Yield how many lengths each block of neighbours could show, and its items."""
        items, start, last = 0.0, self.lengths_tokens[0], self.lengths_tokens[0]
        for length, count in zip(self.lengths_tokens, counted, strict=True):
            if items and (items >= _BLOCK_ITEMS or count >= _BLOCK_ITEMS):
                yield max((last - start) // self.multiple_tokens + 1, 1), items
                items, start = 0.0, length if count >= _BLOCK_ITEMS else last + self.multiple_tokens
            items, last = items + count, length
        yield max((last - start) // self.multiple_tokens + 1, 1), items


def _pieces(length: int, limit: int, count: float, losses: float) -> list[tuple[int, float, float]]:
    """Split items into whole pieces and a rest; their loss-bearing tokens fill the pieces from the end."""
    whole, rest = divmod(length, limit)
    in_rest = min(losses, rest * count)
    pieces = [(limit, whole * count, losses - in_rest)]
    return [*pieces, (rest, count, in_rest)] if rest else pieces
