"""An allocator as an object: its blocks, its counters, and the setting and device that it starts with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from raysweep.memory.allocator import empty_cache, free, malloc
from raysweep.memory.blocks import (
    ADDRESS,
    BOOKS,
    FREE_LIST,
    MIB,
    NO_LIMIT,
    NONE,
    POOL,
    PREVIOUS,
    ROWS,
    SIZE,
    SPARE,
    STATE,
    BlockState,
    Book,
    Table,
)
from raysweep.setting import AllocatorSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block as ``Heap.snapshot`` shows it."""

    index: int
    state: BlockState
    address: int
    size_bytes: int
    is_small: bool
    """Of the small pool."""
    starts_segment: bool


class Heap:
    """An allocator's table, with names for people."""

    __slots__ = ("table",)

    def __init__(self, table: Table) -> None:
        """Wrap a table; ``new_heap`` makes one."""
        self.table = table

    def malloc(self, nbytes: int) -> int:
        """Serve a request; return the block's index, or ``NO_MEMORY``."""
        return int(malloc(self.table, nbytes))

    def free(self, block: int) -> None:
        """Give a block back to the cache."""
        free(self.table, block)

    def empty_cache(self) -> None:
        """Return every wholly free segment to the device."""
        empty_cache(self.table)

    def block_bytes(self, block: int) -> int:
        """Return the size of a block, which may exceed what was asked for."""
        return int(self.table[SIZE, block])

    def free_sizes(self) -> tuple[bytes, ...]:
        """Return the sizes of the free blocks of both pools, ascending, as bytes that can be compared."""
        counts = self.table[BOOKS, Book.FREE_COUNT : Book.FREE_COUNT + 2]
        return tuple(
            self.table[SIZE, self.table[FREE_LIST + pool, :count]].tobytes() for pool, count in enumerate(counts)
        )

    def snapshot(self) -> tuple[Block, ...]:
        """Return every block by address, as ``torch.cuda.memory_snapshot`` does."""
        books = self.table[BOOKS]
        spare = {int(i) for i in self.table[SPARE, : books[Book.SPARE_COUNT]]}
        blocks = [
            Block(
                index=i,
                state=BlockState(int(self.table[STATE, i])),
                address=int(self.table[ADDRESS, i]),
                size_bytes=int(self.table[SIZE, i]),
                is_small=bool(self.table[POOL, i] == 0),
                starts_segment=bool(self.table[PREVIOUS, i] == NONE),
            )
            for i in range(int(books[Book.BLOCK_COUNT]))
            if i not in spare
        ]
        return tuple(sorted(blocks, key=lambda b: b.address))

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks that are in use."""
        return int(self.table[BOOKS, Book.ALLOCATED])

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the device."""
        return int(self.table[BOOKS, Book.RESERVED])

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes in use since ``reset_peaks``."""
        return int(self.table[BOOKS, Book.PEAK_ALLOCATED])

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes reserved since ``reset_peaks``."""
        return int(self.table[BOOKS, Book.PEAK_RESERVED])

    @property
    def retries(self) -> int:
        """How often the cache was given back so that an allocation could be tried again."""
        return int(self.table[BOOKS, Book.RETRIES])

    @property
    def failed_request_bytes(self) -> int:
        """The size, as rounded, of the request that failed; 0 where none did."""
        return int(self.table[BOOKS, Book.FAILED_REQUEST])

    def reset_peaks(self) -> None:
        """Start both peaks anew from what is there now, as ``torch.cuda.reset_peak_memory_stats`` does."""
        self.table[BOOKS, Book.PEAK_ALLOCATED] = self.table[BOOKS, Book.ALLOCATED]
        self.table[BOOKS, Book.PEAK_RESERVED] = self.table[BOOKS, Book.RESERVED]


class Placement(IntEnum):
    """Where the device puts a new segment: the order decides between free blocks of equal size.

    Descending is what the golden cells' reserved peaks show of cudaMalloc.
    """

    ASCENDING = 0
    DESCENDING = 1
    RANDOM = 2


def new_heap(
    max_blocks: int,
    setting: AllocatorSetting | None = None,
    *,
    capacity_bytes: int | None = None,
    placement: Placement = Placement.DESCENDING,
    seed: int = 1,
) -> Heap:
    """Return an empty allocator.

    Args:
        max_blocks: an upper bound of the blocks alive at once, free ones included (twice the objects alive is enough).
        setting: the levers of ``PYTORCH_CUDA_ALLOC_CONF``.
        capacity_bytes: what may be reserved; None is no limit.
        placement: where new segments lie.
        seed: of random placement.
    """
    setting = setting or AllocatorSetting()
    capacity = NO_LIMIT if capacity_bytes is None else capacity_bytes
    table = np.zeros((ROWS, max(max_blocks, len(Book) + 8)), np.int64)
    books = table[BOOKS]
    books[Book.CAPACITY] = capacity
    books[Book.EXPANDABLE] = int(setting.expandable_segments)
    books[Book.MAX_SPLIT] = NO_LIMIT if setting.max_split_size_mb is None else setting.max_split_size_mb * MIB
    if setting.garbage_collection_threshold is not None and capacity_bytes is not None:
        books[Book.GC_LIMIT] = int(setting.garbage_collection_threshold * capacity_bytes)
    # Far from both ends: a run that gives its cache back again and again takes many times the device's memory in all.
    books[Book.TOP] = 1 << 61
    books[Book.DESCENDING] = int(placement is Placement.DESCENDING)
    books[Book.RANDOM] = seed if placement is Placement.RANDOM else 0
    # torch reserves 1 1/8 of the device's memory as address space for each expandable segment.
    books[Book.ADDRESS_SPACE] = (1 << 42) if capacity_bytes is None else capacity + capacity // 8
    return Heap(table)
