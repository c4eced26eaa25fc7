"""What would make a run over one's own data fit: each suggestion is itself forecast before it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cost.lengths import OverLength
from cost.verdict import Verdict
from raysweep.memory.changes import Change, ChangeKind, Changes
from raysweep.memory.data_run import DataRun
from raysweep.memory.study import Card, OnCard, hangs_on_capacity, side_by_side
from raysweep.setting import StepSetting

MOST_OF_A_KIND = 2
"""Suggestions of one kind that are kept for a flavour: the first ones, which change least."""
EVENTS_FOR_ADVICE = 600_000_000
"""Of one step's suggestions, some 90 CPU seconds: what has not been tried by then is left out, and said so."""
CHANGES_AT_ONCE = 2
"""Few, so that little is tried beyond what is kept."""

_RANK = {Verdict.NO: 0, Verdict.TIGHT: 1, Verdict.FITS: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change, and what the forecast says of the run with it."""

    flavour: str
    kind: ChangeKind
    change: str
    """What to do."""
    consequence: str
    """What else comes of it; empty where nothing."""
    verdict: Verdict
    headroom_bytes: int
    retries: int
    peak_reserved_bytes: int
    freed_bytes: int | None
    """How much less is reserved than without the change; None where only a replay at the card's capacity tells."""
    helps: bool
    """True where the verdict is better than without the change."""
    frees_most: bool = False
    """True of the one change, of all that were tried but limits, after which the run reserves least."""
    limit_tokens: int | None = None
    lost_token_share: float | None = None
    """Share of all tokens that are no longer trained on."""
    changed_item_share: float | None = None
    """Share of the items that are cut, split or left out."""
    added_token_share: float | None = None
    """Padding, as a share of all tokens."""
    step: StepSetting | None = None


def advise(
    run: DataRun,
    cards: Sequence[Card],
    others: Mapping[StepSetting, DataRun],
    *,
    margin_share: float,
    over_length: OverLength = OverLength.TRUNCATE,
) -> tuple[tuple[Advice, ...], bool]:
    """Try changes on every card on which the run is tight or dies; return those that help, and what frees most.

    Args:
        run: the run as it is.
        cards: the devices.
        others: the same data under other step settings.
        margin_share: share of a device's memory kept free.
        over_length: what becomes of items beyond a limit.

    Returns:
        The suggestions, by card and kind; and whether all changes were tried, as they are unless the run is very long.
    """
    adviser = _Adviser(run, margin_share, over_length)
    wanting = [card for card in cards if adviser.before(card).fit.verdict is not Verdict.FITS]
    tried: dict[str, list[Advice]] = {card.flavour: [] for card in wanting}
    _try_each(adviser, (adviser.changes.levers,), wanting, tried)
    fits_expanding = {
        card.flavour
        for card in wanting
        if any(one.kind is ChangeKind.ALLOCATOR and one.verdict is Verdict.FITS for one in tried[card.flavour])
    }
    searches = [(card, False) for card in wanting]
    if not run.allocator.expandable_segments:
        searches += [(card, True) for card in wanting if card.flavour not in fits_expanding]
    for (card, _), limit in zip(searches, side_by_side(lambda one: adviser.limit(*one), searches), strict=True):
        best = max((one.limit_tokens or 0 for one in tried[card.flavour]), default=0)
        if limit is not None and (limit.limit_tokens or 0) > best:
            tried[card.flavour].append(adviser.try_on(limit, card))
    # Orders and paddings come last, since a long run may leave no time for them all.
    _try_each(adviser, (adviser.changes.orders, adviser.changes.paddings), wanting, tried)
    for change in adviser.changes.steps(others):
        for card in wanting:
            tried[card.flavour].append(adviser.try_on(change, card))
    return tuple(advice for card in wanting for advice in _chosen(tried[card.flavour])), not adviser.is_spent


def _try_each(
    adviser: _Adviser,
    kinds: Sequence[Callable[[], Sequence[Change]]],
    wanting: Sequence[Card],
    tried: Mapping[str, list[Advice]],
) -> None:
    """Try each kind of change on the cards that do not have enough of it yet."""
    for changes in kinds:
        for group in adviser.affordable(changes()) if wanting else ():
            looking = [card for card in wanting if _fitting(tried[card.flavour], group[0].kind) < MOST_OF_A_KIND]
            if not looking:
                break
            for advice in adviser.try_all(group, looking):
                tried[advice.flavour].append(advice)


def _fitting(tried: Sequence[Advice], kind: ChangeKind) -> int:
    return sum(advice.kind is kind and advice.verdict is Verdict.FITS for advice in tried)


def _chosen(tried: Sequence[Advice]) -> Iterator[Advice]:
    """The suggestions that help, of each kind those of the best verdict it reaches; and the one that frees most."""
    chosen: list[Advice] = []
    for kind in ChangeKind:
        mine = [advice for advice in tried if advice.helps and advice.kind is kind]
        best = max((advice.verdict for advice in mine), key=lambda verdict: _RANK[verdict], default=None)
        chosen += [advice for advice in mine if advice.verdict is best][:MOST_OF_A_KIND]
    others = [advice for advice in tried if advice.kind is not ChangeKind.LIMIT]
    freeing = max(others, key=lambda advice: advice.freed_bytes or 0, default=None)
    if freeing is not None and (freeing.freed_bytes or 0) > 0:
        if freeing not in chosen:
            chosen.append(freeing)
        chosen[chosen.index(freeing)] = replace(freeing, frees_most=True)
    yield from chosen


class _Adviser:
    """Judges the changed runs."""

    def __init__(self, run: DataRun, margin_share: float, over_length: OverLength) -> None:
        self.run, self.margin_share = run, margin_share
        self.changes = Changes(run, over_length)
        self.is_spent = False

    def before(self, card: Card) -> OnCard:
        """Return what becomes of the run as it is."""
        return self.run.on_card(card, margin_share=self.margin_share)

    def affordable(self, changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
        """Yield changes, a few at a time, until too many events have been played."""
        for i in range(0, len(changes), CHANGES_AT_ONCE):
            if not self._may_go_on():
                return
            yield changes[i : i + CHANGES_AT_ONCE]

    def _may_go_on(self) -> bool:
        self.is_spent = self.is_spent or self.changes.events_played > EVENTS_FOR_ADVICE
        return not self.is_spent

    def try_all(self, changes: Sequence[Change], cards: Sequence[Card]) -> list[Advice]:
        """Forecast changed runs on several cards."""
        # A change after which more is reserved than before is none to suggest: its replay ends where that shows.
        before = self.run.peaks().peak_reserved_bytes

        def frees(change: Change) -> bool:
            return hangs_on_capacity(change.run.allocator) or change.run.stays_within(before, quick=True)

        hopeful = [one for one, good in zip(changes, side_by_side(frees, changes), strict=True) if good]
        return side_by_side(lambda pair: self.try_on(*pair), [(one, card) for one in hopeful for card in cards])

    def try_on(self, change: Change, card: Card) -> Advice:
        """Forecast a changed run on a card: under the likeliest conditions, and under all where it fits under those."""
        before = self.run.on_card(card, margin_share=self.margin_share, quick=True)
        after = change.run.on_card(card, margin_share=self.margin_share, quick=True)
        freed = after.fit.headroom_bytes - before.fit.headroom_bytes
        rank = _RANK[self.before(card).fit.verdict]
        if _RANK[after.fit.verdict] > rank and after.fit.verdict is Verdict.FITS:
            after = change.run.on_card(card, margin_share=self.margin_share)
        return Advice(
            flavour=card.flavour,
            kind=change.kind,
            change=change.what,
            consequence=change.consequence.format(share=_share_below(card.capacity_bytes / card.memory_bytes)),
            verdict=after.fit.verdict,
            headroom_bytes=after.fit.headroom_bytes,
            retries=after.retries,
            peak_reserved_bytes=card.budget_bytes(self.margin_share) - after.fit.headroom_bytes,
            freed_bytes=None if hangs_on_capacity(change.run.allocator) else freed,
            helps=_RANK[after.fit.verdict] > rank,
            limit_tokens=change.limit_tokens,
            lost_token_share=change.lost_token_share,
            changed_item_share=change.changed_item_share,
            added_token_share=change.added_token_share,
            step=change.step,
        )

    def limit(self, card: Card, expandable: bool) -> Change | None:
        """Return the longest limit that fits, with expandable segments or as the run is."""
        budget = card.budget_bytes(self.margin_share)
        return self.changes.limit(card, budget, may_go_on=self._may_go_on, expandable=expandable)


def _share_below(share: float) -> str:
    """Return a share of the memory rounded down, so that it asks for no more than there is."""
    return f"{math.floor(share * 10_000) / 10_000}"
