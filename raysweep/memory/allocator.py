"""A model of PyTorch's CUDA caching allocator: native backend, one stream, one device.

It follows ``c10/cuda/CUDACachingAllocator.cpp``: which cached block serves a request, when blocks split and merge, when
a segment is taken from the device and when cached segments go back to it. It moves no memory; it only keeps the books
(``raysweep.memory.blocks``), in bytes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raysweep.memory.blocks import (
    ADDRESS,
    ADDRESS_SPACE,
    ALLOCATED,
    BOOKS,
    CALLS,
    CAPACITY,
    EXPANDABLE,
    FAILED,
    FOLLOWING,
    FREE,
    FREE_COUNT,
    FREE_LIST,
    GC_LIMIT,
    LARGE_SEGMENT,
    MAX_SPLIT,
    MIN_BLOCK,
    NO_LIMIT,
    NO_MEMORY,
    NONE,
    PEAK_ALLOCATED,
    POOL,
    PREVIOUS,
    RESERVED,
    RETRIES,
    SIZE,
    SMALL_SEGMENT,
    SMALL_SIZE,
    STAMP,
    STATE,
    UNMAPPED,
    UNMAPPED_COUNT,
    UNMAPPED_LIST,
    USED,
    Table,
    absorb,
    drop_block,
    insert_free,
    insert_unmapped,
    link,
    new_block,
    place,
    position,
    remove_free,
    remove_free_at,
    remove_unmapped,
    reserve,
    round_size,
    segment_size,
    up,
)

# --- taking blocks


@njit(cache=True)
def _page(pool: int) -> int:
    """The unit in which an expandable segment is mapped."""
    return SMALL_SEGMENT if pool == 0 else LARGE_SEGMENT


@njit(cache=True)
def _expandable_size(h: Table, block: int) -> int:
    after = h[FOLLOWING, block]
    extra = h[SIZE, after] if after != NONE and h[STATE, after] == UNMAPPED else 0
    return int(h[SIZE, block] + extra)


@njit(cache=True)
def _cached_block(h: Table, pool: int, size: int) -> int:
    """Best fit among the free blocks (``get_free_block``), taken out of its list; -1 where none serves."""
    books = h[BOOKS]
    if books[GC_LIMIT] > 0:
        h[BOOKS, CALLS + pool] += 1
    at = position(h, pool, size, 0)
    row, count = h[FREE_LIST + pool], h[BOOKS, FREE_COUNT + pool]
    if at == count:
        return NONE
    if books[EXPANDABLE] == 1:
        while at + 1 < count and _expandable_size(h, row[at + 1]) < _expandable_size(h, row[at]):
            at += 1
    block = row[at]
    limit = books[MAX_SPLIT]
    if size < limit <= h[SIZE, block]:
        return NONE
    if size >= limit and h[SIZE, block] >= size + LARGE_SEGMENT:
        return NONE
    remove_free_at(h, pool, at)
    return int(block)


@njit(cache=True)
def _map(h: Table, block: int, size: int) -> int:
    """Back the first ``size`` bytes of an unmapped range with pages (``map_block``); return the free block made."""
    pool = h[POOL, block]
    mapped = min(up(size, _page(pool)), h[SIZE, block])
    remove_unmapped(h, block)
    if mapped < h[SIZE, block]:
        rest = new_block(h, h[SIZE, block] - mapped, h[ADDRESS, block] + mapped, pool, UNMAPPED)
        link(h, rest, block, h[FOLLOWING, block])
        insert_unmapped(h, rest)
        h[SIZE, block] = mapped
    h[STATE, block] = FREE
    absorb(h, block, h[PREVIOUS, block])
    absorb(h, block, h[FOLLOWING, block])
    insert_free(h, block)
    reserve(h, mapped)
    return block


@njit(cache=True)
def _expandable_start(h: Table, pool: int, size: int) -> int:
    """The lowest block from which ``size`` bytes of addresses are free, mapped or not (``find_expandable_block``)."""
    row = h[UNMAPPED_LIST + pool]
    for i in range(h[BOOKS, UNMAPPED_COUNT + pool]):
        start = row[i]
        before = h[PREVIOUS, start]
        if before != NONE and h[STATE, before] != USED:
            start = before
        room, block = 0, start
        while room < size and block != NONE and h[STATE, block] != USED:
            room += h[SIZE, block]
            block = h[FOLLOWING, block]
        if room >= size:
            return int(start)
    space = up(h[BOOKS, ADDRESS_SPACE], _page(pool))
    block = new_block(h, space, place(h, space), pool, UNMAPPED)
    insert_unmapped(h, block)
    return block


@njit(cache=True)
def _fresh_block(h: Table, pool: int, size: int) -> int:
    """A block backed by new device memory (``alloc_block``); -1 where the capacity is passed."""
    books = h[BOOKS]
    wanted = segment_size(size)
    if books[RESERVED] + wanted > books[CAPACITY]:
        return NONE
    if books[EXPANDABLE] == 0:
        reserve(h, wanted)
        return new_block(h, wanted, place(h, wanted), pool, FREE)
    block = _expandable_start(h, pool, size)
    if h[STATE, block] == UNMAPPED:
        block = _map(h, block, min(h[SIZE, block], size))
    while h[SIZE, block] < size:
        after = h[FOLLOWING, block]
        block = _map(h, after, min(size - h[SIZE, block], h[SIZE, after]))
    remove_free(h, block)
    return block


# --- giving memory back to the device


@njit(cache=True)
def _is_whole(h: Table, block: int) -> bool:
    return bool(h[PREVIOUS, block] == NONE and h[FOLLOWING, block] == NONE)


@njit(cache=True)
def _release_at(h: Table, pool: int, at: int) -> int:
    """Return the whole segment at this place of the free list to the device (``release_block``)."""
    block = h[FREE_LIST + pool, at]
    size = h[SIZE, block]
    remove_free_at(h, pool, at)
    h[BOOKS, RESERVED] -= size
    drop_block(h, block)
    return int(size)


@njit(cache=True)
def _unmap(h: Table, block: int) -> None:
    """Take away the whole pages inside a free block (``unmap_block``)."""
    pool = h[POOL, block]
    page = _page(pool)
    # Addresses of an expandable segment count from its first block.
    first = block
    while h[PREVIOUS, first] != NONE:
        first = h[PREVIOUS, first]
    base = h[ADDRESS, first]
    start = up(h[ADDRESS, block] - base, page) + base
    end = (h[ADDRESS, block] + h[SIZE, block] - base) // page * page + base
    if start >= end:
        return
    remove_free(h, block)
    if start > h[ADDRESS, block]:
        before = new_block(h, start - h[ADDRESS, block], h[ADDRESS, block], pool, FREE)
        link(h, before, h[PREVIOUS, block], block)
        insert_free(h, before)
    rest = h[ADDRESS, block] + h[SIZE, block] - end
    if rest > 0:
        after = new_block(h, rest, end, pool, FREE)
        link(h, after, block, h[FOLLOWING, block])
        insert_free(h, after)
    h[ADDRESS, block] = start
    h[SIZE, block] = end - start
    h[STATE, block] = UNMAPPED
    absorb(h, block, h[PREVIOUS, block])
    absorb(h, block, h[FOLLOWING, block])
    h[BOOKS, RESERVED] -= end - start
    if _is_whole(h, block):
        drop_block(h, block)
    else:
        insert_unmapped(h, block)


@njit(cache=True)
def empty_cache(h: Table) -> None:
    """Return every segment (or page) that is wholly free, in both pools (``release_cached_blocks``)."""
    for pool in range(2):
        if h[BOOKS, EXPANDABLE] == 1:
            # Unmapping changes the list, so the blocks are gathered first.
            count = h[BOOKS, FREE_COUNT + pool]
            blocks = np.empty(count, np.int64)
            for i in range(count):
                blocks[i] = h[FREE_LIST + pool, i]
            for i in range(count):
                _unmap(h, blocks[i])
        else:
            at = 0
            while at < h[BOOKS, FREE_COUNT + pool]:
                if _is_whole(h, h[FREE_LIST + pool, at]):
                    _release_at(h, pool, at)
                else:
                    at += 1


@njit(cache=True)
def _collect_garbage(h: Table) -> None:
    """Return old whole segments of the large pool once the threshold is passed (``garbage_collect_cached_blocks``)."""
    books = h[BOOKS]
    if books[EXPANDABLE] == 1 or books[RESERVED] <= books[GC_LIMIT]:
        return
    target = books[RESERVED] - books[GC_LIMIT]
    age, blocks = 0, 0
    for i in range(h[BOOKS, FREE_COUNT + 1]):
        if _is_whole(h, h[FREE_LIST + 1, i]):
            age += h[BOOKS, CALLS + 1] - h[STAMP, h[FREE_LIST + 1, i]]
            blocks += 1
    reclaimed, freed = 0, True
    while reclaimed < target and freed and blocks > 0:
        threshold = age / blocks
        freed = False
        at = 0
        while at < h[BOOKS, FREE_COUNT + 1]:
            block = h[FREE_LIST + 1, at]
            mine = h[BOOKS, CALLS + 1] - h[STAMP, block]
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
    limit = h[BOOKS, MAX_SPLIT]
    if limit == NO_LIMIT or h[BOOKS, EXPANDABLE] == 1:
        return False
    wanted = max(size, limit)
    at = position(h, pool, wanted, 0)
    if at < h[BOOKS, FREE_COUNT + pool]:
        _release_at(h, pool, at)
        return True
    released = 0
    at -= 1
    while at >= 0 and released < wanted and h[SIZE, h[FREE_LIST + pool, at]] >= limit:
        released += _release_at(h, pool, at)
        at -= 1
    return bool(released >= wanted)


@njit(cache=True)
def _splits(h: Table, pool: int, size: int, rest: int) -> bool:
    """Whether what a request leaves of a block becomes a block of its own (``should_split``)."""
    if pool == 0 or h[BOOKS, EXPANDABLE] == 1:
        return bool(rest >= MIN_BLOCK)
    return bool(size < h[BOOKS, MAX_SPLIT] and rest > SMALL_SIZE)


# --- what a program calls


@njit(cache=True)
def malloc(h: Table, nbytes: int) -> int:
    """Serve a request; return the block's index, or ``NO_MEMORY``.

    At the capacity the cache is given back and the request tried once more; each such attempt counts as a retry, as
    ``num_alloc_retries`` does.
    """
    books = h[BOOKS]
    size = round_size(nbytes)
    pool = 0 if size <= SMALL_SIZE else 1
    block = _cached_block(h, pool, size)
    if block == NONE:
        if books[GC_LIMIT] > 0:
            _collect_garbage(h)
        block = _fresh_block(h, pool, size)
        if block == NONE and _release_oversize(h, pool, size):
            block = _fresh_block(h, pool, size)
        if block == NONE:
            empty_cache(h)
            books[RETRIES] += 1
            block = _fresh_block(h, pool, size)
        if block == NONE:
            books[FAILED] = size
            return NO_MEMORY
    rest = h[SIZE, block] - size
    if _splits(h, pool, size, rest):
        remainder = new_block(h, rest, h[ADDRESS, block] + size, pool, FREE)
        link(h, remainder, block, h[FOLLOWING, block])
        insert_free(h, remainder)
        h[SIZE, block] = size
    h[STATE, block] = USED
    books[ALLOCATED] += h[SIZE, block]
    books[PEAK_ALLOCATED] = max(books[PEAK_ALLOCATED], books[ALLOCATED])
    return int(block)


@njit(cache=True)
def free(h: Table, block: int) -> None:
    """Give a block back to the cache, merged with its free neighbours."""
    h[BOOKS, ALLOCATED] -= h[SIZE, block]
    h[STATE, block] = FREE
    absorb(h, block, h[PREVIOUS, block])
    absorb(h, block, h[FOLLOWING, block])
    insert_free(h, block)
