"""Items of training data as token counts: arrays, since a data set has millions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from raysweep.errors import DataError

Counts = npt.NDArray[np.int64]
"""Token counts, one an item: shape [items], never written to."""
MAX_TOKENS = 1_000_000_000
"""Of one item. A larger count is damage, and sums of such counts would leave 64 bits."""


class Origin(StrEnum):
    """Where token counts come from."""

    GIVEN = "given"
    """The file holds the counts, or token ids whose number is the count."""
    COUNTED = "counted"
    """Texts, counted with a tokenizer."""
    HISTOGRAM = "histogram"
    """Drawn up from a summary: the lengths fit it, the order is made up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items:
    """Token counts of items in training order.

    Attributes:
        name: What people know the data by: its file's name.
        tokens: All tokens of each item, shape [items], each at least 1.
        loss_tokens: Those of them that bear loss, shape [items]; None where every token does.
        origin: How the counts came about.
    """

    name: str
    tokens: Counts
    loss_tokens: Counts | None = None
    origin: Origin = Origin.GIVEN

    def __post_init__(self) -> None:
        """Refuse counts that no item can have, and lock the arrays.

        Raises:
            DataError: there is no item, a count is below 1, or an item bears more loss tokens than it has tokens.
        """
        if self.tokens.ndim != 1 or self.tokens.size == 0:
            raise DataError(f"{self.name}: expected at least one item, found none")
        if (row := _first(self.tokens < 1)) is not None:
            raise DataError(f"{self.name}, item {row}: expected 1 token or more, found {self.tokens[row]}")
        if (row := _first(self.tokens > MAX_TOKENS)) is not None:
            raise DataError(
                f"{self.name}, item {row}: expected at most {MAX_TOKENS:,} tokens, found {self.tokens[row]:,}"
            )
        if self.loss_tokens is not None:
            if self.loss_tokens.shape != self.tokens.shape:
                found = f"{self.loss_tokens.size} loss counts for {self.tokens.size} items"
                raise DataError(f"{self.name}: expected one loss count an item, found {found}")
            wrong = (self.loss_tokens < 0) | (self.loss_tokens > self.tokens)
            if (row := _first(wrong)) is not None:
                found = f"loss_tokens {self.loss_tokens[row]} of tokens {self.tokens[row]}"
                raise DataError(f"{self.name}, item {row}: expected loss_tokens from 0 to tokens, found {found}")
            self.loss_tokens.setflags(write=False)
        self.tokens.setflags(write=False)

    @classmethod
    def of(
        cls,
        tokens: Iterable[int] | Counts,
        loss_tokens: Iterable[int] | Counts | None = None,
        *,
        name: str = "items",
        origin: Origin = Origin.GIVEN,
    ) -> Self:
        """Return the items of plain counts, copied.

        Raises:
            DataError: as on construction.
        """
        loss = None if loss_tokens is None else _array(loss_tokens)
        return cls(name=name, tokens=_array(tokens), loss_tokens=loss, origin=origin)

    def __len__(self) -> int:
        """Return the number of items."""
        return int(self.tokens.size)

    @property
    def total_tokens(self) -> int:
        """All tokens of one pass over the items."""
        return int(self.tokens.sum())

    @property
    def total_loss_tokens(self) -> int:
        """Loss-bearing tokens of one pass; all tokens where none are told apart."""
        return self.total_tokens if self.loss_tokens is None else int(self.loss_tokens.sum())

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest item."""
        return int(self.tokens.max())

    @property
    def distinct_lengths(self) -> int:
        """How many different lengths occur; libraries choose kernels anew for each."""
        return int(np.unique(self.tokens).size)


def _array(counts: Iterable[int] | Counts) -> Counts:
    return np.array(counts if isinstance(counts, np.ndarray) else list(counts), dtype=np.int64)


def _first(wrong: npt.NDArray[np.bool_]) -> int | None:
    rows = np.flatnonzero(wrong)
    return int(rows[0]) if rows.size else None
