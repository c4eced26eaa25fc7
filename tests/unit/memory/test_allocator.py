"""Laws of the allocator, and the facts of CUDACachingAllocator.cpp that sizes hang on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.memory.blocks import (
    LARGE_SEGMENT,
    MIB,
    NO_MEMORY,
    SMALL_SEGMENT,
    BlockState,
    round_size,
    segment_size,
)
from raysweep.memory.heap import Heap, Placement, new_heap
from raysweep.setting import AllocatorSetting

NATIVE = AllocatorSetting()
EXPANDABLE = AllocatorSetting(expandable_segments=True)
SETTINGS = st.sampled_from(
    [
        NATIVE,
        EXPANDABLE,
        AllocatorSetting(max_split_size_mb=24),
        AllocatorSetting(garbage_collection_threshold=0.5),
    ]
)
SIZES = st.one_of(st.integers(1, 2 * MIB), st.integers(MIB, 60 * MIB))
PROGRAMS = st.lists(st.tuples(st.booleans(), SIZES), min_size=1, max_size=80)
"""(allocate or free, bytes or which of the live blocks)."""


def play(heap: Heap, program) -> list[int]:
    """Return the live blocks; a request that fails leaves nothing."""
    live: list[int] = []
    for allocate, number in program:
        if allocate or not live:
            block = heap.malloc(number)
            if block != NO_MEMORY:
                live.append(block)
        else:
            heap.free(live.pop(number % len(live)))
    return live


def in_use(heap: Heap) -> int:
    return sum(b.size_bytes for b in heap.snapshot() if b.state is BlockState.USED)


def mapped(heap: Heap) -> int:
    return sum(b.size_bytes for b in heap.snapshot() if b.state is not BlockState.UNMAPPED)


# --- laws


@given(program=PROGRAMS, setting=SETTINGS, capacity=st.none() | st.integers(30 * MIB, 300 * MIB))
@settings(max_examples=100, deadline=None)
def test_allocated_is_the_sum_of_live_blocks_and_reserved_that_of_all(program, setting, capacity):
    heap = new_heap(512, setting, capacity_bytes=capacity)
    live = play(heap, program)
    assert heap.allocated_bytes == sum(heap.block_bytes(b) for b in live) == in_use(heap)
    assert heap.reserved_bytes == mapped(heap)
    assert heap.allocated_bytes <= heap.reserved_bytes
    assert heap.peak_allocated_bytes >= heap.allocated_bytes
    assert heap.peak_reserved_bytes >= heap.reserved_bytes


@given(program=PROGRAMS, setting=SETTINGS)
@settings(max_examples=100, deadline=None)
def test_what_is_freed_whole_goes_back_whole(program, setting):
    heap = new_heap(512, setting, capacity_bytes=2000 * MIB)
    for block in play(heap, program):
        heap.free(block)
    assert heap.allocated_bytes == 0
    heap.empty_cache()
    assert heap.reserved_bytes == 0
    assert heap.snapshot() == ()


@given(program=PROGRAMS, setting=SETTINGS, placement=st.sampled_from(Placement))
@settings(max_examples=100, deadline=None)
def test_blocks_tile_their_segments(program, setting, placement):
    heap = new_heap(512, setting, capacity_bytes=2000 * MIB, placement=placement, seed=3)
    play(heap, program)
    blocks = heap.snapshot()
    for before, block in pairwise(blocks):
        end = before.address + before.size_bytes
        assert end < block.address if block.starts_segment else end == block.address


@given(program=PROGRAMS, setting=SETTINGS)
@settings(max_examples=100, deadline=None)
def test_no_two_free_neighbours_stay_apart(program, setting):
    heap = new_heap(512, setting, capacity_bytes=2000 * MIB)
    play(heap, program)
    blocks = heap.snapshot()
    for before, block in pairwise(blocks):
        assert block.starts_segment or BlockState.USED in {before.state, block.state} or before.state != block.state


@given(program=PROGRAMS, setting=SETTINGS, capacity=st.integers(30 * MIB, 200 * MIB))
@settings(max_examples=150, deadline=None)
def test_reserved_stays_within_the_capacity(program, setting, capacity):
    """Torch checks an expandable segment's request before rounding to whole pages: a part of one may be too much."""
    heap = new_heap(512, setting, capacity_bytes=capacity)
    play(heap, program)
    assert heap.peak_reserved_bytes <= capacity + (LARGE_SEGMENT - 1 if setting.expandable_segments else 0)


@given(program=PROGRAMS, request=SIZES, capacity=st.integers(30 * MIB, 200 * MIB))
@settings(max_examples=150, deadline=None)
def test_a_request_fails_only_when_nothing_whole_is_left_to_give_back(program, request, capacity):
    heap = new_heap(512, capacity_bytes=capacity)
    play(heap, program)
    before = heap.retries
    if heap.malloc(request) != NO_MEMORY:
        return
    blocks = heap.snapshot()
    for block, following in zip(blocks, [*blocks[1:], None][: len(blocks)], strict=True):
        is_whole = block.starts_segment and (following is None or following.starts_segment)
        assert not (is_whole and block.state is BlockState.FREE)
    assert heap.retries == before + 1
    assert heap.failed_request_bytes == round_size(request)
    assert heap.reserved_bytes + segment_size(round_size(request)) > capacity


@given(program=PROGRAMS, seed=st.integers(1, 1000))
@settings(max_examples=60, deadline=None)
def test_where_segments_lie_does_not_change_what_is_allocated(program, seed):
    orders = [(Placement.DESCENDING, 1), (Placement.ASCENDING, 1), (Placement.RANDOM, seed)]
    heaps = [new_heap(512, placement=placement, seed=s) for placement, s in orders]
    for heap in heaps:
        play(heap, [(allocate, number) for allocate, number in program if allocate])
    assert len({heap.allocated_bytes for heap in heaps}) == 1


@given(sizes=st.lists(SIZES, min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_growth_alone_reserves_at_most_a_page_more_in_expandable_segments(sizes):
    """Where nothing is freed, native segments leave holes, expandable ones the rest of their last page, one a pool."""
    native, expandable = new_heap(512), new_heap(512, EXPANDABLE)
    play(native, [(True, n) for n in sizes])
    play(expandable, [(True, n) for n in sizes])
    assert expandable.reserved_bytes - expandable.allocated_bytes < LARGE_SEGMENT + SMALL_SEGMENT
    assert expandable.reserved_bytes < native.reserved_bytes + LARGE_SEGMENT + SMALL_SEGMENT


# --- facts


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(1, 512), (512, 512), (513, 1024), (3 * MIB + 1, 3 * MIB + 512)]
)
def test_requests_round_up_to_512(request_bytes, block_bytes):
    assert round_size(request_bytes) == block_bytes


@pytest.mark.parametrize(
    ("request_mib", "reserved_mib"), [(0.5, 2), (1, 2), (1.5, 20), (9, 20), (10, 10), (11, 12), (12, 12), (100.5, 102)]
)
def test_segments_by_request(request_mib, reserved_mib):
    heap = new_heap(16)
    heap.malloc(int(request_mib * MIB))
    assert heap.reserved_bytes == reserved_mib * MIB


def test_small_and_large_pools_do_not_share():
    heap = new_heap(16)
    heap.free(heap.malloc(19 * MIB))
    heap.malloc(MIB)
    assert heap.reserved_bytes == 20 * MIB + 2 * MIB


def test_a_large_block_with_a_megabyte_to_spare_is_not_split():
    heap = new_heap(16)
    heap.free(heap.malloc(12 * MIB))
    assert heap.block_bytes(heap.malloc(11 * MIB)) == 12 * MIB
    heap = new_heap(16)
    heap.free(heap.malloc(12 * MIB))
    assert heap.block_bytes(heap.malloc(11 * MIB - 512)) == 11 * MIB - 512


def test_the_smallest_block_that_serves_is_taken():
    heap = new_heap(16)
    blocks = [heap.malloc(n * MIB) for n in (40, 20, 30)]
    for block in blocks:
        heap.free(block)
    assert heap.malloc(20 * MIB) == blocks[1]


def test_more_can_be_reserved_for_less():
    """The allocator is not monotone in a request's size: 9 MiB share a segment of 20, 11 have one of 12."""
    smaller, larger = new_heap(16), new_heap(16)
    smaller.malloc(9 * MIB)
    larger.malloc(11 * MIB)
    assert smaller.reserved_bytes > larger.reserved_bytes


def test_a_longer_program_can_fit_where_a_shorter_one_fails():
    """So it is not monotone at a capacity either: which length fits must be looked for, not halved for."""

    def fits(first_mib: int) -> bool:
        heap = new_heap(16, capacity_bytes=24 * MIB)
        return heap.malloc(first_mib * MIB) != NO_MEMORY and heap.malloc(12 * MIB) != NO_MEMORY

    assert not fits(9)
    assert fits(11)


def test_at_the_capacity_cached_segments_of_both_pools_are_given_back():
    heap = new_heap(16, capacity_bytes=44 * MIB)
    kept = heap.malloc(20 * MIB)
    heap.free(heap.malloc(20 * MIB))
    heap.free(heap.malloc(MIB))
    assert heap.reserved_bytes == 42 * MIB
    assert heap.malloc(24 * MIB) != NO_MEMORY
    assert heap.reserved_bytes == 44 * MIB
    assert heap.retries == 1
    assert heap.block_bytes(kept) == 20 * MIB


def test_a_request_beyond_the_capacity_is_reported():
    heap = new_heap(16, capacity_bytes=44 * MIB)
    heap.malloc(20 * MIB)
    assert heap.malloc(25 * MIB - 1) == NO_MEMORY
    assert heap.failed_request_bytes == 25 * MIB
    assert heap.retries == 1
    assert heap.allocated_bytes == 20 * MIB


def test_the_cache_keeps_what_is_free_until_it_is_emptied():
    heap = new_heap(16)
    heap.free(heap.malloc(64 * MIB))
    assert heap.reserved_bytes == 64 * MIB
    heap.empty_cache()
    assert heap.reserved_bytes == 0
    assert heap.peak_reserved_bytes == 64 * MIB


def test_peaks_start_anew():
    heap = new_heap(16)
    heap.free(heap.malloc(64 * MIB))
    heap.malloc(2 * MIB)
    heap.reset_peaks()
    assert heap.peak_allocated_bytes == 2 * MIB
    assert heap.peak_reserved_bytes == heap.reserved_bytes == 64 * MIB


# --- the levers


def test_expandable_segments_grow_by_pages():
    heap = new_heap(16, EXPANDABLE)
    for _ in range(3):
        heap.malloc(15 * MIB)
    assert heap.reserved_bytes == 60 * MIB
    heap.malloc(15 * MIB)
    assert heap.reserved_bytes == 60 * MIB


def test_expandable_segments_serve_growing_lengths_from_one_segment():
    native, expandable = new_heap(64), new_heap(64, EXPANDABLE)
    for heap in (native, expandable):
        for length in range(20, 60):
            heap.free(heap.malloc(length * MIB))
    assert expandable.reserved_bytes == 60 * MIB
    assert native.reserved_bytes > 10 * expandable.reserved_bytes


def test_at_the_capacity_free_pages_amid_an_expandable_segment_are_unmapped():
    heap = new_heap(64, EXPANDABLE, capacity_bytes=100 * MIB)
    blocks = [heap.malloc(20 * MIB) for _ in range(5)]
    heap.free(blocks[1])
    heap.free(blocks[3])
    assert heap.malloc(40 * MIB) != NO_MEMORY
    assert heap.reserved_bytes == 100 * MIB
    assert heap.retries == 1
    assert BlockState.UNMAPPED in {b.state for b in heap.snapshot()}


def test_native_segments_cannot_join_what_is_free_apart():
    heap = new_heap(64, capacity_bytes=100 * MIB)
    whole = heap.malloc(100 * MIB)
    heap.free(whole)
    blocks = [heap.malloc(20 * MIB) for _ in range(5)]
    heap.free(blocks[1])
    heap.free(blocks[3])
    assert heap.malloc(40 * MIB) == NO_MEMORY


def test_garbage_is_collected_oldest_first_once_the_threshold_is_passed():
    setting = AllocatorSetting(garbage_collection_threshold=0.5)
    heap = new_heap(16, setting, capacity_bytes=200 * MIB)
    old = heap.malloc(60 * MIB)
    young = heap.malloc(50 * MIB)
    heap.free(old)
    heap.free(young)
    heap.free(heap.malloc(50 * MIB))
    assert heap.reserved_bytes == 110 * MIB
    heap.malloc(62 * MIB)
    assert heap.reserved_bytes == 50 * MIB + 62 * MIB
    assert heap.retries == 0


def test_below_its_threshold_no_garbage_is_collected():
    heap = new_heap(16, AllocatorSetting(garbage_collection_threshold=0.9), capacity_bytes=200 * MIB)
    heap.free(heap.malloc(60 * MIB))
    heap.malloc(70 * MIB)
    assert heap.reserved_bytes == 130 * MIB


def test_blocks_of_the_max_split_size_serve_no_smaller_request():
    setting = AllocatorSetting(max_split_size_mb=32)
    heap = new_heap(16, setting)
    heap.free(heap.malloc(40 * MIB))
    heap.malloc(16 * MIB)
    assert heap.reserved_bytes == 56 * MIB


def test_an_oversize_request_takes_no_block_of_20_mib_more():
    setting = AllocatorSetting(max_split_size_mb=32)
    heap = new_heap(16, setting)
    heap.free(heap.malloc(100 * MIB))
    assert heap.block_bytes(heap.malloc(81 * MIB)) == 100 * MIB
    heap = new_heap(16, setting)
    heap.free(heap.malloc(100 * MIB))
    heap.malloc(80 * MIB)
    assert heap.reserved_bytes == 180 * MIB


def test_with_a_max_split_size_one_oversize_block_is_released_before_the_whole_cache():
    setting = AllocatorSetting(max_split_size_mb=32)
    heap = new_heap(16, setting, capacity_bytes=120 * MIB)
    heap.free(heap.malloc(16 * MIB))
    heap.free(heap.malloc(60 * MIB))
    heap.free(heap.malloc(40 * MIB))
    heap.malloc(34 * MIB)
    heap.malloc(36 * MIB)
    assert heap.retries == 0
    assert any(b.state is BlockState.FREE and b.size_bytes == 16 * MIB for b in heap.snapshot())
