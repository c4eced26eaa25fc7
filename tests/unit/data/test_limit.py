"""What a limit on the length does to items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.errors import CostError
from cost.lengths import LengthCounts, OverLength
from raysweep.data import Items, limit_items
from raysweep.errors import DataError

LIMITS = st.integers(1, 400)


@st.composite
def some_items(draw: st.DrawFn) -> Items:
    tokens = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
    if draw(st.booleans()):
        return Items.of(tokens)
    return Items.of(tokens, [draw(st.integers(0, n)) for n in tokens])


@given(some_items(), LIMITS)
def test_splitting_keeps_every_token_and_every_loss_bearing_one(items: Items, limit: int) -> None:
    split = limit_items(items, limit, OverLength.SPLIT)
    assert (split.total_tokens, split.total_loss_tokens) == (items.total_tokens, items.total_loss_tokens)
    assert split.longest_tokens <= limit


@given(some_items(), LIMITS)
def test_truncating_keeps_the_items_and_no_more_than_the_limit_of_each(items: Items, limit: int) -> None:
    cut = limit_items(items, limit, OverLength.TRUNCATE)
    assert cut.tokens.tolist() == [min(n, limit) for n in items.tokens.tolist()]
    assert cut.total_loss_tokens <= items.total_loss_tokens


@given(some_items(), LIMITS)
def test_dropping_leaves_the_short_items_as_they_were(items: Items, limit: int) -> None:
    short = items.tokens <= limit
    if not short.any():
        with pytest.raises(DataError, match="no item is left within"):
            limit_items(items, limit, OverLength.DROP)
        return
    assert limit_items(items, limit, OverLength.DROP).tokens.tolist() == items.tokens[short].tolist()


@given(some_items(), LIMITS, st.sampled_from(OverLength))
def test_the_items_are_those_that_the_projection_counts(items: Items, limit: int, over: OverLength) -> None:
    loss = None if items.loss_tokens is None else items.loss_tokens.tolist()
    counted = LengthCounts.of(items.tokens.tolist(), loss)
    try:
        projected, _ = counted.limited(limit, over)
    except CostError:
        with pytest.raises(DataError, match="no item is left"):
            limit_items(items, limit, over)
        return
    limited = limit_items(items, limit, over)
    assert (len(limited), limited.total_tokens) == (projected.count, projected.tokens)
    if over is OverLength.TRUNCATE:  # a histogram knows the loss of all items of one length together, not of each
        return
    assert limited.total_loss_tokens == (projected.tokens if loss is None else projected.loss_tokens)


def test_loss_bearing_tokens_stand_at_the_end_of_an_item() -> None:
    answers = Items.of([10], [4])
    assert limit_items(answers, 7, OverLength.TRUNCATE).total_loss_tokens == 1
    split = limit_items(answers, 4, OverLength.SPLIT)
    assert split.tokens.tolist() == [4, 4, 2]
    assert split.loss_tokens is not None
    assert split.loss_tokens.tolist() == [0, 2, 2]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(DataError, match="expected a length limit of 1 token or more, found 0"):
        limit_items(Items.of([5]), 0, OverLength.DROP)


def test_the_items_given_are_not_changed() -> None:
    items = Items.of([9, 3])
    limit_items(items, 4, OverLength.TRUNCATE)
    assert np.array_equal(items.tokens, [9, 3])
