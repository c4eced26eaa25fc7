"""A run over one's own data: its items in their order through one allocator, from the first to the last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cost.verdict import Verdict
from raysweep.data.batching import is_padded, micro_batches
from raysweep.data.items import Counts
from raysweep.memory.conditions import Conditions, cublas_workspace_bytes, possible_conditions
from raysweep.memory.outcome import Moment, Replay
from raysweep.memory.program import Program
from raysweep.memory.replay import Pass, Replayer
from raysweep.memory.study import NEAR_SHARE, Card, OnCard, hangs_on_capacity, judge_on, side_by_side
from raysweep.setting import AllocatorSetting, StepSetting

EVENTS_UNDER_ALL_CONDITIONS = 1_000_000
"""A run of more events (some 60 micro-steps of a 7B model) is replayed under the likeliest conditions alone."""
LIKELIEST = 3
"""A fresh process with segments from high addresses to low, a used one, and a fresh one from low to high."""
MOST_MICRO_STEPS = 20_000
"""Of one pass: some 45 seconds of a 7B model's replay. Of longer passes a part is replayed, and named as a part."""
LONGEST_WINDOWS = 200
"""Optimizer steps with the longest items that a part of a pass holds besides the pass's beginning."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataStage:
    """Items in training order, and how often they are seen."""

    name: str
    tokens: Counts
    """Tokens of each item, shape [items]."""
    epochs: float = 1.0
    index: Counts | None = None
    """Each item's place in its file, counted from 0; None where the order is the file's own."""
    all_items: int | None = None
    """How many items the data has, where ``tokens`` holds a part of them."""

    def place(self, item: int) -> int:
        """Return the place in the file of an item of this order."""
        return item if self.index is None else int(self.index[item])

    def part(self, micro_batch: int, accumulation: int) -> DataStage:
        """Return the stage, or of a very long one its beginning and the optimizer steps with its longest items."""
        items = MOST_MICRO_STEPS * micro_batch
        if self.all_items is not None or len(self.tokens) <= items:
            return self
        window = micro_batch * accumulation
        starts = np.arange(0, len(self.tokens), window)
        longest = np.argsort(np.maximum.reduceat(self.tokens, starts), kind="stable")[::-1][:LONGEST_WINDOWS]
        chosen = np.union1d(np.arange(max(1, items // window)), longest)
        rows = np.flatnonzero(np.isin(np.arange(len(self.tokens)) // window, chosen))
        index = rows if self.index is None else self.index[rows]
        return replace(self, tokens=self.tokens[rows], index=index, all_items=len(self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFit:
    """What becomes of the run on one flavour."""

    verdict: Verdict
    headroom_bytes: int
    retries: int
    """How often the allocator frees its cache and tries again, up to where the run dies if it does."""
    fails_at_item: int | None
    """Index from 0, in its file, of the longest item of the micro-batch at which the run dies; None where it does not,
    or where the model does not even load."""
    fails_at_tokens: int | None
    fails_in: str | None
    """The stage at which it dies."""
    fails_at: Moment | None
    requested_bytes: int | None
    """What the allocation that failed asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPeaks:
    """What the run reaches on a device without end."""

    items: int
    """In one epoch of all its stages."""
    items_played: int
    """Fewer than ``items`` where the data are so many that a part was replayed."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None
    """Least and greatest, where the peak hangs on what a process cannot know of itself; verdicts take the greatest."""


class DataRun:
    """One step setting over stages of data, in one process."""

    def __init__(
        self,
        program: Program,
        stages: Sequence[DataStage],
        allocator: AllocatorSetting,
        *,
        replayer: Replayer | None = None,
    ) -> None:
        """Lay the run out; nothing is replayed yet.

        Args:
            program: covers every item's length.
            stages: at least one, each of at least one item.
            allocator: the allocator's setting.
            replayer: of the program, where there is one already.
        """
        self.program = program
        self.step: StepSetting = program.step
        self.allocator = allocator
        self.replayer = replayer or Replayer(program)
        self.stages = tuple(stage.part(self.step.micro_batch, self.step.accumulation) for stage in stages)
        self._passes = [
            (number, one) for number, stage in enumerate(self.stages) for one in _passes(stage, self.step.micro_batch)
        ]
        self._played: dict[Conditions, Replay] = {}
        self.events = self._count_events()
        """Of one replay of the whole run, each pass once."""
        self.events_played = 0

    def play(self, conditions: Conditions) -> Replay:
        """Replay the run; once for each conditions."""
        if conditions not in self._played:
            self._played[conditions] = self.replayer.run_passes(
                [one for _, one in self._passes], accumulation=self.step.accumulation, conditions=conditions
            )
            self.events_played += self.events
        return self._played[conditions]

    def stays_within(self, limit_bytes: int, workspace_bytes: int | None = None, *, quick: bool = False) -> bool:
        """Whether the run reserves at most this; the replay ends at the first sign that it does not.

        Args:
            limit_bytes: what the allocator may reserve.
            workspace_bytes: of the card's chip; None is the one whose replays cards far from their edges share.
            quick: as ``on_card``'s.
        """
        chip = cublas_workspace_bytes(None) if workspace_bytes is None else workspace_bytes
        likely = self.conditions(chip)[: 1 if quick else None]
        return all(self._stays_within(max(0, limit_bytes), one) for one in likely)

    def _stays_within(self, limit_bytes: int, conditions: Conditions) -> bool:
        if conditions in self._played:
            return self._played[conditions].peak_reserved_bytes <= limit_bytes
        found = self.replayer.run_passes(
            [one for _, one in self._passes],
            accumulation=self.step.accumulation,
            conditions=replace(conditions, capacity_bytes=limit_bytes),
            until_retry=True,
        )
        within = found.runs and found.retries == 0
        if within and not hangs_on_capacity(self.allocator):
            # No capacity was felt: without one the run is the same.
            self._played[conditions] = found
        # A replay that ended early took some part of a whole one's time: a third is a guess that need not be good.
        self.events_played += self.events if within else self.events // 3
        return within

    def conditions(self, workspace_bytes: int) -> tuple[Conditions, ...]:
        """Return what the run's process may be like, likeliest first: fewer ways where the run is long."""
        possible = possible_conditions(Conditions(allocator=self.allocator, workspace_bytes=workspace_bytes))
        if self.events <= EVENTS_UNDER_ALL_CONDITIONS:
            return possible
        return possible[:LIKELIEST]

    def prepare(self, cards: Sequence[Card], *, margin_share: float) -> None:
        """Make the replays that ``on_card`` needs, side by side: first those without a cap, which cards share."""
        plain = self.play(self._plain)
        near = [card for card in cards if self._is_near(plain, card, margin_share)]
        chips = dict.fromkeys(card.workspace_bytes for card in near)
        if not hangs_on_capacity(self.allocator):
            side_by_side(self.play, [one for chip in chips for one in self.conditions(chip)])
        side_by_side(partial(self.on_card, margin_share=margin_share), cards)

    def on_card(self, card: Card, *, margin_share: float, quick: bool = False) -> OnCard:
        """Return what becomes of the run on a card; quickly: under the likeliest conditions alone.

        A long run that is far from the card's edges is judged by one replay without a cap, which all cards share:
        cuBLAS's workspaces differ by 48 MiB between chips.
        """
        own = self.conditions(card.workspace_bytes)
        if hangs_on_capacity(self.allocator):
            return judge_on(card, self.play, own[:1] if quick else own, margin_share=margin_share)
        if self._is_near(self.play(self._plain), card, margin_share):
            worst = own[0] if quick else max(own, key=lambda one: self.play(one).peak_reserved_bytes)
            return judge_on(card, self.play, tuple(dict.fromkeys((own[0], worst))), margin_share=margin_share)
        return judge_on(card, self._play_shared, own[:1], margin_share=margin_share)

    def _play_shared(self, conditions: Conditions) -> Replay:
        return self.play(self._plain if conditions.capacity_bytes is None else conditions)

    @property
    def _plain(self) -> Conditions:
        return self.conditions(cublas_workspace_bytes(None))[0]

    def _is_near(self, plain: Replay, card: Card, margin_share: float) -> bool:
        slack = NEAR_SHARE * plain.peak_reserved_bytes
        edges = (card.budget_bytes(margin_share), card.capacity_bytes)
        short = self.events <= EVENTS_UNDER_ALL_CONDITIONS
        return short or any(abs(plain.peak_reserved_bytes - edge) <= slack for edge in edges)

    def fit(self, card: Card, *, margin_share: float) -> DataFit:
        """Return the verdict on a card, and the item at which the run dies there."""
        found = self.on_card(card, margin_share=margin_share)
        stage, item, tokens = None, None, None
        if found.failure is not None and not found.failure.loading:
            stage, item, tokens = self._failing_item(found.failure.moment)
        return DataFit(
            verdict=found.fit.verdict,
            headroom_bytes=found.fit.headroom_bytes,
            retries=found.retries,
            fails_at_item=item,
            fails_at_tokens=tokens,
            fails_in=stage,
            fails_at=found.failure.moment if found.failure else None,
            requested_bytes=found.failure.requested_bytes if found.failure else None,
        )

    def peaks(self) -> DataPeaks:
        """Return both peaks on a device without end: with a range, where more than one replay was needed."""
        plain = self.play(self._plain)
        short = self.events <= EVENTS_UNDER_ALL_CONDITIONS
        possible = self.conditions(cublas_workspace_bytes(None))
        reserved = [self.play(one).peak_reserved_bytes for one in possible if short or one in self._played]
        return DataPeaks(
            items=sum(stage.all_items or len(stage.tokens) for stage in self.stages),
            items_played=sum(len(stage.tokens) for stage in self.stages),
            peak_allocated_bytes=plain.peak_allocated_bytes,
            peak_reserved_bytes=plain.peak_reserved_bytes,
            peak_reserved_range_bytes=(min(reserved), max(reserved)) if min(reserved) != max(reserved) else None,
        )

    def _failing_item(self, moment: Moment) -> tuple[str, int, int]:
        """The stage, place in its file and tokens of the longest item of the micro-batch that dies."""
        stage = self.stages[self._passes[moment.pass_index][0]]
        batch = stage.tokens[moment.item : moment.item + self.step.micro_batch]
        item = moment.item + int(np.argmax(batch))
        return stage.name, stage.place(item), int(stage.tokens[item])

    def _count_events(self) -> int:
        lengths = np.concatenate([np.asarray(one.lengths) for _, one in self._passes])
        return len(lengths) * self.replayer.micro_step_events(int(np.median(lengths)))


_EPOCH_DUST = 1e-9


def _passes(stage: DataStage, micro_batch: int) -> Iterator[Pass]:
    """The stage's whole epochs, and the beginning of a last one that is not whole."""
    # A number of epochs that was computed is not exact in binary: 2.9999999999 are 3.
    whole, rest = divmod(stage.epochs + _EPOCH_DUST, 1)
    if whole:
        yield _pass(stage.tokens, micro_batch, times=int(whole))
    if rest > 2 * _EPOCH_DUST:
        items = math.ceil((rest - 2 * _EPOCH_DUST) * len(stage.tokens))
        yield _pass(stage.tokens[:items], micro_batch)


def _pass(tokens: Counts, micro_batch: int, times: int = 1) -> Pass:
    lengths, padded = micro_batches(tokens, micro_batch), is_padded(tokens, micro_batch)
    return Pass(lengths=[int(n) for n in lengths], padded=[bool(one) for one in padded], times=times)
