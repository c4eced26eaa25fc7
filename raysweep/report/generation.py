"""Hours and dollars of a thousand generations, flavour by flavour, as a page and as JSON."""

from __future__ import annotations

from typing import Any

from raysweep.decision.model import Cell, Decision
from raysweep.report.page import Page, Sentence, Tone, facts
from raysweep.report.projection import flavours_table, slurm_words
from raysweep.report.words import hours_words, money_words, no_choice, price_words, range_json, run_json, run_words


def generation_json(decision: Decision, *, slurm_margin_share: float) -> dict[str, Any]:
    """Return the chosen cell, and the best cell of every other flavour, as plain data."""
    chosen = decision.chosen
    return {
        **run_json(decision),
        "chosen": _cell_json(chosen, slurm_margin_share) if chosen else None,
        "flavours": [_cell_json(cell, slurm_margin_share) for cell in decision.best_by_flavour if cell.candidate.hours],
        "notes": list(decision.notes),
    }


def generation_page(decision: Decision, *, slurm_margin_share: float) -> Page:
    """Return the same for people."""
    title = f"Generations with {decision.model}"
    chosen = decision.chosen
    notes = [Sentence(note, Tone.WARN) for note in decision.notes]
    if chosen is None or chosen.candidate.hours is None:
        return Page(title, (Sentence(no_choice(decision), Tone.BAD), *flavours_table(decision), *notes))
    candidate = chosen.candidate
    pairs = [
        ("on", f"{candidate.flavour}, {candidate.step}"),
        ("the run", run_words(decision)),
        ("time", hours_words(candidate.hours, candidate.time_evidence)),
        ("cost", money_words(candidate.cost, decision.choice.currency, candidate.time_evidence)),
        ("price", price_words(decision, chosen.flavour)),
        ("for Slurm", f"--time={slurm_words(chosen.candidate.hours, slurm_margin_share)}"),
    ]
    return Page(title, (facts(pairs), *flavours_table(decision), *notes))


def _cell_json(cell: Cell, slurm_margin_share: float) -> dict[str, Any]:
    candidate = cell.candidate
    return {
        "flavour": candidate.flavour,
        "step": cell.step.to_dict(),
        "length_tokens": candidate.length_tokens,
        "verdict": candidate.fit.verdict.value if candidate.fit else None,
        "source": "projected",
        "time_source": candidate.time_evidence.value if candidate.time_evidence else None,
        "hours": range_json(candidate.hours),
        "cost_usd": range_json(candidate.cost),
        "slurm_time": slurm_words(candidate.hours, slurm_margin_share) if candidate.hours else None,
    }
