"""What length limits cost: the numbers that a limited run then shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.errors import CostError
from cost.lengths import LengthCounts, OverLength
from raysweep.data.limit_cost import limit_costs

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(lengths, st.lists(st.integers(1, 6000), min_size=1, max_size=5), st.sampled_from(OverLength))
def test_each_limit_costs_what_the_run_under_it_loses(items: list[int], limits: list[int], over: OverLength) -> None:
    counts = LengthCounts.of(items, [n // 3 for n in items])
    for cost in limit_costs({"s": counts}, limits, over):
        try:
            left, lost = counts.limited(cost.limit_tokens, over)
        except CostError:
            assert cost.items_left == 0
            continue
        assert cost.items_left == left.count
        assert (cost.items_over, cost.lost_tokens) == (lost.items, lost.tokens)
        assert cost.lost_loss_tokens == pytest.approx(lost.loss_tokens)


def test_every_token_bears_loss_where_none_are_told_apart() -> None:
    (cost,) = limit_costs({"s": LengthCounts.of([100, 300])}, [200], OverLength.TRUNCATE)
    assert (cost.lost_loss_tokens, cost.lost_loss_share) == (100, 0.25)


def test_data_without_loss_lose_none_of_it() -> None:
    (cost,) = limit_costs({"s": LengthCounts.of([100, 300], [0, 0])}, [200], OverLength.DROP)
    assert (cost.items_over, cost.lost_loss_share) == (1, 0)


def test_limits_come_ascending_and_once_for_each_stage() -> None:
    counts = {name: LengthCounts.of([10]) for name in ("a", "b")}
    costs = limit_costs(counts, [20, 5, 20], OverLength.SPLIT)
    assert [(c.stage, c.limit_tokens, c.items_left) for c in costs] == [
        ("a", 5, 2),
        ("a", 20, 1),
        ("b", 5, 2),
        ("b", 20, 1),
    ]
