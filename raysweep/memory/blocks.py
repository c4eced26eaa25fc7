"""The table in which the allocator's model keeps its books: blocks, their neighbours, sorted lists of free ones.

One array of integers holds all of it, so that numba compiles the loops: a replay of a whole run visits millions of
events. Blocks are known by their index; a *segment* is what one cudaMalloc returned.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

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


FREE, USED, UNMAPPED = int(BlockState.FREE), int(BlockState.USED), int(BlockState.UNMAPPED)
NONE = -1

# Rows of the table: one column a block.
SIZE = 0
ADDRESS = 1
PREVIOUS = 2  # the neighbour before, in the same segment; -1 at its start
FOLLOWING = 3
STATE = 4
POOL = 5  # 0 small, 1 large
STAMP = 6  # the pool's call count when the block was freed: its age, for garbage collection
SPARE = 7  # block indices that were given back
FREE_LIST = 8  # two rows, one a pool: free blocks by (size, address)
UNMAPPED_LIST = 10  # two rows: unmapped ranges by address (expandable segments only)
BOOKS = 12  # the scalars below
ROWS = 13


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
ALLOCATED, RESERVED = int(Book.ALLOCATED), int(Book.RESERVED)
PEAK_ALLOCATED, PEAK_RESERVED = int(Book.PEAK_ALLOCATED), int(Book.PEAK_RESERVED)
RETRIES, CAPACITY, EXPANDABLE = int(Book.RETRIES), int(Book.CAPACITY), int(Book.EXPANDABLE)
MAX_SPLIT, GC_LIMIT, TOP = int(Book.MAX_SPLIT), int(Book.GC_LIMIT), int(Book.TOP)
DESCENDING, BLOCK_COUNT, SPARE_COUNT = int(Book.DESCENDING), int(Book.BLOCK_COUNT), int(Book.SPARE_COUNT)
RANDOM, ADDRESS_SPACE, FAILED = int(Book.RANDOM), int(Book.ADDRESS_SPACE), int(Book.FAILED_REQUEST)
FREE_COUNT, UNMAPPED_COUNT, CALLS = int(Book.FREE_COUNT), int(Book.UNMAPPED_COUNT), int(Book.CALLS)

Table = NDArray[np.int64]
"""All that the allocator knows: (rows, blocks). One array: numba's compile time grows with the arrays passed around."""


@njit(cache=True, inline="always")
def up(n: int, step: int) -> int:
    """Return n rounded up to a multiple of the step."""
    return (n + step - 1) // step * step


@njit(cache=True)
def round_size(nbytes: int) -> int:
    """Return the bytes of the block that serves a request of ``nbytes``, before splitting is considered."""
    return max(MIN_BLOCK, up(nbytes, MIN_BLOCK))


@njit(cache=True)
def segment_size(size: int) -> int:
    """Return the bytes of the segment taken from the device for a rounded request that no cached block serves."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return up(size, ROUND_LARGE)


@njit(cache=True)
def new_block(h: Table, size: int, address: int, pool: int, state: int) -> int:
    """Return the index of a new block that is in no list and has no neighbours."""
    books = h[BOOKS]
    if books[SPARE_COUNT] > 0:
        books[SPARE_COUNT] -= 1
        block = h[SPARE, books[SPARE_COUNT]]
    else:
        block = books[BLOCK_COUNT]
        if block >= h.shape[1]:
            raise MemoryError("the heap model has room for fewer blocks than this program needs")
        books[BLOCK_COUNT] += 1
    h[SIZE, block] = size
    h[ADDRESS, block] = address
    h[PREVIOUS, block] = NONE
    h[FOLLOWING, block] = NONE
    h[POOL, block] = pool
    h[STATE, block] = state
    return int(block)


@njit(cache=True)
def drop_block(h: Table, block: int) -> None:
    """Give a block's index back."""
    h[SPARE, h[BOOKS, SPARE_COUNT]] = block
    h[BOOKS, SPARE_COUNT] += 1


@njit(cache=True)
def position(h: Table, pool: int, size: int, address: int) -> int:
    """Return the place of the first free block of the pool that is not below (size, address)."""
    low, high = 0, h[BOOKS, FREE_COUNT + pool]
    row = h[FREE_LIST + pool]
    while low < high:
        middle = (low + high) >> 1
        block = row[middle]
        if h[SIZE, block] < size or (h[SIZE, block] == size and h[ADDRESS, block] < address):
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def insert_free(h: Table, block: int) -> None:
    """Put a block into its pool's free list, in order."""
    pool = h[POOL, block]
    h[STATE, block] = FREE
    h[STAMP, block] = h[BOOKS, CALLS + pool]
    at = position(h, pool, h[SIZE, block], h[ADDRESS, block])
    row = h[FREE_LIST + pool]
    for i in range(h[BOOKS, FREE_COUNT + pool], at, -1):
        row[i] = row[i - 1]
    row[at] = block
    h[BOOKS, FREE_COUNT + pool] += 1


@njit(cache=True)
def remove_free_at(h: Table, pool: int, at: int) -> None:
    """Take the block at a place out of a pool's free list."""
    row = h[FREE_LIST + pool]
    h[BOOKS, FREE_COUNT + pool] -= 1
    for i in range(at, h[BOOKS, FREE_COUNT + pool]):
        row[i] = row[i + 1]


@njit(cache=True)
def remove_free(h: Table, block: int) -> None:
    """Take a block out of its pool's free list."""
    remove_free_at(h, h[POOL, block], position(h, h[POOL, block], h[SIZE, block], h[ADDRESS, block]))


@njit(cache=True)
def insert_unmapped(h: Table, block: int) -> None:
    """Put a range into its pool's list of unmapped ranges, by address."""
    pool = h[POOL, block]
    h[STATE, block] = UNMAPPED
    row = h[UNMAPPED_LIST + pool]
    i = h[BOOKS, UNMAPPED_COUNT + pool]
    while i > 0 and h[ADDRESS, row[i - 1]] > h[ADDRESS, block]:
        row[i] = row[i - 1]
        i -= 1
    row[i] = block
    h[BOOKS, UNMAPPED_COUNT + pool] += 1


@njit(cache=True)
def remove_unmapped(h: Table, block: int) -> None:
    """Take a range out of its pool's list of unmapped ranges."""
    pool = h[POOL, block]
    row = h[UNMAPPED_LIST + pool]
    i = 0
    while row[i] != block:
        i += 1
    h[BOOKS, UNMAPPED_COUNT + pool] -= 1
    for j in range(i, h[BOOKS, UNMAPPED_COUNT + pool]):
        row[j] = row[j + 1]


@njit(cache=True)
def link(h: Table, block: int, before: int, after: int) -> None:
    """Put a block between two neighbours (-1 is none)."""
    h[PREVIOUS, block] = before
    h[FOLLOWING, block] = after
    if before != NONE:
        h[FOLLOWING, before] = block
    if after != NONE:
        h[PREVIOUS, after] = block


@njit(cache=True)
def absorb(h: Table, block: int, neighbour: int) -> None:
    """Merge a neighbour into a block that is in no list, if both are free or both unmapped (``try_merge_blocks``)."""
    if neighbour == NONE or h[STATE, neighbour] != h[STATE, block]:
        return
    if h[STATE, neighbour] == FREE:
        remove_free(h, neighbour)
    else:
        remove_unmapped(h, neighbour)
    if h[PREVIOUS, block] == neighbour:
        h[ADDRESS, block] = h[ADDRESS, neighbour]
        h[PREVIOUS, block] = h[PREVIOUS, neighbour]
        if h[PREVIOUS, block] != NONE:
            h[FOLLOWING, h[PREVIOUS, block]] = block
    else:
        h[FOLLOWING, block] = h[FOLLOWING, neighbour]
        if h[FOLLOWING, block] != NONE:
            h[PREVIOUS, h[FOLLOWING, block]] = block
    h[SIZE, block] += h[SIZE, neighbour]
    drop_block(h, neighbour)


@njit(cache=True)
def reserve(h: Table, nbytes: int) -> None:
    """Count memory taken from the device."""
    books = h[BOOKS]
    books[RESERVED] += nbytes
    books[PEAK_RESERVED] = max(books[PEAK_RESERVED], books[RESERVED])


@njit(cache=True)
def place(h: Table, nbytes: int) -> int:
    """Return the address of a new segment; segments never touch, so that they never merge."""
    books = h[BOOKS]
    gap = nbytes + ROUND_LARGE
    if books[RANDOM] != 0:
        # xorshift: three shifts of a 63-bit state; any scatter serves.
        x = books[RANDOM]
        x ^= (x << 13) & 0x7FFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= (x << 17) & 0x7FFFFFFFFFFFFFFF
        books[RANDOM] = x
        # Scattered high bits, and low ones that no two segments share: equal blocks at one address would be confused.
        books[TOP] += gap
        return int(((x & 0x1FFFFF) << 40) + (books[TOP] & 0xFFFFFFFFFF))
    if books[DESCENDING] == 1:
        books[TOP] -= gap
        return int(books[TOP])
    books[TOP] += gap
    return int(books[TOP] - gap)
