"""Play a program's events through the allocator: one length in a steady state, or a run's own sequence of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raysweep.memory.allocator import Heap, Placement, empty_cache, free, malloc, new_heap
from raysweep.memory.blocks import BOOKS, KIB, MIB, NO_MEMORY, PEAK_ALLOCATED, SIZE, Table
from raysweep.memory.program import (
    FIXED,
    FOREIGN_STRIDE,
    SEGMENTS,
    Category,
    Flat,
    Op,
    Program,
    SegmentName,
    flatten,
)
from raysweep.setting import AllocatorSetting

WORKSPACES = 2
"""cuBLAS takes one in the main thread and one in autograd's."""

STEADY_STEPS = 2
"""Optimizer steps after which the peaks of one length repeat: the second one begins with the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event of a run, for people."""

    phase: str
    layer: int | None
    op: str
    item: int
    """Index from 0, within its pass, of the item whose micro-step this is; for a micro-batch, of its first item."""
    pass_index: int = 0
    """Index from 0 of the ``Pass`` to which the item belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The allocation that could not be served."""

    moment: Moment
    requested_bytes: int
    loading: bool = False
    """True where the model itself could not be put in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a run reaches. Peaks count from the end of loading."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    components_bytes: dict[Category, int]
    """The allocated peak by what it is for: they add up to it exactly."""
    peak_moment: Moment | None
    """None where the peak is what loading left."""
    failure: Failure | None
    """None where the run finishes."""

    @property
    def runs(self) -> bool:
        """True where every allocation was served."""
        return self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Micro-steps in their order, and how often all of them are seen, an optimizer step at the end of each time."""

    lengths: Sequence[int]
    """Tokens of each micro-step's (padded) items."""
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a program is played under."""

    allocator: AllocatorSetting = field(default_factory=AllocatorSetting)
    capacity_bytes: int | None = None
    """What the allocator may reserve: the device's memory less what lives outside it. None is no limit."""
    placement: Placement = Placement.DESCENDING
    seed: int = 1
    workspace_bytes: int = 32 * MIB
    """Of one cuBLAS workspace: 32 MiB on Hopper, see ``cublas_workspace_bytes``."""
    warm_process: bool = False
    """True where the process ran a step before it loaded this model: cuBLAS's workspaces are then there already."""


def cublas_workspace_bytes(compute_capability: str | None) -> int:
    """Return the bytes of one of cuBLAS's workspaces on a chip, such as "8.0"; Hopper's where the chip is not known.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 4096 KiB x 2 + 16 KiB x 8, and 32 MiB on
    Hopper and Blackwell.
    """
    if compute_capability is None or int(compute_capability.split(".")[0]) >= _HOPPER:
        return 32 * MIB
    return 4096 * 2 * KIB + 16 * 8 * KIB


_HOPPER = 9
"""Major compute capability."""


class Replayer:
    """A program made ready to be played many times: segments are laid out once for each number of loss chunks."""

    def __init__(self, program: Program) -> None:
        """Keep the program; nothing is computed yet."""
        self.program = program
        self._flats: dict[tuple[SegmentName, int, int], _Playable] = {}

    def steady(self, length_tokens: int, *, accumulation: int, conditions: Conditions | None = None) -> Replay:
        """Play ``STEADY_STEPS`` optimizer steps of micro-steps that all have one length."""
        # Micro-steps after the second repeat it event for event: nothing new can happen in them.
        micro_steps = min(accumulation, 2)
        return self.run([length_tokens] * (STEADY_STEPS * micro_steps), accumulation=micro_steps, conditions=conditions)

    def run(self, lengths: Sequence[int], *, accumulation: int, conditions: Conditions | None = None) -> Replay:
        """Play a run: one micro-step for each length, an optimizer step after every ``accumulation`` and at the end.

        Args:
            lengths: tokens of each micro-step's (padded) items.
            accumulation: micro-steps an optimizer step.
            conditions: the allocator's setting and capacity.

        Raises:
            KeyError: the program does not cover some length.
        """
        return self.run_passes([Pass(lengths=lengths)], accumulation=accumulation, conditions=conditions)

    def run_passes(
        self,
        passes: Sequence[Pass],
        *,
        accumulation: int,
        conditions: Conditions | None = None,
        until_retry: bool = False,
    ) -> Replay:
        """Play passes over data one after another in one process.

        What a time of a pass leaves is the same as what the time before left where the sizes of all free blocks are:
        what lives between optimizer steps never moves. Times after such a one repeat it and are only counted.

        Args:
            passes: at least one, each of at least one micro-step.
            accumulation: micro-steps an optimizer step.
            conditions: the allocator's setting and capacity.
            until_retry: stop after the segment in which the allocator first frees its cache and tries again. A replay
                whose ``retries`` are 0 was played to its end.

        Raises:
            KeyError: the program does not cover some length.
        """
        conditions = conditions or Conditions()
        game = _Game(self._room([n for p in passes for n in p.lengths]), conditions)
        played: list[_Played] = []
        for pass_index, one in enumerate(passes):
            left, retries = game.left(), game.heap.retries
            for time in range(one.times):
                schedule = _schedule(one.lengths, accumulation, from_loading=pass_index == time == 0)
                for name, length, micro_step in schedule:
                    playable = self._playable(name, length)
                    played.append((playable, micro_step, pass_index))
                    event = game.play(playable, self.program.features(length), len(played) - 1)
                    if event is not None:
                        failure = Failure(
                            moment=self._moment(played[-1], event),
                            requested_bytes=game.heap.failed_request_bytes,
                            loading=name is SegmentName.SETUP,
                        )
                        return game.replay(peak_moment=self._peak_moment(game, played), failure=failure)
                    if name is SegmentName.SETUP:
                        game.start_counting()
                    if until_retry and game.heap.retries:
                        return game.replay(peak_moment=self._peak_moment(game, played), failure=None)
                before, left = left, game.left()
                if left == before and not game.ages_matter:
                    game.repeated_retries += (one.times - 1 - time) * (game.heap.retries - retries)
                    break
                retries = game.heap.retries
        return game.replay(peak_moment=self._peak_moment(game, played), failure=None)

    def reserved_range(
        self, lengths: Sequence[int], *, accumulation: int, conditions: Conditions | None = None
    ) -> tuple[int, int]:
        """Return the least and the greatest reserved peak over what a run cannot know of its own process.

        That is the order in which the device places segments, and whether cuBLAS's workspaces were there before the
        model.
        """
        peaks = [
            self.run(lengths, accumulation=accumulation, conditions=possible).peak_reserved_bytes
            for possible in possible_conditions(conditions or Conditions())
        ]
        return min(peaks), max(peaks)

    def micro_step_events(self, length_tokens: int) -> int:
        """Return how many events a micro-step has: what a replay's time hangs on."""
        return len(self._playable(SegmentName.MICRO, length_tokens).flat.op)

    def _playable(self, name: SegmentName, length: int) -> _Playable:
        program = self.program
        segment = program.segment(name, length)
        chunks = program.chunks(length)[0] if segment.is_cut else 1
        key = (name, id(segment), chunks)
        if key not in self._flats:
            self._flats[key] = _Playable(flatten(segment, chunks), SEGMENTS.index(name), self._categories)
        return self._flats[key]

    @cached_property
    def _categories(self) -> NDArray[np.int8]:
        return np.array([label.category for label in self.program.labels], np.int8)

    def _room(self, lengths: Sequence[int]) -> _Room:
        names = [*SEGMENTS]
        objects, survivors, kept = 0, 0, 0
        # Within a piece the longest length has the most loss chunks, and so the most objects.
        longest: dict[int, int] = {}
        for length in set(lengths):
            piece = self.program.piece(length)
            longest[piece.first_tokens] = max(length, longest.get(piece.first_tokens, 0))
        for length in longest.values():
            for name in names:
                if name not in FIXED and name not in self.program.piece(length).segments:
                    continue
                flat = self._playable(name, length).flat
                objects = max(objects, flat.objects)
                survivors = max(survivors, flat.survivors)
                kept += flat.survivors
        return _Room(objects=objects, survivors=survivors, blocks=2 * (objects + kept) + 4096)

    def _peak_moment(self, game: _Game, played: Sequence[_Played]) -> Moment | None:
        place, event = int(game.marks[0]), int(game.marks[1])
        return None if place < 0 else self._moment(played[place], event)

    def _moment(self, played: _Played, event: int) -> Moment:
        playable, micro_step, pass_index = played
        label = self.program.labels[playable.flat.label[event]]
        return Moment(
            phase=label.phase,
            layer=label.layer,
            op=label.op,
            item=micro_step * self.program.step.micro_batch,
            pass_index=pass_index,
        )


def possible_conditions(conditions: Conditions) -> tuple[Conditions, ...]:
    """Return what a run cannot know of its own process, the likeliest first: each a variant of the conditions given.

    The order in which the device places segments, and whether cuBLAS's workspaces were there before the model.
    """
    orders = [(Placement.DESCENDING, 1), (Placement.ASCENDING, 1), (Placement.RANDOM, 1), (Placement.RANDOM, 2)]
    return tuple(
        replace(conditions, placement=placement, seed=seed, warm_process=warm)
        for placement, seed in orders
        for warm in (False, True)
    )


def _schedule(
    lengths: Sequence[int], accumulation: int, *, from_loading: bool
) -> Iterator[tuple[SegmentName, int, int]]:
    """The segments of a pass in order, each with a length and the micro-step it belongs to."""
    if from_loading:
        yield SegmentName.SETUP, lengths[0] if lengths else 1, 0
    for i, length in enumerate(lengths):
        first = from_loading and i < accumulation
        if from_loading and i == 0:
            yield SegmentName.FIRST_MICRO, length, i
        elif i % accumulation:
            yield SegmentName.LATER_MICRO, length, i
        else:
            yield SegmentName.MICRO, length, i
        if i % accumulation == accumulation - 1 or i == len(lengths) - 1:
            yield (SegmentName.FIRST_STEP if first else SegmentName.STEP), length, i


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Array sizes that hold a whole run."""

    objects: int
    survivors: int
    blocks: int


class _Playable:
    """A flat segment with its allocations' categories."""

    def __init__(self, flat: Flat, place: int, categories: NDArray[np.int8]) -> None:
        self.flat = flat
        self.place = place
        self.category = np.where(flat.label >= 0, categories[np.maximum(flat.label, 0)], 0).astype(np.int8)
        self.workspaces = np.flatnonzero((flat.label >= 0) & (self.category == Category.WORKSPACE))


_Played = tuple[_Playable, int, int]
"""A segment that was played, its micro-step and its pass."""


class _Game:
    """One play: the heap, the handles, and what is alive by category."""

    def __init__(self, room: _Room, conditions: Conditions) -> None:
        self.heap: Heap = new_heap(
            room.blocks,
            conditions.allocator,
            capacity_bytes=conditions.capacity_bytes,
            placement=conditions.placement,
            seed=conditions.seed,
        )
        self.handles = np.full(room.objects + 1, NO_MEMORY, np.int64)
        self.foreign = np.full((len(SEGMENTS), room.survivors + 1), NO_MEMORY, np.int64)
        self.conditions = conditions
        self.alive = np.zeros(len(Category), np.int64)
        if conditions.warm_process:
            for _ in range(WORKSPACES):
                block = self.heap.malloc(conditions.workspace_bytes)
                self.alive[Category.WORKSPACE] += self.heap.block_bytes(block)
        self.block_category = np.zeros(room.blocks, np.int8)
        self.at_peak = np.zeros(len(Category), np.int64)
        self.marks = np.full(2, -1, np.int64)
        self.repeated_retries = 0
        """Of passes that repeat the one before and are not played."""

    @property
    def ages_matter(self) -> bool:
        """True where the allocator looks at how long a block lies free: a pass may then differ from an equal one."""
        return self.conditions.allocator.garbage_collection_threshold is not None

    def left(self) -> tuple[bytes, ...]:
        """Return the sizes of all free blocks, pool by pool."""
        return self.heap.free_sizes()

    def play(self, playable: _Playable, features: NDArray[np.float64], place: int) -> int | None:
        """Play one segment; return the index of the event that failed, or None."""
        flat = playable.flat
        nbytes = np.rint(flat.size @ features).astype(np.int64)
        # A warm process took its workspaces before: here the event is left, of the least size there is.
        nbytes[playable.workspaces] = 0 if self.conditions.warm_process else self.conditions.workspace_bytes
        failed = _play(
            self.heap.table,
            flat.op,
            flat.object,
            nbytes,
            playable.category,
            self.handles,
            self.foreign,
            self.block_category,
            self.alive,
            self.at_peak,
            self.marks,
            place,
        )
        if failed >= 0:
            return int(failed)
        self.foreign[playable.place, : flat.survivors] = self.handles[: flat.survivors]
        return None

    def start_counting(self) -> None:
        """Forget the peaks of loading."""
        self.heap.reset_peaks()
        self.at_peak[:] = self.alive
        self.marks[:] = -1

    def replay(self, *, peak_moment: Moment | None, failure: Failure | None) -> Replay:
        """Return what was reached."""
        return Replay(
            peak_allocated_bytes=self.heap.peak_allocated_bytes,
            peak_reserved_bytes=self.heap.peak_reserved_bytes,
            retries=self.heap.retries + self.repeated_retries,
            components_bytes={c: int(self.at_peak[c]) for c in Category},
            peak_moment=peak_moment,
            failure=failure,
        )


_FREE, _EMPTY_CACHE = int(Op.FREE), int(Op.EMPTY_CACHE)


@njit(cache=True, nogil=True)
def _play(  # noqa: PLR0917  numba compiles positional arguments alone
    heap: Table,
    op: NDArray[np.int8],
    objects: NDArray[np.int64],
    nbytes: NDArray[np.int64],
    category: NDArray[np.int8],
    handles: NDArray[np.int64],
    foreign: NDArray[np.int64],
    block_category: NDArray[np.int8],
    alive: NDArray[np.int64],
    at_peak: NDArray[np.int64],
    marks: NDArray[np.int64],
    place: int,
) -> int:
    peak = heap[BOOKS, PEAK_ALLOCATED]
    for i in range(op.shape[0]):
        if op[i] == _EMPTY_CACHE:
            empty_cache(heap)
        elif op[i] == _FREE:
            o = objects[i]
            if o >= 0:
                block = handles[o]
            else:
                segment = (-o - 1) // FOREIGN_STRIDE
                block = foreign[segment, (-o - 1) % FOREIGN_STRIDE]
            alive[block_category[block]] -= heap[SIZE, block]
            free(heap, block)
        else:
            block = malloc(heap, nbytes[i])
            if block == NO_MEMORY:
                return i
            handles[objects[i]] = block
            block_category[block] = category[i]
            alive[category[i]] += heap[SIZE, block]
            if heap[BOOKS, PEAK_ALLOCATED] > peak:
                peak = heap[BOOKS, PEAK_ALLOCATED]
                for c in range(alive.shape[0]):
                    at_peak[c] = alive[c]
                marks[0] = place
                marks[1] = i
    return -1
