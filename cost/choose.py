"""From what is known of every flavour, step and length to the one to rent, with the reason why each other one lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost.candidate import Candidate, Reason, Rejection
from cost.errors import CostError
from cost.evidence import Evidence, Range
from cost.units import SECONDS_PER_HOUR, format_duration, format_gb, format_money
from cost.verdict import Fit, Verdict

_ORDER = tuple(Reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """What the run itself may take at most, by the upper end of its range."""

    cost: float | None = None
    hours: float | None = None

    def allows(self, candidate: Candidate) -> bool:
        """Whether the candidate stays within it; what is not known of it is not held against it."""
        return not (self.is_over_cost(candidate) or self.is_over_hours(candidate))

    def is_over_cost(self, candidate: Candidate) -> bool:
        """Whether the upper end of its cost is above the limit."""
        return self.cost is not None and candidate.cost is not None and candidate.cost.high > self.cost

    def is_over_hours(self, candidate: Candidate) -> bool:
        """Whether the upper end of its hours is above the limit."""
        return self.hours is not None and candidate.hours is not None and candidate.hours.high > self.hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to rent, and why not the others."""

    chosen: Candidate | None
    """None where nothing fits, or nothing that fits can be priced."""
    at_least_tokens: int | None
    """The length that was asked for; else the longest that any priced candidate fits. None where none does."""
    rejections: tuple[Rejection, ...]
    """Every other candidate, in the order in which they were given."""
    eligible: tuple[Candidate, ...]
    """All that fit with margin, have a time and a price, and stay within the budget, of any length."""
    by_hours: bool
    """No candidate has a price, so the fewest hours were chosen."""
    currency: str

    def nearest_rejection(self, flavour: str) -> Rejection | None:
        """Return the rejection of a flavour's best candidate: the one that came nearest to being chosen."""
        ours = [r for r in self.rejections if r.candidate.flavour == flavour]
        return max(ours, key=_nearness, default=None)

    @property
    def lost(self) -> tuple[Rejection, ...]:
        """One rejection for every flavour but the chosen one's, in the order in which they were given."""
        winner = self.chosen.flavour if self.chosen else None
        flavours = dict.fromkeys(r.candidate.flavour for r in self.rejections)
        found = (self.nearest_rejection(name) for name in flavours if name != winner)
        return tuple(r for r in found if r is not None)


def choose(
    candidates: Sequence[Candidate],
    *,
    at_least_tokens: int | None = None,
    budget: RunBudget | None = None,
    currency: str = "USD",
) -> Decision:
    """Return the cheapest candidate of the length asked for, and the longest length among equally cheap ones.

    Without a length, it is the longest one that any candidate with a time and a price fits; shorter ones are cheaper as
    a rule, and ``cost.frontier`` shows them. Where no candidate at all has a price, hours decide.

    Args:
        candidates: Of one run: costs and hours are of the same data.
        at_least_tokens: The shortest length limit that will do.
        budget: Of the run.
        currency: A label for the sentences.

    Raises:
        CostError: There is no candidate, or the length is not positive.
    """
    if not candidates:
        raise CostError("There is nothing to choose from: give at least one flavour, step and length.")
    if at_least_tokens is not None and at_least_tokens < 1:
        raise CostError(f"A length is 1 token or more, not {at_least_tokens}.")
    by_hours = not any(c.price_per_hour is not None or c.cost is not None for c in candidates)
    misfits = _first_misfits(candidates)
    barriers = {id(c): _barrier(c, misfits, by_hours) for c in candidates}
    open_ones = [c for c in candidates if barriers[id(c)] is None]
    limits = budget or RunBudget()
    eligible = tuple(c for c in open_ones if limits.allows(c))
    wanted = at_least_tokens
    if wanted is None and (eligible or open_ones):
        wanted = max(c.length_tokens for c in eligible or open_ones)
    running = [c for c in eligible if wanted is None or c.length_tokens >= wanted]
    chosen = min(running, key=lambda c: (_value(c, by_hours).expected, -c.length_tokens), default=None)
    judge = _Judge(
        candidates=candidates, chosen=chosen, wanted=wanted, by_hours=by_hours, currency=currency, limits=limits
    )
    rejections = []
    for candidate in candidates:
        if candidate is not chosen:
            barrier = barriers[id(candidate)]
            rejections.append(judge.rejection(candidate, barrier, within=limits.allows(candidate)))
    return Decision(
        chosen=chosen,
        at_least_tokens=wanted,
        rejections=tuple(rejections),
        eligible=eligible,
        by_hours=by_hours,
        currency=currency,
    )


def _first_misfits(candidates: Sequence[Candidate]) -> dict[tuple[str, str], int]:
    """Return the shortest length that is known not to fit, by flavour and step; an unknown one bars no longer one."""
    found: dict[tuple[str, str], int] = {}
    for c in candidates:
        if c.fit is not None and not c.fits:
            key = (c.flavour, c.step)
            found[key] = min(c.length_tokens, found.get(key, c.length_tokens))
    return found


def _barrier(candidate: Candidate, misfits: dict[tuple[str, str], int], by_hours: bool) -> tuple[Reason, str] | None:
    """Return what keeps a candidate out whatever the others cost, or None."""
    if candidate.gpu_count > 1:
        return Reason.MULTI_GPU, f"it has {candidate.gpu_count} GPUs, all of them paid for; a step uses one"
    if not candidate.fits:
        return _misfit(candidate)
    shorter = misfits.get((candidate.flavour, candidate.step))
    if shorter is not None and shorter < candidate.length_tokens:
        return Reason.GAP, f"it fits, but {shorter} tokens do not: items of every length occur"
    if candidate.hours is None and candidate.cost is None:
        return Reason.NO_TIME, candidate.no_time or "it was not probed, and nothing forecasts its time"
    if not by_hours and candidate.cost is None:
        return Reason.NO_PRICE, "no list has a price for it: give one with price_usd_per_hour"
    return None


def _misfit(candidate: Candidate) -> tuple[Reason, str]:
    fit = candidate.fit
    if fit is None:
        return Reason.MEMORY_UNKNOWN, "neither a forecast nor a probe says whether it fits"
    if fit.verdict is Verdict.NO:
        return Reason.DOES_NOT_FIT, f"an allocation fails at {candidate.length_tokens} tokens" + _evidence(candidate)
    return Reason.TIGHT, _tight(fit) + _evidence(candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """Compares candidates with the chosen one."""

    candidates: Sequence[Candidate]
    chosen: Candidate | None
    wanted: int | None
    by_hours: bool
    currency: str
    limits: RunBudget

    def rejection(self, candidate: Candidate, barrier: tuple[Reason, str] | None, *, within: bool) -> Rejection:
        if barrier is not None and barrier[0] is not Reason.NO_TIME:
            return Rejection(candidate=candidate, reason=barrier[0], detail=barrier[1])
        if self.wanted is not None and candidate.length_tokens < self.wanted:
            detail = f"{candidate.length_tokens} tokens; {self.wanted} are wanted"
            return Rejection(candidate=candidate, reason=Reason.SHORTER, detail=detail)
        bound = self._bound(candidate)
        if bound is not None:
            return bound
        if barrier is not None:
            needed = self._share_needed(candidate)
            detail = barrier[1] + self._needs(candidate)
            return Rejection(candidate=candidate, reason=barrier[0], detail=detail, peak_share_needed=needed)
        if not within:
            return Rejection(candidate=candidate, reason=Reason.OVER_BUDGET, detail=self._over(candidate))
        return self._worse(candidate)

    def _bound(self, candidate: Candidate) -> Rejection | None:
        """Return the proof that a candidate whose time was not measured costs more than one that was."""
        if candidate.time_evidence is Evidence.MEASURED or self.by_hours:
            return None
        wanted = self.wanted or 0
        measured = [
            c.cost.high
            for c in self.candidates
            if c.fits and c.cost and c.time_evidence is Evidence.MEASURED and c.length_tokens >= wanted
        ]
        least = candidate.least_cost
        if not measured or least is None or least <= min(measured):
            return None
        detail = (
            f"even at its dense peak the run costs {format_money(least, self.currency)}; "
            f"the best measured one costs at most {format_money(min(measured), self.currency)}"
        )
        return Rejection(
            candidate=candidate,
            reason=Reason.CANNOT_WIN,
            detail=detail,
            peak_share_needed=self._share_needed(candidate),
        )

    def _worse(self, candidate: Candidate) -> Rejection:
        # It fits, is priced and within budget, so something was chosen.
        ours = _value(candidate, self.by_hours)
        best = _value(self.chosen or candidate, self.by_hours)
        more = ours.expected - best.expected
        overlap = ours.low <= best.high
        unsure = "; the ranges overlap" if overlap else ""
        if self.by_hours:
            detail = f"slower by {more:.1f} h{unsure}"
            return Rejection(candidate=candidate, reason=Reason.SLOWER, detail=detail, ranges_overlap=overlap)
        return Rejection(
            candidate=candidate,
            reason=Reason.DEARER,
            detail=f"dearer by {format_money(more, self.currency)}{unsure}" + self._needs(candidate),
            dearer_by=more,
            ranges_overlap=overlap,
            peak_share_needed=self._share_needed(candidate),
        )

    def _share_needed(self, candidate: Candidate) -> float | None:
        if candidate.time_evidence is Evidence.MEASURED or self.chosen is None or self.chosen.cost is None:
            return None
        return candidate.peak_share_needed(self.chosen.cost.expected)

    def _needs(self, candidate: Candidate) -> str:
        needed = self._share_needed(candidate)
        if needed is None:
            return ""
        text = f"; it would need {needed:.0%} of its dense peak to win"
        seen = [c.peak_share_seen for c in self.candidates if c.peak_share_seen is not None]
        return text + (f", and the highest measured here is {max(seen):.0%}" if seen else "")

    def _over(self, candidate: Candidate) -> str:
        limits, over = self.limits, []
        if limits.cost is not None and candidate.cost is not None and limits.is_over_cost(candidate):
            most, allowed = (format_money(amount, self.currency) for amount in (candidate.cost.high, limits.cost))
            over.append(f"{most}, over the {allowed}")
        if limits.hours is not None and candidate.hours is not None and limits.is_over_hours(candidate):
            most, allowed = (format_duration(h * SECONDS_PER_HOUR) for h in (candidate.hours.high, limits.hours))
            over.append(f"{most}, over the {allowed}")
        return f"it may take up to {', and '.join(over)} of the run's budget"


def _value(candidate: Candidate, by_hours: bool) -> Range:
    value = candidate.hours if by_hours else candidate.cost
    if value is None:  # barriers keep these out
        raise CostError(f"{candidate.flavour} has no {'time' if by_hours else 'cost'} to be compared by.")
    return value


def _nearness(rejection: Rejection) -> tuple[int, float, int]:
    """Later reasons are nearer; of equal ones the cheaper, then the longer."""
    candidate = rejection.candidate
    cost = candidate.cost or candidate.hours
    return (_ORDER.index(rejection.reason), -(cost.expected if cost else 0.0), candidate.length_tokens)


def _tight(fit: Fit) -> str:
    if fit.headroom_bytes < 0:
        return f"it runs, {format_gb(-fit.headroom_bytes)} inside the margin"
    return "it runs, but only because the allocator frees its cache and tries again"


def _evidence(candidate: Candidate) -> str:
    return f" ({candidate.memory_evidence.value})" if candidate.memory_evidence else ""
