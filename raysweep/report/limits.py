"""What a length limit costs of the data at each length in question: a table for people, rows for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost.lengths import OverLength
from cost.units import format_tokens
from raysweep.data.limit_cost import LimitCost
from raysweep.report.labels import sampled
from raysweep.report.page import Block, Heading, Sentence, table

_WHAT = {OverLength.DROP: "dropped", OverLength.TRUNCATE: "truncated", OverLength.SPLIT: "split into pieces"}


def limits_json(costs: Sequence[LimitCost]) -> list[dict[str, Any]]:
    """Return every limit's cost to every stage as plain data; shares are from 0 to 1."""
    return [
        {
            "stage": cost.stage,
            "limit_tokens": cost.limit_tokens,
            "over_length": cost.over_length.value,
            "items": cost.items,
            "items_over": cost.items_over,
            "items_left": cost.items_left,
            "lost_tokens": cost.lost_tokens,
            "lost_loss_tokens": cost.lost_loss_tokens,
            "lost_loss_share": cost.lost_loss_share,
        }
        for cost in costs
    ]


def limit_blocks(costs: Sequence[LimitCost]) -> list[Block]:
    """Return the part of the page about length limits; nothing where there are no data."""
    if not costs:
        return []
    what = _WHAT[costs[0].over_length]
    heading = Heading("What a length limit costs of the data")
    binding = [cost for cost in costs if cost.items_over]
    if not binding:
        shortest = min(cost.limit_tokens for cost in costs)
        none = f"Nothing: no item is longer than {shortest:,} tokens, the shortest length looked at."
        return [heading, Sentence(none)]
    shown = sampled([cost.limit_tokens for cost in costs])
    rows = [
        (
            cost.stage,
            cost.limit_tokens,
            f"{cost.items_over:,.0f}",
            f"{cost.items_over / cost.items:.1%}",
            f"{cost.items_left:,.0f}",
            format_tokens(cost.lost_tokens),
            f"{cost.lost_loss_share:.1%}",
        )
        for cost in costs
        if cost.limit_tokens in shown
    ]
    columns = ["stage", ">limit", ">items over it", ">of all", ">items then", ">tokens lost", ">of the loss"]
    at_end = " Loss is taken to stand at an item's end." if costs[0].over_length is OverLength.TRUNCATE else ""
    caption = f"In one epoch. Items over the limit are {what} (run.over_length).{at_end}"
    return [heading, table(columns, rows, caption)]
