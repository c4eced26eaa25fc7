"""What padding, batching and sorting make of lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data import bucket_by_length, micro_batches, pad_to_multiple, sort_by_length
from raysweep.data.batching import is_padded
from raysweep.errors import DataError

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=60).map(lambda n: np.array(n, dtype=np.int64))


@given(LENGTHS, st.integers(1, 128))
def test_padding_adds_less_than_one_multiple_to_each_item(lengths: np.ndarray, multiple: int) -> None:
    padded = pad_to_multiple(lengths, multiple)
    assert not (padded % multiple).any()
    assert ((padded - lengths >= 0) & (padded - lengths < multiple)).all()


@given(LENGTHS, st.integers(1, 128))
def test_padding_never_makes_more_distinct_lengths(lengths: np.ndarray, multiple: int) -> None:
    assert np.unique(pad_to_multiple(lengths, multiple)).size <= np.unique(lengths).size


@given(LENGTHS, st.integers(1, 8))
def test_a_micro_batch_is_as_long_as_its_longest_item(lengths: np.ndarray, size: int) -> None:
    expected = [max(lengths[i : i + size]) for i in range(0, len(lengths), size)]
    assert micro_batches(lengths, size).tolist() == expected


@given(LENGTHS, st.integers(1, 8))
def test_a_micro_batch_is_padded_where_its_items_differ(lengths: np.ndarray, size: int) -> None:
    expected = [len(set(lengths[i : i + size].tolist())) > 1 for i in range(0, len(lengths), size)]
    assert is_padded(lengths, size).tolist() == expected


@given(LENGTHS, st.integers(1, 8))
def test_sorting_never_pads_more_than_another_order(lengths: np.ndarray, size: int) -> None:
    assert micro_batches(sort_by_length(lengths), size).sum() <= micro_batches(lengths, size).sum()


@given(LENGTHS, st.integers(1, 70))
def test_bucketing_sorts_within_buckets_and_leaves_items_in_theirs(lengths: np.ndarray, bucket: int) -> None:
    ordered = bucket_by_length(lengths, bucket)
    for start in range(0, len(lengths), bucket):
        assert ordered[start : start + bucket].tolist() == sorted(lengths[start : start + bucket], reverse=True)


@pytest.mark.parametrize("call", [pad_to_multiple, micro_batches, bucket_by_length])
def test_a_size_below_one_is_refused(call: object) -> None:
    with pytest.raises(DataError, match="of 1 or more, found 0"):
        call(np.array([3]), 0)  # type: ignore[operator]
