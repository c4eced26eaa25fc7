"""Changes to a run over data that may make it fit: the allocator's settings, the items' order, padding and limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from cost.lengths import OverLength
from raysweep.data.batching import bucket_by_length, pad_to_multiple, sort_by_length
from raysweep.data.items import Counts, Items
from raysweep.data.limit import limit_items
from raysweep.memory.data_run import DataRun, DataStage
from raysweep.memory.study import Card
from raysweep.setting import ALLOCATOR_VARIABLE, AllocatorSetting, StepSetting

LIMIT_GRAIN_TOKENS = 64
LIMITS = 64
"""A limit is sought among about as many, multiples of the grain: to a 64th of the longest item where that is more."""
PADDINGS_TOKENS = (64, 128, 256, 512)
GARBAGE_THRESHOLDS = (0.8, 0.6)
SPLIT_SIZES_MB = (512, 128)
BUCKET_STEPS = 50
"""Items of a bucket, in optimizer steps: as many as transformers' ``group_by_length`` takes."""

_EXPANDABLE = "expandable_segments:True"
_VERBS = {
    OverLength.TRUNCATE: "truncate items at",
    OverLength.DROP: "leave out items of more than",
    OverLength.SPLIT: "split items at",
}


class ChangeKind(StrEnum):
    """What a change touches, in the order in which they are tried: the cheapest to make come first."""

    ALLOCATOR = "allocator"
    ORDER = "order"
    PADDING = "padding"
    LIMIT = "limit"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change, and the run with it."""

    kind: ChangeKind
    what: str
    """What to do, for people."""
    run: DataRun
    consequence: str = ""
    """What else comes of it; ``{share}`` stands for the allocator's share of the card's memory."""
    limit_tokens: int | None = None
    lost_token_share: float | None = None
    changed_item_share: float | None = None
    added_token_share: float | None = None
    step: StepSetting | None = None


class Changes:
    """The changes that one run can undergo."""

    def __init__(self, run: DataRun, over_length: OverLength) -> None:
        """Take the run as it is, and what becomes of items beyond a limit."""
        self.run = run
        self._over_length = over_length
        self._made: list[DataRun] = []

    @property
    def events_played(self) -> int:
        """Of all changed runs so far."""
        return sum(run.events_played for run in self._made)

    def levers(self) -> list[Change]:
        """Return the allocator's own settings, as far as the run does not have them."""
        own = self.run.allocator
        if own.expandable_segments:
            # Segments that grow are neither collected nor split by size.
            return []
        changed: list[tuple[str, str, AllocatorSetting]] = [(_EXPANDABLE, "", replace(own, expandable_segments=True))]
        # Source: CUDACachingAllocator.cpp's malloc, which collects only where a fraction was set.
        needs = "acts only with torch.cuda.set_per_process_memory_fraction({share})"
        changed += [
            (f"garbage_collection_threshold:{share}", needs, replace(own, garbage_collection_threshold=share))
            for share in GARBAGE_THRESHOLDS
            if share != own.garbage_collection_threshold
        ]
        changed += [
            (f"max_split_size_mb:{size}", "", replace(own, max_split_size_mb=size))
            for size in SPLIT_SIZES_MB
            if size != own.max_split_size_mb
        ]
        return [
            Change(
                kind=ChangeKind.ALLOCATOR,
                what=f"{ALLOCATOR_VARIABLE}={words}",
                consequence=consequence,
                run=self._with(self.run.stages, setting),
            )
            for words, consequence, setting in changed
        ]

    def orders(self) -> list[Change]:
        """Return the items in other orders."""
        bucket = BUCKET_STEPS * self.run.step.micro_batch * self.run.step.accumulation
        orders: list[tuple[str, Callable[[Counts], Counts]]] = [
            ("sort each stage's items by length, longest first", sort_by_length),
            ("sort each stage's items by length, shortest first", np.sort),
            (f"sort by length within every {bucket:,} items", lambda tokens: bucket_by_length(tokens, bucket)),
        ]
        return [
            Change(
                kind=ChangeKind.ORDER,
                what=what,
                consequence="training sees the items in another order",
                run=self._with(_mapped(self.run.stages, order)),
            )
            for what, order in orders
        ]

    def paddings(self) -> list[Change]:
        """Return the lengths rounded up, so that fewer different sizes cut up the cache."""
        most = max(piece.last_tokens for piece in self.run.program.pieces)
        tokens = self._tokens
        found = []
        for multiple in PADDINGS_TOKENS:

            def padded(lengths: Counts, multiple: int = multiple) -> Counts:
                return np.minimum(pad_to_multiple(lengths, multiple), most)

            stages = _mapped(self.run.stages, padded)
            found.append(
                Change(
                    kind=ChangeKind.PADDING,
                    what=f"pad every length to a multiple of {multiple}",
                    run=self._with(stages),
                    added_token_share=sum(int(s.tokens.sum()) for s in stages) / tokens - 1,
                )
            )
        return found

    def steps(self, others: Mapping[StepSetting, DataRun]) -> list[Change]:
        """Return the same data under the other settings of the space."""
        return [
            Change(kind=ChangeKind.STEP, what=_difference(step, self.run.step), run=run, step=step)
            for step, run in others.items()
            if step != self.run.step
        ]

    def limit(
        self, card: Card, budget_bytes: int, *, may_go_on: Callable[[], bool], expandable: bool = False
    ) -> Change | None:
        """Return the longest limit on an item's length with which the run stays within a budget.

        Args:
            card: the device.
            budget_bytes: what the allocator may reserve there.
            may_go_on: asked before each replay.
            expandable: with expandable segments as well.
        """
        allocator = replace(self.run.allocator, expandable_segments=True) if expandable else self.run.allocator
        first = max(LIMIT_GRAIN_TOKENS, min(piece.first_tokens for piece in self.run.program.pieces))
        longest = max(int(stage.tokens.max()) for stage in self.run.stages)
        grain = max(1, longest // LIMITS // LIMIT_GRAIN_TOKENS) * LIMIT_GRAIN_TOKENS
        limits = range(-(-first // grain) * grain, longest, grain)

        def alone(limit: int) -> bool:
            # An item of that length in a steady state: milliseconds, and a run that holds one needs no less.
            conditions = self.run.conditions(card.workspace_bytes)[0]
            steady = self.run.replayer.steady(
                self._longest_under(limit), accumulation=self.run.step.accumulation, conditions=conditions
            )
            return steady.peak_allocated_bytes <= budget_bytes

        def whole(limit: int, *, quick: bool = True) -> bool:
            if not may_go_on():
                return False
            run = self._limited(limit, allocator).run
            return run.stays_within(budget_bytes, card.workspace_bytes, quick=quick)

        hopeful = limits[: _last_that(alone, limits) + 1]
        found = _last_that(whole, hopeful)
        # The search took the likeliest process; under all that a process may be like the limit may be a little lower.
        while found >= 0 and may_go_on():
            if whole(limits[found], quick=False):
                return self._limited(limits[found], allocator)
            found -= 1
        return None

    def _limited(self, limit: int, allocator: AllocatorSetting) -> Change:
        stages, lost, changed, items = [], 0, 0, 0
        for stage in self.run.stages:
            before = stage.tokens
            items += len(before)
            changed += int((before > limit).sum())
            if self._over_length is OverLength.DROP and before.min() > limit:
                lost += int(before.sum())
                continue
            after = limit_items(Items.of(before, name=stage.name), limit, self._over_length).tokens
            lost += int(before.sum() - after.sum())
            stages.append(replace(stage, tokens=after, index=None))
        own = allocator == self.run.allocator
        with_segments = "" if own else f", with {ALLOCATOR_VARIABLE}={_EXPANDABLE}"
        return Change(
            kind=ChangeKind.LIMIT,
            what=f"{_VERBS[self._over_length]} {limit:,} tokens{with_segments}",
            run=self._with(stages, allocator),
            limit_tokens=limit,
            lost_token_share=lost / self._tokens,
            changed_item_share=changed / items,
        )

    def _longest_under(self, limit: int) -> int:
        """The longest item under a limit; the limit itself where no item is left."""
        if self._over_length is not OverLength.DROP:
            return limit
        kept = [stage.tokens[stage.tokens <= limit] for stage in self.run.stages]
        return max((int(tokens.max()) for tokens in kept if tokens.size), default=limit)

    @property
    def _tokens(self) -> int:
        return sum(int(stage.tokens.sum()) for stage in self.run.stages)

    def _with(self, stages: Sequence[DataStage], allocator: AllocatorSetting | None = None) -> DataRun:
        run = DataRun(self.run.program, stages, allocator or self.run.allocator, replayer=self.run.replayer)
        self._made.append(run)
        return run


def _mapped(stages: Sequence[DataStage], change: Callable[[Counts], Counts]) -> tuple[DataStage, ...]:
    return tuple(replace(stage, tokens=change(stage.tokens), index=None) for stage in stages)


def _last_that(holds: Callable[[int], bool], values: Sequence[int]) -> int:
    """Return the place of the last value for which something holds, as if it held up to one and not beyond; or -1."""
    low, high = -1, len(values) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(values[middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _difference(step: StepSetting, from_step: StepSetting) -> str:
    fields = step.differing((from_step,)).items()
    return ", ".join(f"{name}: {'+'.join(v) if isinstance(v, tuple) else v}" for name, v in fields)
