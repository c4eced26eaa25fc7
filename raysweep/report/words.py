"""Money, hours and runs in words: every number with its range and with what it rests on."""

from __future__ import annotations

import math
from typing import Any

from cost.candidate import Reason
from cost.domain import Flavour
from cost.evidence import Evidence, Range
from cost.units import format_duration, format_money, format_tokens, percent
from raysweep.decision.model import Decision


def no_choice(decision: Decision) -> str:
    """Return why nothing was chosen, in one sentence."""
    candidates = [cell.candidate for cell in decision.cells]
    if not any(candidate.fits for candidate in candidates):
        return _nothing_fits(decision)
    if not decision.choice.eligible:
        return _none_eligible(decision)
    return f"Nothing that fits reaches {decision.choice.at_least_tokens:,} tokens."


def _nothing_fits(decision: Decision) -> str:
    fits = [cell.candidate.fit for cell in decision.cells if cell.flavour.gpu_count == 1]
    unknown = 0 if decision.run.generates else sum(fit is None for fit in fits)
    if unknown and unknown == len(fits):
        return "Nothing is chosen: whether anything fits is not known."
    of_known = " whose memory is known" if unknown else ""
    return f"Nothing{of_known} fits with a margin of {percent(decision.margin_share)}."


def _none_eligible(decision: Decision) -> str:
    if any(lost.reason is Reason.OVER_BUDGET for lost in decision.choice.lost):
        return (
            "Nothing that fits is sure to stay within the run's budget: it is held against the upper end of each "
            "range. Raise it, or shorten the run."
        )
    barriers = {lost.reason for lost in decision.choice.rejections if lost.candidate.fits}
    if barriers <= {Reason.MULTI_GPU, Reason.GAP}:
        words = " or ".join(sorted(reason.value for reason in barriers))
        return f"Nothing is chosen of what fits: {words}. Add flavours of one GPU, or shorter lengths."
    reasons = dict.fromkeys(cell.candidate.no_time for cell in decision.cells if cell.candidate.fits)
    if all(reasons):
        return f"Where anything fits, no run is projected: {'; '.join(str(reason) for reason in reasons)}."
    return "What fits has no known time or price: nothing can be chosen. Name a gpu_id and a price for the flavours."


def run_json(decision: Decision) -> dict[str, Any]:
    """Return what a projection is of: the model, the artifacts, the currency and the run, as plain data."""
    return {
        "model": decision.model,
        "artifacts": list(decision.uris),
        "currency": decision.choice.currency,
        "run": {"name": decision.run.name, "items": decision.run.items, "tokens": decision.run.tokens},
    }


def run_words(decision: Decision) -> str:
    """Return the run in a few words."""
    if decision.run.is_sample:
        return decision.run.name
    return f"{decision.run.name}: {decision.run.items:,} items, {format_tokens(decision.run.tokens)} tokens a pass"


def money_words(cost: Range | None, currency: str, evidence: Evidence | None) -> str:
    """Return money with its range and its evidence."""
    if cost is None:
        return "no price is known"
    return (
        f"{format_money(cost.expected, currency)} (range {format_money(cost.low, currency)} to "
        f"{format_money(cost.high, currency)}), projected{_from(evidence)}"
    )


def price_words(decision: Decision, flavour: Flavour) -> str:
    """Return the price that the flavour's hours are counted at, and who says so."""
    own = decision.price_per_gpu_hour
    if own is not None:
        return f"{format_money(own, decision.choice.currency)} per GPU-hour, run.price_per_gpu_hour"
    price = flavour.price()
    if price is None:
        return "none is known"
    dated = f" as of {price.as_of.isoformat()}" if price.as_of else ""
    listed = f"from {price.listed_in}" if price.listed_in else price.origin.value
    return f"{price.usd_per_hour:,.2f} USD an hour, {listed}{dated}"


def hours_words(hours: Range | None, evidence: Evidence | None) -> str:
    """Return hours with their range and their evidence."""
    if hours is None:
        return "no time is known"
    expected, low, high = (format_duration(value * 3600) for value in (hours.expected, hours.low, hours.high))
    return f"{expected} (range {low} to {high}), projected{_from(evidence)}"


def _from(evidence: Evidence | None) -> str:
    return f" from {evidence.value} times" if evidence else ""


def range_words(value: Range | None) -> str | None:
    """Return a number with its range, for a column that names the unit."""
    if value is None:
        return None
    digits = _digits(value.expected)
    return f"{value.expected:,.{digits}f} ({value.low:,.{digits}f} to {value.high:,.{digits}f})"


def range_json(value: Range | None) -> dict[str, float] | None:
    """Return a range as plain data."""
    return None if value is None else {"expected": value.expected, "low": value.low, "high": value.high}


def signed_words(value: float | None, unit: str) -> str | None:
    """Return a change with its sign."""
    if value is None:
        return None
    if abs(value) < 1e-9:  # what is left of two sums that are equal
        return f"0.00 {unit}"
    return f"{value:+,.{_digits(value)}f} {unit}"


def _digits(value: float) -> int:
    """Digits after the point: two, or as many as show two that are not 0."""
    if value == 0 or abs(value) >= 0.1:
        return 2
    return 1 - math.floor(math.log10(abs(value)))
