"""What each length limit that comes into question would cost of the data: items over it, tokens and loss that go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cost.lengths import LengthCounts, OverLength


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCost:
    """What one limit costs one stage, in one pass over its items."""

    stage: str
    limit_tokens: int
    over_length: OverLength
    """What the run does with an item over the limit."""
    items: float
    items_over: float
    items_left: float
    """What the run trains on: pieces count as items."""
    lost_tokens: float
    """Tokens that are not trained on."""
    lost_loss_tokens: float
    """Loss-bearing ones among them; where none are told apart every token bears loss."""
    lost_loss_share: float
    """Of all loss-bearing tokens; 0 where there are none."""


def limit_costs(
    stages: Mapping[str, LengthCounts], limits_tokens: Sequence[int], over: OverLength
) -> tuple[LimitCost, ...]:
    """Return the cost of each limit to each stage, stage by stage, limits ascending.

    Loss-bearing tokens are taken to stand at an item's end, as ``cost.lengths.LengthCounts.limited`` has it.
    """
    limits = sorted(set(limits_tokens))
    return tuple(cost for name, counts in stages.items() for cost in _of_stage(name, counts, limits, over))


def _of_stage(name: str, counts: LengthCounts, limits: Sequence[int], over: OverLength) -> list[LimitCost]:
    lengths = np.array(counts.lengths_tokens)
    items = np.array(counts.items, dtype=float)
    tokens = lengths * items
    losses = tokens if counts.loss_tokens_by_length is None else np.array(counts.loss_tokens_by_length, dtype=float)
    all_items, all_losses = float(items.sum()), float(losses.sum())
    costs: list[LimitCost] = []
    for limit in limits:
        first = int(np.searchsorted(lengths, limit, side="right"))
        long, many = lengths[first:], items[first:]
        left = float(items[:first].sum())
        lost_tokens = lost_losses = 0.0
        if over is OverLength.SPLIT:
            left += float((-(-long // limit) * many).sum())
        else:
            gone = tokens[first:] - (limit * many if over is OverLength.TRUNCATE else 0.0)
            lost_tokens, lost_losses = float(gone.sum()), float(np.minimum(losses[first:], gone).sum())
            left += float(many.sum()) if over is OverLength.TRUNCATE else 0.0
        costs.append(
            LimitCost(
                stage=name,
                limit_tokens=limit,
                over_length=over,
                items=all_items,
                items_over=float(many.sum()),
                items_left=left,
                lost_tokens=lost_tokens,
                lost_loss_tokens=lost_losses,
                lost_loss_share=lost_losses / all_losses if all_losses else 0.0,
            )
        )
    return costs
