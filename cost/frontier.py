"""What else one could have: the small frontier of cost, time and length, and what a change of mind costs."""

from __future__ import annotations

from dataclasses import dataclass

from cost.candidate import Candidate
from cost.choose import Decision
from cost.errors import CostError


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The best of each kind among the candidates that fit, are priced and stay within the budget."""

    cheapest: Candidate | None
    fastest: Candidate | None
    longest: Candidate | None
    """Of the longest length, the cheapest."""
    undominated: tuple[Candidate, ...]
    """No other is at once cheaper, faster and longer (or as good in all and better in one); cheapest first."""


def frontier(decision: Decision, *, at_least_tokens: int | None = None) -> Frontier:
    """Return the frontier of a decision's eligible candidates.

    Args:
        decision: Its budget holds.
        at_least_tokens: Leave out shorter lengths.
    """
    pool = [c for c in decision.eligible if at_least_tokens is None or c.length_tokens >= at_least_tokens]
    ordered = sorted(pool, key=_rank)
    return Frontier(
        cheapest=ordered[0] if ordered else None,
        fastest=min(ordered, key=_hours, default=None),
        longest=min(ordered, key=lambda c: (-c.length_tokens, _rank(c)), default=None),
        undominated=tuple(c for c in ordered if not any(_dominates(other, c) for other in ordered)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """What a decision on other terms would change: another margin, length limit or step."""

    label: str
    chosen: Candidate | None
    """None where nothing would be left to choose."""
    cost_change: float | None
    """Expected; positive is dearer. None where either decision has no price."""
    hours_change: float | None
    length_change_tokens: int | None


def trade_off(label: str, before: Decision, after: Decision) -> TradeOff:
    """Return what changes from one decision to another."""
    old, new = before.chosen, after.chosen
    if old is None or new is None:
        return TradeOff(label=label, chosen=new, cost_change=None, hours_change=None, length_change_tokens=None)
    return TradeOff(
        label=label,
        chosen=new,
        cost_change=new.cost.expected - old.cost.expected if new.cost and old.cost else None,
        hours_change=new.hours.expected - old.hours.expected if new.hours and old.hours else None,
        length_change_tokens=new.length_tokens - old.length_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """How much faster one flavour has to be than another to cost no more."""

    ratio: float | None
    """Of training speed; None where start-up alone already costs as much."""
    seen: float | None
    """The ratio that the candidates' own times give; None where one has none."""

    @property
    def pays(self) -> bool | None:
        """Whether the faster one is worth its price by what was seen; None where nothing was."""
        if self.seen is None:
            return None
        return self.ratio is not None and self.seen >= self.ratio


def break_even(one: Candidate, other: Candidate, *, start_hours: float = 0.0) -> BreakEven:
    """Return how many times as fast as ``one`` the ``other`` has to train to cost no more for the same run.

    With prices p an hour, s hours of start-up on each and w hours of training on the first, the second's speed has to
    be ``p2 w / (p1 (s + w) - p2 s)`` times the first's; without start-up that is the ratio of the prices.

    Args:
        one: Its hours are needed where there is a start-up.
        other: Its hours are not, but give ``seen``.
        start_hours: Of the hours of each, what does not depend on speed.

    Raises:
        CostError: A price is missing, or start-up is longer than a run.
    """
    if not one.price_per_hour or not other.price_per_hour:
        missing = other.flavour if one.price_per_hour else one.flavour
        raise CostError(f"A break-even needs both prices; {missing} has none. Give its price_usd_per_hour.")
    if start_hours == 0:
        ratio: float | None = other.price_per_hour / one.price_per_hour
    else:
        if one.hours is None or one.hours.expected <= start_hours:
            raise CostError(
                f"A break-even with a start-up of {start_hours:g} h needs the longer hours of {one.flavour}."
            )
        work_hours = one.hours.expected - start_hours
        left = one.price_per_hour * one.hours.expected - other.price_per_hour * start_hours
        ratio = other.price_per_hour * work_hours / left if left > 0 else None
    seen = None
    if one.hours is not None and other.hours is not None and other.hours.expected > start_hours:
        seen = (one.hours.expected - start_hours) / (other.hours.expected - start_hours)
    return BreakEven(ratio=ratio, seen=seen)


def _rank(candidate: Candidate) -> tuple[float, float, int]:
    return (candidate.cost.expected if candidate.cost else 0.0, _hours(candidate), -candidate.length_tokens)


def _hours(candidate: Candidate) -> float:
    return candidate.hours.expected if candidate.hours else float("inf")


def _dominates(one: Candidate, other: Candidate) -> bool:
    a, b = _rank(one), _rank(other)
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
