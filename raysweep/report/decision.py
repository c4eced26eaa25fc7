"""A decision as a page and as JSON: what to rent, why not the others, what else one could have."""

from __future__ import annotations

from typing import Any

from cost.candidate import Reason, Rejection
from cost.frontier import TradeOff
from cost.units import percent
from raysweep.decision.model import Cell, Decision
from raysweep.decision.outside import OutsideSource
from raysweep.report.labels import FIT_CAPTION, fit_cell, gb
from raysweep.report.page import Block, Heading, Page, Sentence, Tone, facts, table
from raysweep.report.page import Cell as Shown
from raysweep.report.words import (
    hours_words,
    money_words,
    no_choice,
    price_words,
    range_json,
    range_words,
    run_words,
    signed_words,
)
from raysweep.space.labels import step_labels

MOST_LENGTHS = 5
"""Columns of verdicts that a terminal has room for; with more lengths the longest ones stand for them."""


def decision_json(decision: Decision) -> dict[str, Any]:
    """Return the whole decision as plain data."""
    chosen = decision.chosen
    return {
        "model": decision.model,
        "artifacts": list(decision.uris),
        "margin_share": decision.margin_share,
        "currency": decision.choice.currency,
        "run": {
            "name": decision.run.name,
            "is_sample": decision.run.is_sample,
            "items": decision.run.items,
            "tokens": decision.run.tokens,
        },
        "at_least_tokens": decision.choice.at_least_tokens,
        "chosen": _cell_json(chosen) if chosen else None,
        "rejected": [
            {
                **_cell_json(decision.cell_of(rejection.candidate)),
                "reason": rejection.reason.value,
                "detail": rejection.detail,
                "dearer_by_usd": rejection.dearer_by,
                "ranges_overlap": rejection.ranges_overlap,
            }
            for rejection in decision.choice.rejections
        ],
        "longest": [
            {
                "flavour": longest.flavour,
                "step": longest.step.to_dict(),
                "length_tokens": longest.length_tokens,
                "tight_length_tokens": longest.tight_length_tokens,
            }
            for longest in decision.longest
        ],
        "frontier": {
            name: _cell_json(decision.cell_of(candidate)) if candidate else None
            for name, candidate in (
                ("cheapest", decision.frontier.cheapest),
                ("fastest", decision.frontier.fastest),
                ("longest", decision.frontier.longest),
            )
        },
        "trade_offs": [_trade_off_json(trade) for trade in decision.trade_offs],
        "break_even": [
            {"flavour": name, "speed_ratio": even.ratio, "seen_ratio": even.seen, "pays": even.pays}
            for name, even in decision.break_even
        ],
        "notes": list(decision.notes),
    }


def decision_page(decision: Decision) -> Page:
    """Return the decision for people."""
    notes = [Sentence(note, Tone.WARN) for note in decision.notes]
    blocks = [*_choice(decision), *notes, *_others(decision), *_longest(decision)]
    blocks += [*_frontier(decision), *_changes(decision)]
    purpose = "run generations of" if decision.run.generates else "fine-tune"
    return Page(f"Where to {purpose} {decision.model}", tuple(blocks))


def _choice(decision: Decision) -> list[Block]:
    chosen = decision.chosen
    if chosen is None:
        return [Sentence(no_choice(decision), Tone.BAD)]
    candidate = chosen.candidate
    limit = "" if decision.run.generates else f"items of up to {candidate.length_tokens:,} tokens, "
    return [
        Sentence(f"Rent {candidate.flavour}: {limit}{candidate.step}.", Tone.GOOD),
        facts(
            [
                ("the run", run_words(decision)),
                ("cost", money_words(candidate.cost, decision.choice.currency, candidate.time_evidence)),
                ("time", hours_words(candidate.hours, candidate.time_evidence)),
                ("memory", _memory_words(chosen)),
                ("price", price_words(decision, chosen.flavour)),
            ]
        ),
    ]


def _others(decision: Decision) -> list[Block]:
    if not decision.choice.lost:
        return []
    rows = [
        (
            rejection.candidate.flavour,
            rejection.candidate.step,
            rejection.candidate.length_tokens,
            range_words(rejection.candidate.cost),
            Shown(rejection.reason.value, Tone.WARN),
            rejection.detail + _at_wanted_length(decision, rejection),
        )
        for rejection in decision.choice.lost
    ]
    columns = ["flavour", "its best step", ">length", f">{decision.choice.currency}", "lost because", "in detail"]
    return [Heading("Why not the others"), table(columns, rows)]


def _at_wanted_length(decision: Decision, rejection: Rejection) -> str:
    """Why the flavour does not reach the wanted length, where its best candidate is a shorter one."""
    if rejection.reason is not Reason.SHORTER:
        return ""
    flavour, wanted = rejection.candidate.flavour, decision.choice.at_least_tokens
    for other in decision.choice.rejections:
        candidate = other.candidate
        if (candidate.flavour, candidate.step, candidate.length_tokens) == (flavour, rejection.candidate.step, wanted):
            memory = decision.cell_of(candidate).memory
            return f"; there {memory.evidence if memory else other.detail}"
    return ""


def _longest(decision: Decision) -> list[Block]:
    labels = step_labels([longest.step for longest in decision.longest])
    lengths = sorted({cell.candidate.length_tokens for cell in decision.cells})
    if len(lengths) > MOST_LENGTHS:
        rows = [
            (
                longest.flavour,
                labels[longest.step],
                Shown("none", Tone.BAD) if longest.length_tokens is None else f"{longest.length_tokens:,}",
                Shown("none", Tone.BAD) if longest.tight_length_tokens is None else f"{longest.tight_length_tokens:,}",
            )
            for longest in decision.longest
        ]
        caption = "The longest length such that it and every shorter one looked at fit, or run at all."
        shown = table(["flavour", "step", ">that fits", ">that runs"], rows, caption)
    else:
        by_key = {(c.flavour.name, c.step, c.candidate.length_tokens): c for c in decision.cells}
        cells: list[tuple[Shown | str, ...]] = [
            (
                longest.flavour,
                labels[longest.step],
                *(_verdict(by_key[longest.flavour, longest.step, length]) for length in lengths),
            )
            for longest in decision.longest
        ]
        shown = table(["flavour", "step", *(f"{n:,} tokens" for n in lengths)], cells, FIT_CAPTION)
    kinds = sorted({cell.memory.source.value for cell in decision.cells if cell.memory})
    source = f"Memory is {' or '.join(kinds) or 'not known'}; the margin is {percent(decision.margin_share)}."
    return [Heading("What fits"), shown, Sentence(source, Tone.NOTE), *_allowances(decision)]


def _verdict(cell: Cell) -> Shown:
    memory = cell.memory
    return Shown("not known", Tone.NOTE) if memory is None else fit_cell(memory.fit, retries=memory.retries)


def _allowances(decision: Decision) -> list[Block]:
    sizes: dict[int, list[str]] = {}
    for cell in decision.cells:
        if cell.memory and cell.memory.outside.source is OutsideSource.ALLOWANCE:
            names = sizes.setdefault(cell.memory.outside.size_bytes, [])
            if cell.flavour.name not in names:
                names.append(cell.flavour.name)
    return [
        Sentence(
            f"Outside the allocator {size / 1e9:.1f} GB are allowed for on {', '.join(names)}: "
            "an allowance, not measured.",
            Tone.NOTE,
        )
        for size, names in sizes.items()
    ]


def _frontier(decision: Decision) -> list[Block]:
    found = decision.frontier.undominated
    if len(found) < 2:
        return []
    rows = [
        (
            candidate.flavour,
            candidate.step,
            candidate.length_tokens,
            range_words(candidate.cost),
            range_words(candidate.hours),
            ", ".join(
                name
                for name, best in (
                    ("cheapest", decision.frontier.cheapest),
                    ("fastest", decision.frontier.fastest),
                    ("longest", decision.frontier.longest),
                )
                if best is candidate
            )
            or None,
        )
        for candidate in found
    ]
    columns = ["flavour", "step", ">length", f">{decision.choice.currency}", ">hours", "is the"]
    caption = "No other is at once cheaper, faster and longer. Projected, for the run at that length limit."
    return [Heading("What else one could have"), table(columns, rows, caption)]


def _changes(decision: Decision) -> list[Block]:
    trades = [trade for trade in decision.trade_offs if trade.chosen is not None]
    blocks: list[Block] = []
    if trades and decision.chosen:
        rows = [
            (
                trade.label,
                trade.chosen.flavour if trade.chosen else None,
                trade.chosen.length_tokens if trade.chosen else None,
                signed_words(trade.cost_change, decision.choice.currency),
                signed_words(trade.hours_change, "h"),
            )
            for trade in trades
        ]
        blocks += [
            Heading("What another choice would change"),
            table(
                ["with", "one would rent", ">length", ">cost", ">time"], rows, "Projected, against the choice above."
            ),
        ]
    for name, even in decision.break_even:
        if even.ratio is None:
            continue
        seen = "" if even.seen is None else f"; here it is {even.seen:.2f} times as fast"
        blocks.append(Sentence(f"{name} pays from {even.ratio:.2f} times the speed of the choice on{seen}.", Tone.NOTE))
    return blocks


def _memory_words(cell: Cell) -> str:
    memory = cell.memory
    if memory is None:
        return "not known"
    peak = "" if memory.peak_reserved_bytes is None else f"{gb(memory.peak_reserved_bytes)} GB reserved of "
    free = memory.fit.headroom_bytes
    word = "free" if free >= 0 else "short"
    return (
        f"{peak}{gb(memory.memory_bytes)} GB, {gb(abs(free))} GB {word} beyond the margin and "
        f"{gb(memory.outside.size_bytes)} GB outside the allocator ({memory.outside.source.value}); {memory.evidence}"
    )


def _cell_json(cell: Cell) -> dict[str, Any]:
    candidate, memory = cell.candidate, cell.memory
    return {
        "flavour": candidate.flavour,
        "step": cell.step.to_dict(),
        "length_tokens": candidate.length_tokens,
        "verdict": candidate.fit.verdict.value if candidate.fit else None,
        "headroom_bytes": candidate.fit.headroom_bytes if candidate.fit else None,
        "memory_source": memory.source.value if memory else None,
        "memory_evidence": memory.evidence if memory else None,
        "memory_bytes": memory.memory_bytes if memory else None,
        "peak_allocated_bytes": memory.peak_allocated_bytes if memory else None,
        "peak_reserved_bytes": memory.peak_reserved_bytes if memory else None,
        "outside_allocator_bytes": memory.outside.size_bytes if memory else None,
        "outside_allocator_source": memory.outside.source.value if memory else None,
        "cost_usd": range_json(candidate.cost),
        "hours": range_json(candidate.hours),
        "time_source": candidate.time_evidence.value if candidate.time_evidence else None,
        "price_usd_per_hour": candidate.price_per_hour,
        "gpu_count": candidate.gpu_count,
    }


def _trade_off_json(trade: TradeOff) -> dict[str, Any]:
    return {
        "label": trade.label,
        "flavour": trade.chosen.flavour if trade.chosen else None,
        "length_tokens": trade.chosen.length_tokens if trade.chosen else None,
        "cost_change_usd": trade.cost_change,
        "hours_change": trade.hours_change,
        "length_change_tokens": trade.length_change_tokens,
    }
