"""One program on many cards: each replay is made once, and several at once where there are cores for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from cost.domain import Flavour
from cost.verdict import Fit, Verdict, judge
from raysweep.memory.conditions import Conditions, cublas_workspace_bytes, possible_conditions
from raysweep.memory.outcome import Failure, Replay
from raysweep.memory.program import Program
from raysweep.memory.replay import Replayer
from raysweep.setting import AllocatorSetting

NEAR_SHARE = 0.08
"""Two orders of segments were seen to reserve up to 6 % apart: further than this from an edge one replay decides."""
HOPELESS = 1.02
"""Allocated peaks this far above the capacity fail, whatever the cache: a block exceeds its request by 1 MiB."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A device as the forecast sees it."""

    flavour: str
    memory_bytes: int
    outside_bytes: int
    """Device memory that PyTorch's allocator does not manage."""
    outside_is_allowance: bool
    """True until a probe has measured it."""
    workspace_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(0, self.memory_bytes - self.outside_bytes)

    def budget_bytes(self, margin_share: float) -> int:
        """Return what the allocator may reserve with the margin kept free; negative where nothing is left."""
        return self.memory_bytes - round(margin_share * self.memory_bytes) - self.outside_bytes

    def judge(self, *, peak_reserved_bytes: int, runs: bool, retries: int, margin_share: float) -> Fit:
        """Return the verdict on a run that reserves so much on this card."""
        return judge(
            memory_bytes=self.memory_bytes,
            margin_share=margin_share,
            outside_bytes=self.outside_bytes,
            peak_reserved_bytes=peak_reserved_bytes,
            runs=runs,
            retries=retries,
        )

    @classmethod
    def of(cls, flavour: Flavour, *, outside_bytes: int, outside_is_allowance: bool) -> Card:
        """Return one GPU of a flavour.

        Raises:
            cost.errors.CostError: its memory is not known.
        """
        capability = flavour.device.compute_capability if flavour.device else None
        return cls(
            flavour=flavour.name,
            memory_bytes=flavour.total_memory_bytes,
            outside_bytes=outside_bytes,
            outside_is_allowance=outside_is_allowance,
            workspace_bytes=cublas_workspace_bytes(capability),
        )


def side_by_side(function: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
    """Return the function's results in the arguments' order, computed in a thread a core: replays hold no lock."""
    wanted = list(arguments)
    if len(wanted) <= 1:
        return [function(argument) for argument in wanted]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as threads:
        return list(threads.map(function, wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCard:
    """What becomes of a run on a card."""

    fit: Fit
    retries: int
    """How often the allocator frees its cache and tries again."""
    failure: Failure | None
    """Where the run dies; None where it finishes, or where that was not asked for."""


def hangs_on_capacity(allocator: AllocatorSetting) -> bool:
    """True where a replay without a capacity says nothing of one at a card's.

    Garbage is collected from a share of the capacity on; blocks that are not split pile up until it is reached.
    """
    return allocator.garbage_collection_threshold is not None or allocator.max_split_size_mb is not None


def judge_on(
    card: Card,
    play: Callable[[Conditions], Replay],
    likely: Sequence[Conditions],
    *,
    margin_share: float,
    name_failure: bool = True,
) -> OnCard:
    """Judge a run on a card by what it reserves, and by replays at the card's capacity where it reserves more.

    Args:
        card: the device.
        play: replays the run.
        likely: what its process may be like, likeliest first: the greatest reserved peak decides, and one death.
        margin_share: share of the memory kept free.
        name_failure: play a run that is sure to die to its end, to learn where.
    """
    reserved, runs, retries = 0, True, 0
    failure: Failure | None = None
    for conditions in likely:
        capped_conditions = replace(conditions, capacity_bytes=card.capacity_bytes)
        free = play(capped_conditions if hangs_on_capacity(conditions.allocator) else conditions)
        reserved = max(reserved, free.peak_reserved_bytes)
        within = free.runs and free.retries == 0 and free.peak_reserved_bytes <= card.capacity_bytes
        if within or not runs:
            continue
        if not name_failure and free.peak_allocated_bytes > HOPELESS * card.capacity_bytes:
            runs = False
            continue
        # At the cap the allocator frees its cache and tries again before it fails: only a replay there can tell.
        capped = play(capped_conditions)
        runs, failure = capped.runs, capped.failure
        retries = retries or capped.retries
    fit = card.judge(peak_reserved_bytes=reserved, runs=runs, retries=retries, margin_share=margin_share)
    return OnCard(fit=fit, retries=retries, failure=failure)


class Study:
    """One program under one allocator setting, in a steady state of one length."""

    def __init__(self, program: Program, allocator: AllocatorSetting) -> None:
        """Nothing is replayed yet."""
        self.program = program
        self.step = program.step
        self.allocator = allocator
        self.replayer = Replayer(program)
        self._played: dict[tuple[int, Conditions], Replay] = {}

    def steady(self, length_tokens: int, *, workspace_bytes: int, capacity_bytes: int | None = None) -> Replay:
        """Replay one length on a card's chip, at a capacity where one is given."""
        return self._play(length_tokens, self._conditions(workspace_bytes, capacity_bytes))

    def reserved_range(self, length_tokens: int, *, workspace_bytes: int) -> tuple[int, int]:
        """Return the least and the greatest reserved peak over what a run cannot know of its own process."""
        peaks = [
            self._play(length_tokens, possible).peak_reserved_bytes
            for possible in possible_conditions(self._conditions(workspace_bytes))
        ]
        return min(peaks), max(peaks)

    def fit(
        self,
        length_tokens: int,
        card: Card,
        *,
        margin_share: float,
        conditions: Sequence[Conditions] | None = None,
    ) -> Fit:
        """Return the verdict on one length on one card, by the greatest reserved peak.

        Under the conditions given; by default under the likeliest and the worst of all that a process cannot know.
        """
        likely = conditions or self.likely_conditions(length_tokens, card.workspace_bytes)
        play = partial(self._play, length_tokens)
        return judge_on(card, play, likely, margin_share=margin_share, name_failure=False).fit

    def far_verdict(self, length_tokens: int, card: Card, *, margin_share: float) -> Verdict | None:
        """Return the verdict where one replay is enough for it: far from every edge. None near one.

        cuBLAS's workspaces differ by 48 MiB between chips, far below what counts as near: one replay serves all cards.
        """
        plain = self._play(length_tokens, self._conditions(cublas_workspace_bytes(None)))
        slack = NEAR_SHARE * plain.peak_reserved_bytes
        low, high = plain.peak_reserved_bytes - slack, plain.peak_reserved_bytes + slack
        if high <= card.budget_bytes(margin_share):
            return Verdict.FITS
        if low > card.budget_bytes(margin_share) and high <= card.capacity_bytes:
            return None if hangs_on_capacity(self.allocator) else Verdict.TIGHT
        if plain.peak_allocated_bytes > (HOPELESS + NEAR_SHARE) * card.capacity_bytes:
            return Verdict.NO
        return None

    def verdicts(
        self, lengths: Sequence[int], cards: Sequence[Card], *, margin_share: float
    ) -> dict[tuple[int, str], Verdict]:
        """Return the verdict on each length and flavour; near an edge by all that a process cannot know of itself."""
        plain = self._conditions(cublas_workspace_bytes(None))
        self.play_all((length, plain) for length in lengths)
        far = {
            (length, card.flavour): self.far_verdict(length, card, margin_share=margin_share)
            for length in lengths
            for card in cards
        }
        near = [(length, card) for length in lengths for card in cards if far[length, card.flavour] is None]
        self.play_ranges({(length, card.workspace_bytes) for length, card in near})

        def decide(one: tuple[int, Card]) -> Verdict:
            return self.fit(*one, margin_share=margin_share).verdict

        decided = dict(zip(((n, card.flavour) for n, card in near), side_by_side(decide, near), strict=True))
        return {key: verdict or decided[key] for key, verdict in far.items()}

    def play_ranges(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Make the replays of ``reserved_range`` for pairs of a length and a workspace's bytes."""
        self.play_all(
            (length, possible)
            for length, workspace_bytes in sorted(wanted)
            for possible in possible_conditions(self._conditions(workspace_bytes))
        )

    def play_all(self, wanted: Iterable[tuple[int, Conditions]]) -> None:
        """Make many replays at once."""
        missing = [key for key in dict.fromkeys(wanted) if key not in self._played]
        side_by_side(lambda key: self._play(*key), missing)

    def likely_conditions(self, length_tokens: int, workspace_bytes: int) -> tuple[Conditions, ...]:
        """Return the likeliest conditions, and those under which the length reserves most where they are others."""
        possible = possible_conditions(self._conditions(workspace_bytes))
        worst = max(possible, key=lambda one: self._play(length_tokens, one).peak_reserved_bytes)
        return tuple(dict.fromkeys((possible[0], worst)))

    def _conditions(self, workspace_bytes: int, capacity_bytes: int | None = None) -> Conditions:
        return Conditions(allocator=self.allocator, workspace_bytes=workspace_bytes, capacity_bytes=capacity_bytes)

    def _play(self, length_tokens: int, conditions: Conditions) -> Replay:
        key = (length_tokens, conditions)
        if key not in self._played:
            self._played[key] = self.replayer.steady(
                length_tokens, accumulation=self.step.accumulation, conditions=conditions
            )
        return self._played[key]
