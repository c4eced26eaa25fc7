"""What a limit on the length of items does to the data, and what it costs in tokens.

Counts do not say where in an item its loss-bearing tokens stand. Here they stand at its end, as an answer after its
prompt does: exact for prompt and completion, and the dearest case of any other item that loses its tail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from raysweep.data.items import Counts, Items
from raysweep.errors import DataError


class LengthPolicy(StrEnum):
    """What the run does to an item that is longer than the limit."""

    DROP = "drop"
    """Leaves it out."""
    TRUNCATE = "truncate"
    """Cuts its end off."""
    SPLIT = "split"
    """Makes several items of it, all but the last of the limit's length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCost:
    """What one limit does to one set of items; shares are of the items' own totals, from 0 to 1."""

    limit_tokens: int
    policy: LengthPolicy
    items_over: int
    """Items longer than the limit."""
    items_left: int
    """Items that the run then trains on; more than before where items are split."""
    lost_tokens: int
    lost_token_share: float
    lost_loss_tokens: int
    lost_loss_share: float
    """0 where the items bear no loss at all."""


def limit_items(items: Items, limit_tokens: int, policy: LengthPolicy) -> Items:
    """Return the items as the run trains on them under a limit, in the same order.

    Raises:
        DataError: the limit is below 1, or no item is left.
    """
    tokens, loss = _limited(items, limit_tokens, policy)
    if not tokens.size:
        shortest = int(items.tokens.min())
        raise DataError(
            f"{items.name}: no item is left within {limit_tokens} tokens, the shortest has {shortest}; "
            "raise the limit, or truncate or split instead of dropping"
        )
    return Items(name=items.name, tokens=tokens, loss_tokens=loss, origin=items.origin)


def limit_costs(items: Items, limits_tokens: Iterable[int], policy: LengthPolicy) -> tuple[LimitCost, ...]:
    """Return what each limit costs, in the order given.

    Raises:
        DataError: a limit is below 1.
    """
    return tuple(_cost(items, limit, policy) for limit in limits_tokens)


def _cost(items: Items, limit_tokens: int, policy: LengthPolicy) -> LimitCost:
    tokens, loss = _limited(items, limit_tokens, policy)
    left_tokens = int(tokens.sum())
    left_loss_tokens = left_tokens if loss is None else int(loss.sum())
    lost_tokens = items.total_tokens - left_tokens
    lost_loss_tokens = items.total_loss_tokens - left_loss_tokens
    return LimitCost(
        limit_tokens=limit_tokens,
        policy=policy,
        items_over=int(np.count_nonzero(items.tokens > limit_tokens)),
        items_left=int(tokens.size),
        lost_tokens=lost_tokens,
        lost_token_share=lost_tokens / items.total_tokens,
        lost_loss_tokens=lost_loss_tokens,
        lost_loss_share=lost_loss_tokens / items.total_loss_tokens if items.total_loss_tokens else 0.0,
    )


def _limited(items: Items, limit_tokens: int, policy: LengthPolicy) -> tuple[Counts, Counts | None]:
    if limit_tokens < 1:
        raise DataError(f"expected a length limit of 1 token or more, found {limit_tokens}")
    tokens, loss = items.tokens, items.loss_tokens
    if policy is LengthPolicy.DROP:
        kept = tokens <= limit_tokens
        return tokens[kept], None if loss is None else loss[kept]
    if policy is LengthPolicy.TRUNCATE:
        cut = np.minimum(tokens, limit_tokens)
        return cut, None if loss is None else np.maximum(loss - (tokens - cut), 0)
    return _split(tokens, loss, limit_tokens)


def _split(tokens: Counts, loss: Counts | None, limit_tokens: int) -> tuple[Counts, Counts | None]:
    pieces = -(-tokens // limit_tokens)
    owner = np.repeat(np.arange(tokens.size), pieces)
    # Where each piece starts within its own item: its rank among the item's pieces, times the limit.
    rank = np.arange(owner.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = rank * limit_tokens
    piece = np.minimum(tokens[owner] - start, limit_tokens)
    if loss is None:
        return piece, None
    first_loss = (tokens - loss)[owner]
    return piece, np.clip(start + piece - first_loss, 0, piece)
