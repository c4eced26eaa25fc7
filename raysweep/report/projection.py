"""Hours and dollars of the whole run, flavour by flavour, as a page and as JSON."""

from __future__ import annotations

from typing import Any

from cost.evidence import Evidence, Range
from cost.money import Allocation
from cost.plan import StageWork
from cost.project import Projection
from cost.units import SECONDS_PER_HOUR, format_duration, format_money, format_tokens
from raysweep.decision.model import Cell, Decision
from raysweep.report.limits import limit_blocks, limits_json
from raysweep.report.page import Block, Heading, Page, Sentence, Tone, facts, table
from raysweep.report.page import Cell as Shown
from raysweep.report.words import (
    hours_words,
    money_words,
    no_choice,
    price_words,
    range_json,
    range_words,
    run_json,
    run_words,
)


def projection_json(decision: Decision, *, slurm_margin_share: float) -> dict[str, Any]:
    """Return the projection of the chosen cell, and the best cell of every other flavour, as plain data."""
    chosen = decision.chosen
    return {
        **run_json(decision),
        "chosen": _cell_json(chosen, slurm_margin_share) if chosen and chosen.projection else None,
        "flavours": [_cell_json(cell, slurm_margin_share) for cell in decision.best_by_flavour if cell.projection],
        "limits": limits_json(decision.limits),
        "padding": [
            {
                "multiple_tokens": option.multiple_tokens,
                "hours_saved": option.hours_saved,
                "cost_saved_usd": option.cost_saved,
                "longest_tokens": option.longest_tokens,
                "new_lengths": option.new_lengths,
            }
            for option in decision.padding
        ],
        "notes": list(decision.notes),
    }


def projection_page(decision: Decision, *, slurm_margin_share: float | None) -> Page:
    """Return the projection for people; without a margin, without a value for Slurm's ``--time``."""
    chosen = decision.chosen
    title = f"The whole run of {decision.model}"
    if chosen is None or chosen.projection is None:
        return Page(
            title,
            (
                Sentence(no_choice(decision), Tone.BAD),
                *(Sentence(note, Tone.WARN) for note in decision.notes),
                *limit_blocks(decision.limits),
                *flavours_table(decision),
            ),
        )
    projection, candidate = chosen.projection, chosen.candidate
    blocks: list[Block] = [
        facts(
            [
                ("on", f"{candidate.flavour}, {candidate.step}, items of up to {candidate.length_tokens:,} tokens"),
                ("the run", run_words(decision)),
                ("time", hours_words(projection.hours, candidate.time_evidence)),
                ("cost", money_words(projection.cost, projection.currency, candidate.time_evidence)),
                ("price", price_words(decision, chosen.flavour)),
                *(
                    []
                    if slurm_margin_share is None
                    else [("for Slurm", f"--time={slurm_words(projection.hours, slurm_margin_share)}")]
                ),
            ]
        ),
        *_stages(projection),
        *_parts(projection),
        *_caveats(projection),
        *limit_blocks(decision.limits),
        *flavours_table(decision),
        *_padding(decision),
        *(Sentence(note, Tone.WARN) for note in decision.notes),
    ]
    return Page(title, tuple(blocks))


def _stages(projection: Projection) -> list[Block]:
    rows = [
        (
            stage.name,
            f"{stage.epochs:.3g}",
            round(stage.items),
            format_tokens(stage.tokens),
            None if stage.loss_tokens is None else format_tokens(stage.loss_tokens),
            None if stage.loss_share is None else f"{stage.loss_share:.0%}",
            round(stage.work.optimizer_steps),
            _lost(stage),
        )
        for stage in projection.stages
    ]
    columns = ["stage", ">epochs", ">items", ">tokens", ">bear loss", ">share", ">optimizer steps", "lost to the limit"]
    return [Heading("Stages"), table(columns, rows, "Over all epochs; lost: in one epoch.")]


def _lost(stage: StageWork) -> str | None:
    lost = stage.lost
    if lost is None or not lost.items:
        return "nothing"
    share = "" if lost.loss_share is None else f", {lost.loss_share:.1%} of the loss"
    return f"{format_tokens(lost.tokens)} tokens of {lost.items:,.0f} items over it{share}"


def _parts(projection: Projection) -> list[Block]:
    pairs = [
        ("start-up and warm-up", format_duration(projection.start_seconds)),
        ("steps", format_duration(projection.training_seconds.expected)),
        ("of it for lengths not seen before", format_duration(projection.new_length_seconds)),
        *((name, format_duration(seconds)) for name, seconds in projection.pause_seconds),
    ]
    if projection.redone_seconds > 0:
        pairs.append(("restarts and redone work", format_duration(projection.redone_seconds)))
    if projection.wait_seconds.expected:
        pairs.append(("waiting after interruptions", format_duration(projection.wait_seconds.expected)))
    if projection.padding_share > 0:
        pairs.append(("padding, of all computed tokens", f"{projection.padding_share:.1%}"))
    return [Heading("Where the time goes"), facts(pairs)]


def _caveats(projection: Projection) -> list[Block]:
    lines = []
    if projection.evidence is not Evidence.MEASURED:
        lines.append(
            f"The times are {projection.evidence.value}, not measured: the range is wide. "
            "Measure a few probes to narrow it."
        )
    if projection.assumed:
        lines.append(f"Assumed, since no probe told it: the time for {', '.join(projection.assumed)}.")
    if projection.beyond_tokens is not None:
        lines.append(f"Some steps are longer than the longest one timed ({projection.beyond_tokens:,} tokens).")
    return [Sentence(line, Tone.WARN) for line in lines]


def flavours_table(decision: Decision) -> list[Block]:
    """Return the best cell of every flavour with a known time, as a part of a page."""
    cells = [cell for cell in decision.best_by_flavour if cell.candidate.hours]
    if not cells:
        return []
    rows = [
        (
            cell.candidate.flavour,
            cell.candidate.step,
            cell.candidate.length_tokens,
            _verdict(cell),
            range_words(cell.candidate.hours),
            range_words(cell.candidate.cost),
            cell.candidate.time_evidence.value if cell.candidate.time_evidence else None,
        )
        for cell in cells
    ]
    columns = ["flavour", "step", ">length", "memory", ">hours", f">{decision.choice.currency}", "times are"]
    return [Heading("On every flavour"), table(columns, rows, "Projected; in brackets the range.")]


def _verdict(cell: Cell) -> Shown:
    tones = {"fits": Tone.GOOD, "tight": Tone.WARN, "no": Tone.BAD}
    fit = cell.candidate.fit
    return Shown("not known", Tone.NOTE) if fit is None else Shown(fit.verdict.value, tones[fit.verdict.value])


def _padding(decision: Decision) -> list[Block]:
    worth = [option for option in decision.padding if option.hours_saved > 0]
    if not worth:
        return []
    best = worth[0]
    saved = "" if best.cost_saved is None else f" and {format_money(best.cost_saved, decision.choice.currency)}"
    return [
        Sentence(
            f"Padding items to multiples of {best.multiple_tokens} would save "
            f"{format_duration(best.hours_saved * SECONDS_PER_HOUR)}{saved} (projected); the longest item is then "
            f"{best.longest_tokens:,} tokens: forecast that length first.",
            Tone.NOTE,
        )
    ]


def slurm_words(hours: Range, margin_share: float) -> str:
    """Return a value for Slurm's ``--time``: the upper end and the margin on top."""
    return Allocation(time_margin_share=margin_share).time_limit(hours.times(SECONDS_PER_HOUR))


def _cell_json(cell: Cell, slurm_margin_share: float) -> dict[str, Any]:
    projection = cell.projection
    if projection is None:
        raise ValueError("only a cell with a projection is shown")
    return {
        "flavour": cell.candidate.flavour,
        "step": cell.step.to_dict(),
        "length_tokens": cell.candidate.length_tokens,
        "verdict": cell.candidate.fit.verdict.value if cell.candidate.fit else None,
        "source": "projected",
        "time_source": projection.evidence.value,
        "assumed": list(projection.assumed),
        "hours": range_json(projection.hours),
        "cost_usd": range_json(projection.cost),
        "training_seconds": range_json(projection.training_seconds),
        "new_length_seconds": projection.new_length_seconds,
        "start_seconds": projection.start_seconds,
        "pause_seconds": dict(projection.pause_seconds),
        "redone_seconds": projection.redone_seconds,
        "wait_seconds": projection.wait_seconds.expected,
        "padding_share": projection.padding_share,
        "beyond_tokens": projection.beyond_tokens,
        "slurm_time": slurm_words(projection.hours, slurm_margin_share),
        "stages": [_stage_json(stage) for stage in projection.stages],
    }


def _stage_json(stage: StageWork) -> dict[str, Any]:
    lost = stage.lost
    return {
        "name": stage.name,
        "epochs": stage.epochs,
        "items": stage.items,
        "tokens": stage.tokens,
        "loss_tokens": stage.loss_tokens,
        "loss_share": stage.loss_share,
        "padded_tokens": stage.padded_tokens,
        "micro_steps": stage.work.micro_steps,
        "optimizer_steps": stage.work.optimizer_steps,
        "new_lengths": stage.work.new_lengths,
        "lost": None
        if lost is None
        else {
            "items": lost.items,
            "tokens": lost.tokens,
            "loss_tokens": lost.loss_tokens,
            "loss_share": lost.loss_share,
        },
    }
