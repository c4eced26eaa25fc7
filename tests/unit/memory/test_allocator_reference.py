"""The allocator against one written independently, block by block, on random programs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from caching_reference import MIB, OutOfMemoryError, ReferenceAllocator
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.memory.blocks import NO_MEMORY
from raysweep.memory.heap import Heap, new_heap
from raysweep.setting import AllocatorSetting

SIZES = st.one_of(
    st.integers(1, MIB + 1024),
    st.integers(MIB // 512, 10 * MIB // 512).map(lambda n: n * 512),
    st.integers(10 * MIB, 80 * MIB),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 512, 10 * MIB, 11 * MIB, 20 * MIB, 25 * MIB, 40 * MIB]),
)
ACTIONS = st.one_of(
    st.tuples(st.just("malloc"), SIZES),
    st.tuples(st.just("malloc"), SIZES),
    st.tuples(st.just("free"), st.integers(0, 1 << 20)),
    st.tuples(st.just("free"), st.integers(0, 1 << 20)),
    st.tuples(st.just("empty_cache"), st.just(0)),
)
PROGRAMS = st.lists(ACTIONS, min_size=1, max_size=120)
CAPACITIES = st.one_of(st.none(), st.integers(30, 400).map(lambda n: n * MIB))


@dataclass
class Both:
    """The product and the reference, driven side by side."""

    heap: Heap
    reference: ReferenceAllocator
    live: list = field(default_factory=list)

    def malloc(self, nbytes: int) -> None:
        block = self.heap.malloc(nbytes)
        try:
            expected = self.reference.malloc(nbytes)
        except OutOfMemoryError:
            assert block == NO_MEMORY
            return
        assert self.heap.block_bytes(block) == expected.size
        self.live.append((block, expected))

    def free(self, which: int) -> None:
        if self.live:
            block, expected = self.live.pop(which % len(self.live))
            self.heap.free(block)
            self.reference.free(expected)

    def empty_cache(self, _: int) -> None:
        self.heap.empty_cache()
        self.reference.empty_cache()

    def compare(self) -> None:
        heap, reference = self.heap, self.reference
        assert layout(heap) == reference.layout()
        assert heap.allocated_bytes == reference.allocated
        assert heap.reserved_bytes == reference.reserved
        assert heap.peak_allocated_bytes == reference.peak_allocated
        assert heap.peak_reserved_bytes == reference.peak_reserved
        assert heap.retries == reference.retries


def layout(heap: Heap) -> list[tuple[str, str, int]]:
    return [("small" if b.is_small else "large", b.state.name.lower(), b.size_bytes) for b in heap.snapshot()]


def hold(program, heap: Heap, reference: ReferenceAllocator) -> None:
    both = Both(heap, reference)
    for action, argument in program:
        getattr(both, action)(argument)
        both.compare()


@given(program=PROGRAMS, capacity=CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_native_segments_as_the_reference(program, capacity):
    hold(program, new_heap(1024, capacity_bytes=capacity), ReferenceAllocator(capacity=capacity))


@given(program=PROGRAMS, capacity=CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_expandable_segments_as_the_reference(program, capacity):
    heap = new_heap(1024, AllocatorSetting(expandable_segments=True), capacity_bytes=capacity)
    hold(program, heap, ReferenceAllocator(capacity=capacity, expandable=True))


@given(program=PROGRAMS, capacity=CAPACITIES, split_mb=st.integers(21, 60))
@settings(max_examples=150, deadline=None)
def test_max_split_size_as_the_reference(program, capacity, split_mb):
    heap = new_heap(1024, AllocatorSetting(max_split_size_mb=split_mb), capacity_bytes=capacity)
    hold(program, heap, ReferenceAllocator(capacity=capacity, max_split=split_mb * MIB))


@given(
    program=PROGRAMS,
    capacity=st.integers(30, 400).map(lambda n: n * MIB),
    threshold=st.floats(0.05, 0.95),
    split_mb=st.none() | st.integers(21, 60),
)
@settings(max_examples=150, deadline=None)
def test_garbage_collection_as_the_reference(program, capacity, threshold, split_mb):
    setting = AllocatorSetting(garbage_collection_threshold=threshold, max_split_size_mb=split_mb)
    heap = new_heap(1024, setting, capacity_bytes=capacity)
    max_split = None if split_mb is None else split_mb * MIB
    hold(program, heap, ReferenceAllocator(capacity=capacity, gc_threshold=threshold, max_split=max_split))


@pytest.mark.parametrize("expandable", [False, True])
def test_long_programs_as_the_reference(expandable):
    """Thousands of events at one capacity, tight enough that the cache is given back many times."""
    import random

    draw = random.Random(5)
    capacity = 300 * MIB
    heap = new_heap(4096, AllocatorSetting(expandable_segments=expandable), capacity_bytes=capacity)
    both = Both(heap, ReferenceAllocator(capacity=capacity, expandable=expandable))
    for turn in range(2500):
        if draw.random() < 0.52:
            both.malloc(int(2 ** draw.uniform(9, 26)))
        else:
            both.free(draw.randrange(1 << 20))
        if turn % 25 == 0:
            both.compare()
    both.compare()
    assert both.reference.retries > 50
