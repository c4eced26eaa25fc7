import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.batches import Packing, PackingMethod, arrange, best_fit_decreasing
from cost.errors import CostError
from cost.lengths import LengthCounts

lengths = st.lists(st.integers(1, 500), min_size=1, max_size=80)


def as_counts(batches) -> dict[int, float]:
    return dict(zip(batches.lengths_tokens, batches.micro_steps, strict=True))


@given(lengths)
def test_micro_batches_of_one_are_the_items(items):
    batches = arrange(LengthCounts.of(items))
    assert as_counts(batches) == {n: items.count(n) for n in set(items)}
    assert batches.squared_tokens == sum(n * n for n in items)


@given(lengths, st.integers(2, 9))
def test_sorted_micro_batches_are_as_long_as_their_last_item(items, size):
    ordered = sorted(items)
    groups = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    expected = {n: sum(1 for g in groups if g[-1] == n) for n in {g[-1] for g in groups}}
    assert as_counts(arrange(LengthCounts.of(items), micro_batch=size, sorted_by_length=True)) == expected


def test_random_micro_batches_are_as_long_as_shuffled_ones_are_on_average():
    rng = random.Random(5)
    items = [rng.randrange(1, 2000) for _ in range(400)]
    batches = arrange(LengthCounts.of(items), micro_batch=4)
    seen = distinct = 0.0
    for _ in range(200):
        rng.shuffle(items)
        longest = [max(items[i : i + 4]) for i in range(0, 400, 4)]
        seen += sum(longest) / 200
        distinct += len(set(longest)) / 200
    assert batches.count == pytest.approx(100)
    assert batches.tokens == pytest.approx(seen, rel=0.01)
    assert batches.distinct_after(1) == pytest.approx(distinct, rel=0.03)


@given(lengths, st.integers(2, 9))
def test_sorting_never_computes_more_tokens_than_chance(items, size):
    counts = LengthCounts.of(items * size)  # whole batches: a short last one is padded to the longest of all
    ordered = arrange(counts, micro_batch=size, sorted_by_length=True)
    shuffled = arrange(counts, micro_batch=size)
    assert ordered.tokens <= shuffled.tokens * (1 + 1e-9)


def test_a_length_seen_in_the_first_epoch_is_not_new_in_the_second():
    batches = arrange(LengthCounts.of(range(1, 101)))
    assert batches.distinct_after(1) == batches.distinct_after(3) == 100
    assert batches.distinct_after(0.5) == pytest.approx(50)


def test_wrapped_packing_fills_every_sequence():
    batches = arrange(LengthCounts.of([300, 700, 500]), packing=Packing(sequence_tokens=512))
    assert as_counts(batches) == {512: 3}


def test_attention_within_items_computes_fewer_squares():
    items = LengthCounts.of([100] * 10)
    across = arrange(items, packing=Packing(sequence_tokens=1000))
    within = arrange(items, packing=Packing(sequence_tokens=1000, attends_across_items=False))
    assert (across.squared_tokens, within.squared_tokens) == (1000**2, 10 * 100**2)


def naive_best_fit(items: list[int], size: int) -> int:
    rooms: list[int] = []
    for length in sorted(items, reverse=True):
        fitting = [r for r in rooms if r >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(size - length)
    return len(rooms)


@given(lengths, st.integers(500, 1200))
def test_best_fit_by_histogram_needs_as_many_sequences_as_item_by_item(items, size):
    assert best_fit_decreasing(LengthCounts.of(items), size) == naive_best_fit(items, size)


def test_an_item_longer_than_a_packed_sequence_is_refused():
    with pytest.raises(CostError, match="513 tokens"):
        arrange(LengthCounts.of([513]), packing=Packing(sequence_tokens=512, method=PackingMethod.BEST_FIT))


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(CostError, match="micro-batch"):
        arrange(LengthCounts.of([1]), micro_batch=0)


def test_a_micro_batch_that_is_larger_than_the_data_computes_the_items_there_are():
    for ordered in (False, True):
        batches = arrange(LengthCounts.of([10, 10, 30]), micro_batch=8, sorted_by_length=ordered)
        assert batches.count == pytest.approx(1)
        assert batches.computed_tokens == pytest.approx(3 * batches.tokens)
    assert arrange(LengthCounts.of([10]), micro_batch=8).computed_tokens == 10


def test_the_longest_of_fewer_items_than_a_micro_batch_holds_is_of_these_alone():
    # Of two items drawn from as many of 10 as of 30 tokens, a quarter of the pairs has none of 30.
    batches = arrange(LengthCounts.of([10, 30]), micro_batch=100)
    assert batches.tokens == pytest.approx(10 / 4 + 30 * 3 / 4)


def test_best_fit_packs_a_part_of_the_data_into_a_part_of_the_sequences():
    items = LengthCounts.of(range(1, 1001))
    assert best_fit_decreasing(items.scaled(0.001), 1000) == 1
    assert best_fit_decreasing(items.scaled(0.5), 1000) == pytest.approx(best_fit_decreasing(items, 1000) / 2, rel=0.02)
