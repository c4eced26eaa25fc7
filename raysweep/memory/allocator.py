"""A model of PyTorch's CUDA caching allocator: native backend, one stream, one device.

It follows ``c10/cuda/CUDACachingAllocator.cpp``: which cached block serves a request, when blocks split and merge, when
a segment is taken from the device and when cached segments go back to it. It moves no memory; it only keeps the books,
in bytes.

The books are one table of integers, so that numba compiles the loops: a replay of a whole run visits millions of
events. Blocks are known by their index; a *segment* is what one cudaMalloc returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raysweep.setting import AllocatorSetting

KIB = 1 << 10
MIB = 1 << 20

# Constants of CUDACachingAllocator.cpp, in bytes.
MIN_BLOCK = 512  # kMinBlockSize: every size is rounded up to a multiple of it
SMALL_SIZE = MIB  # kSmallSize: the largest request that goes to the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer: the segment that small requests share
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer: the segment that requests below MIN_LARGE share
MIN_LARGE = 10 * MIB  # kMinLargeAlloc: from here on a request gets a segment of its own
ROUND_LARGE = 2 * MIB  # kRoundLarge: to which its size is rounded up

NO_LIMIT = np.iinfo(np.int64).max

NO_MEMORY = -1
"""``malloc``'s answer when the device is full even after the cache was given back."""


class BlockState(IntEnum):
    """What a block is."""

    FREE = 0
    """In the cache."""
    USED = 1
    UNMAPPED = 2
    """Address space of an expandable segment without memory behind it."""


_FREE, _USED, _UNMAPPED = int(BlockState.FREE), int(BlockState.USED), int(BlockState.UNMAPPED)
_NONE = -1

# Rows of the table: one column a block.
SIZE = 0
_ADDRESS = 1
_PREVIOUS = 2  # the neighbour before, in the same segment; -1 at its start
_FOLLOWING = 3
_STATE = 4
_POOL = 5  # 0 small, 1 large
_STAMP = 6  # the pool's call count when the block was freed: its age, for garbage collection
_SPARE = 7  # block indices that were given back
_FREE_LIST = 8  # two rows, one a pool: free blocks by (size, address)
_UNMAPPED_LIST = 10  # two rows: unmapped ranges by address (expandable segments only)
_BOOKS = 12  # the scalars below
_ROWS = 13


class Book(IntEnum):
    """Place of a scalar in the table's last row. Bytes, unless the name says otherwise."""

    ALLOCATED = 0
    RESERVED = 1
    PEAK_ALLOCATED = 2
    PEAK_RESERVED = 3
    RETRIES = 4
    """How often the cache was given back to the device and an allocation tried again, in vain or not (a count)."""
    CAPACITY = 5
    """What the allocator may reserve at most."""
    EXPANDABLE = 6
    """1 with ``expandable_segments:True``."""
    MAX_SPLIT = 7
    """Blocks of this size and above are not split."""
    GC_LIMIT = 8
    """``garbage_collection_threshold`` of the capacity; 0 is off."""
    TOP = 9
    """The next segment's address."""
    DESCENDING = 10
    """1 where each new segment lies below the last one."""
    BLOCK_COUNT = 11
    """Block indices handed out so far."""
    SPARE_COUNT = 12
    """Block indices given back and not yet handed out again."""
    RANDOM = 13
    """State of the generator that places segments at random addresses; 0 places them in order."""
    ADDRESS_SPACE = 14
    """Address space of one expandable segment, before it is rounded up to whole pages."""
    FAILED_REQUEST = 15
    """The rounded request that could not be served."""
    FREE_COUNT = 16
    """Two places, one a pool: the length of its free list."""
    UNMAPPED_COUNT = 18
    """Two places: the length of its list of unmapped ranges."""
    CALLS = 20
    """Two places: requests so far, counted for garbage collection alone."""


# numba takes plain integers as constants.
_ALLOCATED, _RESERVED = int(Book.ALLOCATED), int(Book.RESERVED)
PEAK_ALLOCATED, _PEAK_RESERVED = int(Book.PEAK_ALLOCATED), int(Book.PEAK_RESERVED)
_RETRIES, _CAPACITY, _EXPANDABLE = int(Book.RETRIES), int(Book.CAPACITY), int(Book.EXPANDABLE)
_MAX_SPLIT, _GC_LIMIT, _TOP = int(Book.MAX_SPLIT), int(Book.GC_LIMIT), int(Book.TOP)
_DESCENDING, _BLOCK_COUNT, _SPARE_COUNT = int(Book.DESCENDING), int(Book.BLOCK_COUNT), int(Book.SPARE_COUNT)
_RANDOM, _ADDRESS_SPACE, _FAILED = int(Book.RANDOM), int(Book.ADDRESS_SPACE), int(Book.FAILED_REQUEST)
_FREE_COUNT, _UNMAPPED_COUNT, _CALLS = int(Book.FREE_COUNT), int(Book.UNMAPPED_COUNT), int(Book.CALLS)

Table = NDArray[np.int64]
"""All that the allocator knows: (rows, blocks). One array: numba's compile time grows with the arrays passed around."""

BOOKS = _BOOKS


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
        counts = self.table[_BOOKS, Book.FREE_COUNT : Book.FREE_COUNT + 2]
        return tuple(
            self.table[SIZE, self.table[_FREE_LIST + pool, :count]].tobytes() for pool, count in enumerate(counts)
        )

    def snapshot(self) -> tuple[Block, ...]:
        """Return every block by address, as ``torch.cuda.memory_snapshot`` does."""
        books = self.table[_BOOKS]
        spare = {int(i) for i in self.table[_SPARE, : books[Book.SPARE_COUNT]]}
        blocks = [
            Block(
                index=i,
                state=BlockState(int(self.table[_STATE, i])),
                address=int(self.table[_ADDRESS, i]),
                size_bytes=int(self.table[SIZE, i]),
                is_small=bool(self.table[_POOL, i] == 0),
                starts_segment=bool(self.table[_PREVIOUS, i] == _NONE),
            )
            for i in range(int(books[Book.BLOCK_COUNT]))
            if i not in spare
        ]
        return tuple(sorted(blocks, key=lambda b: b.address))

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks that are in use."""
        return int(self.table[_BOOKS, Book.ALLOCATED])

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the device."""
        return int(self.table[_BOOKS, Book.RESERVED])

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes in use since ``reset_peaks``."""
        return int(self.table[_BOOKS, Book.PEAK_ALLOCATED])

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes reserved since ``reset_peaks``."""
        return int(self.table[_BOOKS, Book.PEAK_RESERVED])

    @property
    def retries(self) -> int:
        """How often the cache was given back so that an allocation could be tried again."""
        return int(self.table[_BOOKS, Book.RETRIES])

    @property
    def failed_request_bytes(self) -> int:
        """The size, as rounded, of the request that failed; 0 where none did."""
        return int(self.table[_BOOKS, Book.FAILED_REQUEST])

    def reset_peaks(self) -> None:
        """Start both peaks anew from what is there now, as ``torch.cuda.reset_peak_memory_stats`` does."""
        self.table[_BOOKS, Book.PEAK_ALLOCATED] = self.table[_BOOKS, Book.ALLOCATED]
        self.table[_BOOKS, Book.PEAK_RESERVED] = self.table[_BOOKS, Book.RESERVED]


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
    table = np.zeros((_ROWS, max(max_blocks, len(Book) + 8)), np.int64)
    books = table[_BOOKS]
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


@njit(cache=True, inline="always")
def _up(n: int, step: int) -> int:
    return (n + step - 1) // step * step


@njit(cache=True)
def round_size(nbytes: int) -> int:
    """Return the bytes of the block that serves a request of ``nbytes``, before splitting is considered."""
    return max(MIN_BLOCK, _up(nbytes, MIN_BLOCK))


@njit(cache=True)
def segment_size(size: int) -> int:
    """Return the bytes of the segment taken from the device for a rounded request that no cached block serves."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return _up(size, ROUND_LARGE)


# --- blocks and the sorted lists that hold them


@njit(cache=True)
def _new_block(h: Table, size: int, address: int, pool: int, state: int) -> int:
    books = h[_BOOKS]
    if books[_SPARE_COUNT] > 0:
        books[_SPARE_COUNT] -= 1
        block = h[_SPARE, books[_SPARE_COUNT]]
    else:
        block = books[_BLOCK_COUNT]
        if block >= h.shape[1]:
            raise MemoryError("the heap model has room for fewer blocks than this program needs")
        books[_BLOCK_COUNT] += 1
    h[SIZE, block] = size
    h[_ADDRESS, block] = address
    h[_PREVIOUS, block] = _NONE
    h[_FOLLOWING, block] = _NONE
    h[_POOL, block] = pool
    h[_STATE, block] = state
    return int(block)


@njit(cache=True)
def _drop_block(h: Table, block: int) -> None:
    h[_SPARE, h[_BOOKS, _SPARE_COUNT]] = block
    h[_BOOKS, _SPARE_COUNT] += 1


@njit(cache=True)
def _position(h: Table, pool: int, size: int, address: int) -> int:
    """The first free block of the pool that is not below (size, address)."""
    low, high = 0, h[_BOOKS, _FREE_COUNT + pool]
    row = h[_FREE_LIST + pool]
    while low < high:
        middle = (low + high) >> 1
        block = row[middle]
        if h[SIZE, block] < size or (h[SIZE, block] == size and h[_ADDRESS, block] < address):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _insert_free(h: Table, block: int) -> None:
    pool = h[_POOL, block]
    h[_STATE, block] = _FREE
    h[_STAMP, block] = h[_BOOKS, _CALLS + pool]
    at = _position(h, pool, h[SIZE, block], h[_ADDRESS, block])
    row = h[_FREE_LIST + pool]
    for i in range(h[_BOOKS, _FREE_COUNT + pool], at, -1):
        row[i] = row[i - 1]
    row[at] = block
    h[_BOOKS, _FREE_COUNT + pool] += 1


@njit(cache=True)
def _remove_free_at(h: Table, pool: int, at: int) -> None:
    row = h[_FREE_LIST + pool]
    h[_BOOKS, _FREE_COUNT + pool] -= 1
    for i in range(at, h[_BOOKS, _FREE_COUNT + pool]):
        row[i] = row[i + 1]


@njit(cache=True)
def _remove_free(h: Table, block: int) -> None:
    _remove_free_at(h, h[_POOL, block], _position(h, h[_POOL, block], h[SIZE, block], h[_ADDRESS, block]))


@njit(cache=True)
def _insert_unmapped(h: Table, block: int) -> None:
    pool = h[_POOL, block]
    h[_STATE, block] = _UNMAPPED
    row = h[_UNMAPPED_LIST + pool]
    i = h[_BOOKS, _UNMAPPED_COUNT + pool]
    while i > 0 and h[_ADDRESS, row[i - 1]] > h[_ADDRESS, block]:
        row[i] = row[i - 1]
        i -= 1
    row[i] = block
    h[_BOOKS, _UNMAPPED_COUNT + pool] += 1


@njit(cache=True)
def _remove_unmapped(h: Table, block: int) -> None:
    pool = h[_POOL, block]
    row = h[_UNMAPPED_LIST + pool]
    i = 0
    while row[i] != block:
        i += 1
    h[_BOOKS, _UNMAPPED_COUNT + pool] -= 1
    for j in range(i, h[_BOOKS, _UNMAPPED_COUNT + pool]):
        row[j] = row[j + 1]


@njit(cache=True)
def _link(h: Table, block: int, before: int, after: int) -> None:
    h[_PREVIOUS, block] = before
    h[_FOLLOWING, block] = after
    if before != _NONE:
        h[_FOLLOWING, before] = block
    if after != _NONE:
        h[_PREVIOUS, after] = block


@njit(cache=True)
def _absorb(h: Table, block: int, neighbour: int) -> None:
    """Merge a neighbour into a block that is in no list, if both are free or both unmapped (``try_merge_blocks``)."""
    if neighbour == _NONE or h[_STATE, neighbour] != h[_STATE, block]:
        return
    if h[_STATE, neighbour] == _FREE:
        _remove_free(h, neighbour)
    else:
        _remove_unmapped(h, neighbour)
    if h[_PREVIOUS, block] == neighbour:
        h[_ADDRESS, block] = h[_ADDRESS, neighbour]
        h[_PREVIOUS, block] = h[_PREVIOUS, neighbour]
        if h[_PREVIOUS, block] != _NONE:
            h[_FOLLOWING, h[_PREVIOUS, block]] = block
    else:
        h[_FOLLOWING, block] = h[_FOLLOWING, neighbour]
        if h[_FOLLOWING, block] != _NONE:
            h[_PREVIOUS, h[_FOLLOWING, block]] = block
    h[SIZE, block] += h[SIZE, neighbour]
    _drop_block(h, neighbour)


@njit(cache=True)
def _reserve(h: Table, nbytes: int) -> None:
    books = h[_BOOKS]
    books[_RESERVED] += nbytes
    books[_PEAK_RESERVED] = max(books[_PEAK_RESERVED], books[_RESERVED])


@njit(cache=True)
def _place(h: Table, nbytes: int) -> int:
    """The address of a new segment; segments never touch, so that they never merge."""
    books = h[_BOOKS]
    gap = nbytes + ROUND_LARGE
    if books[_RANDOM] != 0:
        # xorshift: three shifts of a 63-bit state; any scatter serves.
        x = books[_RANDOM]
        x ^= (x << 13) & 0x7FFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= (x << 17) & 0x7FFFFFFFFFFFFFFF
        books[_RANDOM] = x
        # Scattered high bits, and low ones that no two segments share: equal blocks at one address would be confused.
        books[_TOP] += gap
        return int(((x & 0x1FFFFF) << 40) + (books[_TOP] & 0xFFFFFFFFFF))
    if books[_DESCENDING] == 1:
        books[_TOP] -= gap
        return int(books[_TOP])
    books[_TOP] += gap
    return int(books[_TOP] - gap)


# --- taking blocks


@njit(cache=True)
def _page(pool: int) -> int:
    """The unit in which an expandable segment is mapped."""
    return SMALL_SEGMENT if pool == 0 else LARGE_SEGMENT


@njit(cache=True)
def _expandable_size(h: Table, block: int) -> int:
    after = h[_FOLLOWING, block]
    extra = h[SIZE, after] if after != _NONE and h[_STATE, after] == _UNMAPPED else 0
    return int(h[SIZE, block] + extra)


@njit(cache=True)
def _cached_block(h: Table, pool: int, size: int) -> int:
    """Best fit among the free blocks (``get_free_block``), taken out of its list; -1 where none serves."""
    books = h[_BOOKS]
    if books[_GC_LIMIT] > 0:
        h[_BOOKS, _CALLS + pool] += 1
    at = _position(h, pool, size, 0)
    row, count = h[_FREE_LIST + pool], h[_BOOKS, _FREE_COUNT + pool]
    if at == count:
        return _NONE
    if books[_EXPANDABLE] == 1:
        while at + 1 < count and _expandable_size(h, row[at + 1]) < _expandable_size(h, row[at]):
            at += 1
    block = row[at]
    limit = books[_MAX_SPLIT]
    if size < limit <= h[SIZE, block]:
        return _NONE
    if size >= limit and h[SIZE, block] >= size + LARGE_SEGMENT:
        return _NONE
    _remove_free_at(h, pool, at)
    return int(block)


@njit(cache=True)
def _map(h: Table, block: int, size: int) -> int:
    """Back the first ``size`` bytes of an unmapped range with pages (``map_block``); return the free block made."""
    pool = h[_POOL, block]
    mapped = min(_up(size, _page(pool)), h[SIZE, block])
    _remove_unmapped(h, block)
    if mapped < h[SIZE, block]:
        rest = _new_block(h, h[SIZE, block] - mapped, h[_ADDRESS, block] + mapped, pool, _UNMAPPED)
        _link(h, rest, block, h[_FOLLOWING, block])
        _insert_unmapped(h, rest)
        h[SIZE, block] = mapped
    h[_STATE, block] = _FREE
    _absorb(h, block, h[_PREVIOUS, block])
    _absorb(h, block, h[_FOLLOWING, block])
    _insert_free(h, block)
    _reserve(h, mapped)
    return block


@njit(cache=True)
def _expandable_start(h: Table, pool: int, size: int) -> int:
    """The lowest block from which ``size`` bytes of addresses are free, mapped or not (``find_expandable_block``)."""
    row = h[_UNMAPPED_LIST + pool]
    for i in range(h[_BOOKS, _UNMAPPED_COUNT + pool]):
        start = row[i]
        before = h[_PREVIOUS, start]
        if before != _NONE and h[_STATE, before] != _USED:
            start = before
        room, block = 0, start
        while room < size and block != _NONE and h[_STATE, block] != _USED:
            room += h[SIZE, block]
            block = h[_FOLLOWING, block]
        if room >= size:
            return int(start)
    space = _up(h[_BOOKS, _ADDRESS_SPACE], _page(pool))
    block = _new_block(h, space, _place(h, space), pool, _UNMAPPED)
    _insert_unmapped(h, block)
    return block


@njit(cache=True)
def _fresh_block(h: Table, pool: int, size: int) -> int:
    """A block backed by new device memory (``alloc_block``); -1 where the capacity is passed."""
    books = h[_BOOKS]
    wanted = segment_size(size)
    if books[_RESERVED] + wanted > books[_CAPACITY]:
        return _NONE
    if books[_EXPANDABLE] == 0:
        _reserve(h, wanted)
        return _new_block(h, wanted, _place(h, wanted), pool, _FREE)
    block = _expandable_start(h, pool, size)
    if h[_STATE, block] == _UNMAPPED:
        block = _map(h, block, min(h[SIZE, block], size))
    while h[SIZE, block] < size:
        after = h[_FOLLOWING, block]
        block = _map(h, after, min(size - h[SIZE, block], h[SIZE, after]))
    _remove_free(h, block)
    return block


# --- giving memory back to the device


@njit(cache=True)
def _is_whole(h: Table, block: int) -> bool:
    return bool(h[_PREVIOUS, block] == _NONE and h[_FOLLOWING, block] == _NONE)


@njit(cache=True)
def _release_at(h: Table, pool: int, at: int) -> int:
    """Return the whole segment at this place of the free list to the device (``release_block``)."""
    block = h[_FREE_LIST + pool, at]
    size = h[SIZE, block]
    _remove_free_at(h, pool, at)
    h[_BOOKS, _RESERVED] -= size
    _drop_block(h, block)
    return int(size)


@njit(cache=True)
def _unmap(h: Table, block: int) -> None:
    """Take away the whole pages inside a free block (``unmap_block``)."""
    pool = h[_POOL, block]
    page = _page(pool)
    # Addresses of an expandable segment count from its first block.
    first = block
    while h[_PREVIOUS, first] != _NONE:
        first = h[_PREVIOUS, first]
    base = h[_ADDRESS, first]
    start = _up(h[_ADDRESS, block] - base, page) + base
    end = (h[_ADDRESS, block] + h[SIZE, block] - base) // page * page + base
    if start >= end:
        return
    _remove_free(h, block)
    if start > h[_ADDRESS, block]:
        before = _new_block(h, start - h[_ADDRESS, block], h[_ADDRESS, block], pool, _FREE)
        _link(h, before, h[_PREVIOUS, block], block)
        _insert_free(h, before)
    rest = h[_ADDRESS, block] + h[SIZE, block] - end
    if rest > 0:
        after = _new_block(h, rest, end, pool, _FREE)
        _link(h, after, block, h[_FOLLOWING, block])
        _insert_free(h, after)
    h[_ADDRESS, block] = start
    h[SIZE, block] = end - start
    h[_STATE, block] = _UNMAPPED
    _absorb(h, block, h[_PREVIOUS, block])
    _absorb(h, block, h[_FOLLOWING, block])
    h[_BOOKS, _RESERVED] -= end - start
    if _is_whole(h, block):
        _drop_block(h, block)
    else:
        _insert_unmapped(h, block)


@njit(cache=True)
def empty_cache(h: Table) -> None:
    """Return every segment (or page) that is wholly free, in both pools (``release_cached_blocks``)."""
    for pool in range(2):
        if h[_BOOKS, _EXPANDABLE] == 1:
            # Unmapping changes the list, so the blocks are gathered first.
            count = h[_BOOKS, _FREE_COUNT + pool]
            blocks = np.empty(count, np.int64)
            for i in range(count):
                blocks[i] = h[_FREE_LIST + pool, i]
            for i in range(count):
                _unmap(h, blocks[i])
        else:
            at = 0
            while at < h[_BOOKS, _FREE_COUNT + pool]:
                if _is_whole(h, h[_FREE_LIST + pool, at]):
                    _release_at(h, pool, at)
                else:
                    at += 1


@njit(cache=True)
def _collect_garbage(h: Table) -> None:
    """Return old whole segments of the large pool once the threshold is passed (``garbage_collect_cached_blocks``)."""
    books = h[_BOOKS]
    if books[_EXPANDABLE] == 1 or books[_RESERVED] <= books[_GC_LIMIT]:
        return
    target = books[_RESERVED] - books[_GC_LIMIT]
    age, blocks = 0, 0
    for i in range(h[_BOOKS, _FREE_COUNT + 1]):
        if _is_whole(h, h[_FREE_LIST + 1, i]):
            age += h[_BOOKS, _CALLS + 1] - h[_STAMP, h[_FREE_LIST + 1, i]]
            blocks += 1
    reclaimed, freed = 0, True
    while reclaimed < target and freed and blocks > 0:
        threshold = age / blocks
        freed = False
        at = 0
        while at < h[_BOOKS, _FREE_COUNT + 1]:
            block = h[_FREE_LIST + 1, at]
            mine = h[_BOOKS, _CALLS + 1] - h[_STAMP, block]
            if _is_whole(h, block) and mine >= threshold:
                freed = True
                age -= mine
                blocks -= 1
                reclaimed += _release_at(h, 1, at)
            else:
                at += 1


@njit(cache=True)
def _release_oversize(h: Table, pool: int, size: int) -> bool:
    """With ``max_split_size``: return oversize blocks, just enough (``release_available_cached_blocks``)."""
    limit = h[_BOOKS, _MAX_SPLIT]
    if limit == NO_LIMIT or h[_BOOKS, _EXPANDABLE] == 1:
        return False
    wanted = max(size, limit)
    at = _position(h, pool, wanted, 0)
    if at < h[_BOOKS, _FREE_COUNT + pool]:
        _release_at(h, pool, at)
        return True
    released = 0
    at -= 1
    while at >= 0 and released < wanted and h[SIZE, h[_FREE_LIST + pool, at]] >= limit:
        released += _release_at(h, pool, at)
        at -= 1
    return bool(released >= wanted)


# --- what a program calls


@njit(cache=True)
def malloc(h: Table, nbytes: int) -> int:
    """Serve a request; return the block's index, or ``NO_MEMORY``.

    At the capacity the cache is given back and the request tried once more; each such attempt counts as a retry, as
    ``num_alloc_retries`` does.
    """
    books = h[_BOOKS]
    size = round_size(nbytes)
    pool = 0 if size <= SMALL_SIZE else 1
    block = _cached_block(h, pool, size)
    if block == _NONE:
        if books[_GC_LIMIT] > 0:
            _collect_garbage(h)
        block = _fresh_block(h, pool, size)
        if block == _NONE and _release_oversize(h, pool, size):
            block = _fresh_block(h, pool, size)
        if block == _NONE:
            empty_cache(h)
            books[_RETRIES] += 1
            block = _fresh_block(h, pool, size)
        if block == _NONE:
            books[_FAILED] = size
            return NO_MEMORY
    rest = h[SIZE, block] - size
    if pool == 0 or books[_EXPANDABLE] == 1:
        split = rest >= MIN_BLOCK
    else:
        split = size < books[_MAX_SPLIT] and rest > SMALL_SIZE
    if split:
        remainder = _new_block(h, rest, h[_ADDRESS, block] + size, pool, _FREE)
        _link(h, remainder, block, h[_FOLLOWING, block])
        _insert_free(h, remainder)
        h[SIZE, block] = size
    h[_STATE, block] = _USED
    books[_ALLOCATED] += h[SIZE, block]
    books[PEAK_ALLOCATED] = max(books[PEAK_ALLOCATED], books[_ALLOCATED])
    return int(block)


@njit(cache=True)
def free(h: Table, block: int) -> None:
    """Give a block back to the cache, merged with its free neighbours."""
    h[_BOOKS, _ALLOCATED] -= h[SIZE, block]
    h[_STATE, block] = _FREE
    _absorb(h, block, h[_PREVIOUS, block])
    _absorb(h, block, h[_FOLLOWING, block])
    _insert_free(h, block)
