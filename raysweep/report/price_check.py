"""Prices to distrust, and what a refresh brought, as pages and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost.domain import Price
from cost.price_check import DISAGREE_SHARE, OLD_DAYS, Comparison, OldPrice, PriceCheck
from cost.price_files import Listing
from raysweep.report.page import Block, Heading, Page, Sentence, Tone, facts, table


def check_page(check: PriceCheck, *, everything: bool) -> Page:
    """Return what to distrust for people: in numbers, then disagreements; all that was compared and is old if asked."""
    blocks: list[Block] = [_summary(check)]
    if check.disagreements:
        heading = f"Sources more than {DISAGREE_SHARE:.0%} apart"
        blocks += [Heading(heading), _comparisons(check.disagreements)]
    if everything:
        agreeing = [c for c in check.comparisons if c.share <= DISAGREE_SHARE]
        if agreeing:
            blocks += [Heading("Sources that agree"), _comparisons(agreeing)]
        if check.old:
            blocks += [Heading(f"Older than {OLD_DAYS} days, or of unknown age"), _old(check.old)]
    elif check.old:
        blocks.append(Sentence("Each old or undated price, and the sources that agree: raysweep prices check --all"))
    if check.disagreements or check.old:
        blocks.append(Sentence("Next: raysweep prices refresh, or your own list with --prices FILE."))
    else:
        blocks.append(Sentence("Nothing to distrust.", Tone.GOOD))
    return Page("Prices to distrust", tuple(blocks))


def check_json(check: PriceCheck) -> dict[str, Any]:
    """Return the same as plain data, with everything."""
    return {
        "flavours": check.flavours,
        "flavours_with_a_price": check.priced,
        "compared": len(check.comparisons),
        "disagreeing": len(check.disagreements),
        "disagree_share": DISAGREE_SHARE,
        "newest_age_days": check.newest_days,
        "oldest_age_days": check.oldest_days,
        "comparisons": [_comparison_json(c) for c in check.comparisons],
        "disagreements": [_comparison_json(c) for c in check.disagreements],
        "old": [
            {
                "flavour": o.flavour,
                "usd_per_hour": o.price.usd_per_hour,
                "age_days": o.age_days,
                "source": o.price.source,
            }
            for o in check.old
        ],
    }


def _summary(check: PriceCheck) -> Block:
    pairs: list[tuple[str, str | int | None]] = [
        ("flavours", f"{check.flavours}, {check.priced} of them with an on-demand price"),
        ("compared", f"{len(check.comparisons)} that several sources price on the same terms"),
        (f"more than {DISAGREE_SHARE:.0%} apart", len(check.disagreements)),
        (f"older than {OLD_DAYS} days", len(check.old) - check.undated),
        ("without a date", check.undated),
    ]
    if check.oldest_days is not None:
        pairs.append(("age", f"{check.newest_days} to {check.oldest_days:,} days"))
    return facts(pairs)


def _comparisons(comparisons: Sequence[Comparison]) -> Block:
    rows = [
        (
            c.flavour,
            "spot" if c.low.spot else "on demand",
            f"{c.low.usd_per_hour:,.2f}",
            _source(c.low),
            f"{c.high.usd_per_hour:,.2f}",
            _source(c.high),
            f"{c.share:.0%}",
        )
        for c in comparisons
    ]
    return table(["flavour", "kind", ">USD/h", "by", ">USD/h", "by", ">apart"], rows)


def _old(old: Sequence[OldPrice]) -> Block:
    rows = [
        (o.flavour, f"{o.price.usd_per_hour:,.2f}", "unknown" if o.age_days is None else o.age_days, o.price.source)
        for o in old
    ]
    return table(["flavour", ">USD/h", ">days", "source"], rows)


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "flavour": comparison.flavour,
        "spot": comparison.low.spot,
        "low_usd_per_hour": comparison.low.usd_per_hour,
        "low_source": comparison.low.source,
        "high_usd_per_hour": comparison.high.usd_per_hour,
        "high_source": comparison.high.source,
        "share": comparison.share,
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
