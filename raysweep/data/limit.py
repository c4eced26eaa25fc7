"""Items under a limit on their length, in their order. What the limit costs is ``cost.lengths.LengthCounts.limited``.

Counts do not say where in an item its loss-bearing tokens stand. Here, as there, they stand at its end, as an answer
after its prompt does: exact for prompt and completion, and the dearest case of any other item that loses its tail.
"""

from __future__ import annotations

import numpy as np

from cost.lengths import OverLength
from raysweep.data.items import Counts, Items
from raysweep.errors import DataError


def limit_items(items: Items, limit_tokens: int, over: OverLength) -> Items:
    """Return the items as the run trains on them under a limit, in the same order.

    Raises:
        DataError: the limit is below 1, or no item is left.
    """
    if limit_tokens < 1:
        raise DataError(f"{items.name}: expected a length limit of 1 token or more, found {limit_tokens}")
    tokens, loss = _LIMITED[over](items.tokens, items.loss_tokens, limit_tokens)
    if not tokens.size:
        shortest = int(items.tokens.min())
        raise DataError(
            f"{items.name}: no item is left within {limit_tokens} tokens, the shortest has {shortest}; "
            "raise the limit, or truncate or split instead of dropping"
        )
    return Items(name=items.name, tokens=tokens, loss_tokens=loss, origin=items.origin)


def _drop(tokens: Counts, loss: Counts | None, limit_tokens: int) -> tuple[Counts, Counts | None]:
    kept = tokens <= limit_tokens
    return tokens[kept], None if loss is None else loss[kept]


def _truncate(tokens: Counts, loss: Counts | None, limit_tokens: int) -> tuple[Counts, Counts | None]:
    cut = np.minimum(tokens, limit_tokens)
    return cut, None if loss is None else np.maximum(loss - (tokens - cut), 0)


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


_LIMITED = {OverLength.DROP: _drop, OverLength.TRUNCATE: _truncate, OverLength.SPLIT: _split}
