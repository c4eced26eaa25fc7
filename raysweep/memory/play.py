"""One play of a program's segments on one heap: which block holds which object, and what is alive by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raysweep.memory.allocator import empty_cache, free, malloc
from raysweep.memory.blocks import BOOKS, NO_MEMORY, PEAK_ALLOCATED, SIZE, Table
from raysweep.memory.conditions import WORKSPACES, Conditions
from raysweep.memory.heap import Heap, new_heap
from raysweep.memory.outcome import Failure, Moment, Replay
from raysweep.memory.program import FOREIGN_STRIDE, SEGMENTS, Category, Flat, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Array sizes that hold a whole run."""

    objects: int
    survivors: int
    blocks: int


class Playable:
    """A flat segment with its allocations' categories."""

    def __init__(self, flat: Flat, place: int, categories: NDArray[np.int8]) -> None:
        """Take a segment, its place among ``SEGMENTS``, and the ``Category`` of each of the program's labels."""
        self.flat = flat
        self.place = place
        self.category = np.where(flat.label >= 0, categories[np.maximum(flat.label, 0)], 0).astype(np.int8)
        workspace = (flat.label >= 0) & (self.category == Category.WORKSPACE)
        self.workspaces = np.flatnonzero(workspace)
        """Events by which a library takes its workspace."""
        self.chip_workspaces = np.flatnonzero(workspace & ~flat.size.any(axis=1))
        """Those of cuBLAS: the program leaves their size open, since it hangs on the chip."""

    def own_workspace_bytes(self, features: NDArray[np.float64]) -> list[int]:
        """Return the sizes of the workspaces that are of one size on every chip."""
        own = np.setdiff1d(self.workspaces, self.chip_workspaces)
        return [round(n) for n in self.flat.size[own] @ features]


class Play:
    """One play: the heap, the handles, and what is alive by category."""

    def __init__(self, room: Room, conditions: Conditions, own_workspace_bytes: Sequence[int] = ()) -> None:
        """Start on an empty heap; in a warm process with the libraries' workspaces on it.

        Args:
            room: array sizes.
            conditions: what the play is under.
            own_workspace_bytes: of the workspaces whose size does not hang on the chip.
        """
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
            for nbytes in (*[conditions.workspace_bytes] * WORKSPACES, *own_workspace_bytes):
                block = self.heap.malloc(nbytes)
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

    def segment(self, playable: Playable, features: NDArray[np.float64], place: int) -> int | None:
        """Play one segment; return the index of the event that failed, or None."""
        flat = playable.flat
        nbytes = np.rint(flat.size @ features).astype(np.int64)
        nbytes[playable.chip_workspaces] = self.conditions.workspace_bytes
        if self.conditions.warm_process:
            # It took its workspaces before: here the event is left, of the least size there is.
            nbytes[playable.workspaces] = 0
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

    def outcome(self, *, peak_moment: Moment | None, failure: Failure | None) -> Replay:
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
