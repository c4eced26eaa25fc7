"""What a limit on the length does to items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.data import Items, LengthPolicy, limit_costs, limit_items
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
    split = limit_items(items, limit, LengthPolicy.SPLIT)
    assert (split.total_tokens, split.total_loss_tokens) == (items.total_tokens, items.total_loss_tokens)
    assert split.longest_tokens <= limit


@given(some_items(), LIMITS)
def test_truncating_keeps_the_items_and_no_more_than_the_limit_of_each(items: Items, limit: int) -> None:
    cut = limit_items(items, limit, LengthPolicy.TRUNCATE)
    assert cut.tokens.tolist() == [min(n, limit) for n in items.tokens.tolist()]
    assert cut.total_loss_tokens <= items.total_loss_tokens


@given(some_items(), LIMITS)
def test_dropping_leaves_the_short_items_as_they_were(items: Items, limit: int) -> None:
    short = items.tokens <= limit
    if not short.any():
        with pytest.raises(DataError, match="no item is left within"):
            limit_items(items, limit, LengthPolicy.DROP)
        return
    assert limit_items(items, limit, LengthPolicy.DROP).tokens.tolist() == items.tokens[short].tolist()


@given(some_items(), LIMITS, st.sampled_from(LengthPolicy))
def test_what_is_left_and_what_is_lost_add_up(items: Items, limit: int, policy: LengthPolicy) -> None:
    (cost,) = limit_costs(items, [limit], policy)
    left_tokens = limit_items(items, limit, policy).total_tokens if cost.items_left else 0
    assert left_tokens + cost.lost_tokens == items.total_tokens
    assert 0 <= cost.lost_token_share <= 1
    assert 0 <= cost.lost_loss_share <= 1


@given(some_items(), LIMITS, LIMITS, st.sampled_from(LengthPolicy))
def test_a_higher_limit_never_loses_more(items: Items, one: int, other: int, policy: LengthPolicy) -> None:
    low, high = limit_costs(items, sorted((one, other)), policy)
    assert high.lost_tokens <= low.lost_tokens
    assert high.lost_loss_tokens <= low.lost_loss_tokens


@given(some_items(), LIMITS)
def test_truncating_never_loses_more_tokens_than_dropping(items: Items, limit: int) -> None:
    (cut,), (dropped,) = (limit_costs(items, [limit], p) for p in (LengthPolicy.TRUNCATE, LengthPolicy.DROP))
    assert cut.lost_tokens <= dropped.lost_tokens
    assert cut.lost_loss_tokens <= dropped.lost_loss_tokens


def test_loss_bearing_tokens_stand_at_the_end_of_an_item() -> None:
    answers = Items.of([10], [4])
    assert limit_items(answers, 7, LengthPolicy.TRUNCATE).total_loss_tokens == 1
    split = limit_items(answers, 4, LengthPolicy.SPLIT)
    assert split.tokens.tolist() == [4, 4, 2]
    assert split.loss_tokens is not None
    assert split.loss_tokens.tolist() == [0, 2, 2]


def test_the_cost_of_each_limit_counts_items_tokens_and_loss() -> None:
    (cost,) = limit_costs(Items.of([100, 300, 100], [50, 100, 50]), [200], LengthPolicy.DROP)
    assert (cost.items_over, cost.items_left) == (1, 2)
    assert (cost.lost_tokens, cost.lost_token_share) == (300, 0.6)
    assert (cost.lost_loss_tokens, cost.lost_loss_share) == (100, 0.5)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(DataError, match="expected a length limit of 1 token or more, found 0"):
        limit_costs(Items.of([5]), [0], LengthPolicy.DROP)


def test_the_items_given_are_not_changed() -> None:
    items = Items.of([9, 3])
    limit_items(items, 4, LengthPolicy.TRUNCATE)
    assert np.array_equal(items.tokens, [9, 3])
