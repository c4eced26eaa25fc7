"""Prices to distrust, and what a refresh brought, as pages and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost.domain import Price
from cost.price_check import DISAGREE_SHARE, OLD_DAYS, Disagreement, OldPrice
from cost.price_files import Listing
from raysweep.report.page import Block, Heading, Page, Sentence, Tone, facts, table


def check_page(old: Sequence[OldPrice], apart: Sequence[Disagreement]) -> Page:
    """Return old prices and disagreements for people."""
    blocks: list[Block] = []
    if apart:
        rows = [
            (
                d.flavour,
                "spot" if d.low.spot else "on demand",
                f"{d.low.usd_per_hour:,.2f}",
                _source(d.low),
                f"{d.high.usd_per_hour:,.2f}",
                _source(d.high),
                f"{d.share:.0%}",
            )
            for d in apart
        ]
        columns = ["flavour", "kind", ">USD/h", "by", ">USD/h", "by", ">apart"]
        blocks += [Heading(f"Sources more than {DISAGREE_SHARE:.0%} apart"), table(columns, rows)]
    if old:
        old_rows = [
            (o.flavour, f"{o.price.usd_per_hour:,.2f}", "unknown" if o.age_days is None else o.age_days, o.price.source)
            for o in old
        ]
        blocks += [
            Heading(f"Older than {OLD_DAYS} days, or of unknown age"),
            table(["flavour", ">USD/h", ">days", "source"], old_rows),
            Sentence("Next: raysweep prices refresh, or your own list with --prices FILE."),
        ]
    return Page("Prices to distrust", tuple(blocks) or (Sentence("None.", Tone.GOOD),))


def check_json(old: Sequence[OldPrice], apart: Sequence[Disagreement]) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        "disagreements": [
            {
                "flavour": d.flavour,
                "spot": d.low.spot,
                "low_usd_per_hour": d.low.usd_per_hour,
                "low_source": d.low.source,
                "high_usd_per_hour": d.high.usd_per_hour,
                "high_source": d.high.source,
                "share": d.share,
            }
            for d in apart
        ],
        "old": [
            {
                "flavour": o.flavour,
                "usd_per_hour": o.price.usd_per_hour,
                "age_days": o.age_days,
                "source": o.price.source,
            }
            for o in old
        ],
    }


def refresh_page(listing: Listing, kept: str) -> Page:
    """Return what a refresh brought."""
    pairs: list[tuple[str, str | int | None]] = [
        ("source", listing.source),
        ("prices", len(listing.rows)),
        ("flavours", len({row.name for row in listing.rows})),
        ("kept in", kept),
        *((f"left out: {reason}", count) for reason, count in listing.skipped),
    ]
    return Page("Prices refreshed", (facts(pairs), Sentence("They count from now on. See: raysweep prices list")))


def refresh_json(listing: Listing, kept: str) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        "source": listing.source,
        "prices": len(listing.rows),
        "flavours": sorted({row.name for row in listing.rows}),
        "skipped": dict(listing.skipped),
        "kept": kept,
    }


def _source(price: Price) -> str:
    dated = f", {price.as_of.isoformat()}" if price.as_of else ""
    return f"{price.source}{dated}"
