"""A run under way against its projection, as a page and as JSON."""

from __future__ import annotations

from typing import Any

from cost.units import SECONDS_PER_HOUR, format_duration, format_money
from raysweep.decision.calibration import Calibration
from raysweep.report.page import Cell as Shown
from raysweep.report.page import Heading, Page, Sentence, Tone, facts
from raysweep.report.projection import slurm_words
from raysweep.report.words import hours_words, money_words, range_json

FACTOR_FROM = 2.0
"""Times that are this many times as long, or as short, are told apart by a factor; nearer ones by per cents."""


def calibration_json(calibration: Calibration, *, slurm_margin_share: float) -> dict[str, Any]:
    """Return the run under way against its projection, as plain data."""
    result = calibration.result
    projection = result.projection
    return {
        "flavour": calibration.cell.candidate.flavour,
        "length_tokens": calibration.cell.candidate.length_tokens,
        "logged": calibration.logged,
        "seen_seconds": result.seen_seconds,
        "first_seconds": range_json(result.first_seconds),
        "ratio": result.ratio,
        "within_range": result.within_range,
        "fitted": _fitted(calibration),
        "done_share": result.done_share,
        "remaining_seconds": range_json(result.remaining_seconds),
        "remaining_cost_usd": range_json(result.remaining_cost),
        "hours": range_json(projection.hours),
        "cost_usd": range_json(projection.cost),
        "remaining_slurm_time": _slurm_left(calibration, slurm_margin_share),
        "slurm_time": slurm_words(projection.hours, slurm_margin_share),
        "notes": list(calibration.notes),
    }


def calibrated_page(calibration: Calibration, first: Page, *, slurm_margin_share: float) -> Page:
    """Return the run under way against its projection, and under it the page of that projection.

    Args:
        calibration: Of the run under way.
        first: Without a value for Slurm's ``--time``: the ones here take its place.
        slurm_margin_share: What such a value adds to the upper end.
    """
    result = calibration.result
    projection, candidate = result.projection, calibration.cell.candidate
    shape = "the step's time over its length is fitted anew" if result.refitted else "every time is scaled alike"
    pairs: list[tuple[str, Shown | str | int | None]] = [
        (
            "taken to run on",
            f"{candidate.flavour}, {candidate.step}, items of up to {candidate.length_tokens:,} tokens",
        ),
        ("logged", calibration.logged),
        ("first projected", _with_range(calibration)),
        ("it took", f"{format_duration(result.seen_seconds)}, measured"),
        ("so it was off", _off(calibration)),
        ("done", f"{result.done_share:.1%} of the training time"),
        ("still to go", _left(calibration)),
        ("the whole run", hours_words(projection.hours, projection.evidence)),
        ("it costs", money_words(projection.cost, projection.currency, projection.evidence)),
    ]
    left = _slurm_left(calibration, slurm_margin_share)
    if left is not None:
        pairs.append(("for Slurm, to go on", f"--time={left}, for what remains and a start anew"))
    pairs.append(("for Slurm, from the start", f"--time={slurm_words(projection.hours, slurm_margin_share)}"))
    blocks = (
        Heading("The run under way"),
        facts(pairs),
        Sentence(f"Projected again from the run's own times: {shape}.", Tone.NOTE),
        *(Sentence(note, Tone.WARN) for note in calibration.notes),
        Heading("As first projected"),
        *first.blocks,
    )
    return Page(first.title, blocks)


def _fitted(calibration: Calibration) -> str:
    return "shape" if calibration.result.refitted else "level"


def _with_range(calibration: Calibration) -> str:
    first = calibration.result.first_seconds
    low, high = format_duration(first.low), format_duration(first.high)
    return f"{format_duration(first.expected)} (range {low} to {high}) for what was timed"


def _off(calibration: Calibration) -> Shown:
    ratio = calibration.result.ratio
    if 1 / FACTOR_FROM < ratio < FACTOR_FROM:
        by = f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'} than projected"
    else:
        by = f"{ratio:.2g} times the projected time" if ratio < 1 else f"{ratio:.2f} times the projected time"
    if calibration.result.within_range:
        return Shown(f"{by}; within its range", Tone.GOOD)
    return Shown(f"{by}; outside its range", Tone.WARN)


def _slurm_left(calibration: Calibration, margin_share: float) -> str | None:
    """Return ``--time`` of a job that goes on from a checkpoint, which starts a process anew; None at the run's end."""
    left = calibration.result.remaining_seconds
    if left.expected <= 0:
        return None
    again = left.plus(calibration.result.projection.start_seconds)
    return slurm_words(again.times(1 / SECONDS_PER_HOUR), margin_share)


def _left(calibration: Calibration) -> str:
    left, cost = calibration.result.remaining_seconds, calibration.result.remaining_cost
    low, high = format_duration(left.low), format_duration(left.high)
    time = f"{format_duration(left.expected)} (range {low} to {high})"
    if cost is None:
        return f"{time}, projected"
    currency = calibration.result.projection.currency
    low, high = format_money(cost.low, currency), format_money(cost.high, currency)
    return f"{time}, {format_money(cost.expected, currency)} (range {low} to {high}), projected"
