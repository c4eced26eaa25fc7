import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.candidate import Candidate, Reason
from cost.choose import Decision, RunBudget, choose
from cost.errors import CostError
from cost.evidence import Evidence, Range
from cost.frontier import break_even, frontier, trade_off
from cost.verdict import Fit, Verdict

FITS = Fit(verdict=Verdict.FITS, headroom_bytes=10**9)
TIGHT = Fit(verdict=Verdict.TIGHT, headroom_bytes=-2 * 10**9)
NO = Fit(verdict=Verdict.NO, headroom_bytes=-(10**9))


def candidate(flavour: str, cost: float | None = None, length: int = 4096, **changes: object) -> Candidate:
    known = {
        "fit": FITS,
        "memory_evidence": Evidence.FORECAST,
        "cost": None if cost is None else Range(expected=cost, low=0.95 * cost, high=1.05 * cost),
        "hours": None if cost is None else Range(expected=cost / 2, low=0.45 * cost, high=0.55 * cost),
        "time_evidence": None if cost is None else Evidence.MEASURED,
        "price_per_hour": 2.0,
    }
    return Candidate(flavour=flavour, step="gpu, chunked", length_tokens=length, **{**known, **changes})


def reason(decision: Decision, flavour: str) -> Reason:
    return decision.nearest_rejection(flavour).reason


def test_the_cheapest_that_fits_is_chosen():
    decision = choose([candidate("a", 5), candidate("b", 4), candidate("c", 3, fit=NO)])
    assert decision.chosen.flavour == "b"


def test_without_a_length_the_longest_that_fits_anywhere_is_wanted():
    decision = choose([candidate("a", 5, 8192), candidate("b", 4, 4096), candidate("c", 9, 8192)])
    assert (decision.chosen.flavour, decision.at_least_tokens) == ("a", 8192)
    assert reason(decision, "b") is Reason.SHORTER


def test_of_equally_cheap_ones_the_longest_is_chosen():
    decision = choose([candidate("a", 5, n) for n in (4096, 8192, 16384)], at_least_tokens=4096)
    assert decision.chosen.length_tokens == 16384


@pytest.mark.parametrize(
    ("other", "expected", "words"),
    [
        (candidate("b", 1, fit=NO), Reason.DOES_NOT_FIT, r"allocation fails at 4096 tokens \(forecast\)"),
        (candidate("b", 1, fit=TIGHT), Reason.TIGHT, r"2\.0 GB inside the margin"),
        (candidate("b", 1, fit=replace(TIGHT, headroom_bytes=5)), Reason.TIGHT, "frees its cache"),
        (candidate("b", 1, fit=None), Reason.MEMORY_UNKNOWN, "neither a forecast nor a probe"),
        (candidate("b", 1, gpu_count=4), Reason.MULTI_GPU, "4 GPUs"),
        (candidate("b", hours=Range.exactly(1), price_per_hour=None), Reason.NO_PRICE, "price_usd_per_hour"),
        (candidate("b"), Reason.NO_TIME, "not probed"),
        (candidate("b", 7), Reason.DEARER, r"dearer by 2\.00 USD$"),
        (candidate("b", 5.2), Reason.DEARER, r"dearer by 0\.20 USD; the ranges overlap"),
        (candidate("b", 1, 2048), Reason.SHORTER, "4096 are wanted"),
    ],
)
def test_every_other_flavour_has_the_reason_why_it_lost(other, expected, words):
    decision = choose([candidate("a", 5), other])
    assert decision.chosen.flavour == "a"
    (lost,) = decision.lost
    assert lost.reason is expected
    assert re.search(words, lost.detail)


def test_a_length_that_fits_above_one_that_does_not_is_no_length_to_run():
    gap = [candidate("a", 3, 8192), candidate("a", 2, 4096, fit=TIGHT), candidate("a", 1, 2048)]
    decision = choose(gap)
    assert decision.chosen.length_tokens == 2048
    assert [r.reason for r in decision.rejections] == [Reason.GAP, Reason.TIGHT]


def test_a_shorter_length_of_unknown_memory_bars_no_longer_one_that_fits():
    decision = choose([candidate("a", 3, 8192), candidate("a", 1, 512, fit=None)])
    assert decision.chosen.length_tokens == 8192
    assert [r.reason for r in decision.rejections] == [Reason.MEMORY_UNKNOWN]


def test_a_multi_gpu_flavour_is_priced_whole_and_rejected():
    decision = choose([candidate("a", 5), candidate("hf/h200x8", 1, gpu_count=8, price_per_hour=40.0)])
    assert reason(decision, "hf/h200x8") is Reason.MULTI_GPU


def unprobed(flavour: str, run_flops: float, **changes: object) -> Candidate:
    return candidate(flavour, run_flops=run_flops, peak_flops_per_second=1e15, **changes)


def test_a_flavour_that_is_dearer_even_at_its_dense_peak_cannot_win():
    # 3.6e19 FLOPs at 1e15 a second are 10 h, 20 USD; the measured one costs at most 5.25.
    decision = choose([candidate("a", 5), unprobed("b", 3.6e19)])
    (lost,) = decision.lost
    assert lost.reason is Reason.CANNOT_WIN
    assert "20.00 USD" in lost.detail
    assert "5.25 USD" in lost.detail


def test_a_bound_below_the_upper_end_of_the_best_measured_cost_proves_nothing():
    decision = choose([candidate("a", 5), unprobed("b", 0.918e19)])  # 5.10 USD: above 5.00, below 5.25
    assert reason(decision, "b") is Reason.NO_TIME


def test_an_unprobed_flavour_says_what_share_of_its_peak_it_would_need_and_the_highest_seen():
    measured = candidate("a", 5, run_flops=1.8e18, peak_flops_per_second=1e15)  # 2.5 h: 20 % of its peak
    decision = choose([measured, unprobed("b", 1.8e18)])  # 1 USD at its peak: 20 % of it costs 5
    (lost,) = decision.lost
    assert lost.peak_share_needed == pytest.approx(0.2)
    assert "20% of its dense peak to win, and the highest measured here is 20%" in lost.detail


def test_without_a_sourced_peak_nothing_is_ruled_out():
    decision = choose([candidate("a", 5), candidate("b", run_flops=1e30)])
    assert reason(decision, "b") is Reason.NO_TIME


def test_a_forecast_alone_proves_nothing_against_another():
    forecast = candidate("a", 5, time_evidence=Evidence.FORECAST)
    assert reason(choose([forecast, unprobed("b", 3.6e19)]), "b") is Reason.NO_TIME


def test_a_budget_holds_by_the_upper_end_of_the_range():
    decision = choose([candidate("a", 5)], budget=RunBudget(cost=5.2))
    assert decision.chosen is None
    assert reason(decision, "a") is Reason.OVER_BUDGET
    assert choose([candidate("a", 5)], budget=RunBudget(cost=5.3)).chosen is not None


def test_of_a_budget_only_the_limit_that_is_exceeded_is_named():
    long = candidate("a", 0.01, hours=Range(low=1, expected=2, high=3))
    for budget, words in (
        (RunBudget(cost=0.001, hours=4), "it may take up to 0.011 USD, over the 0.0010 USD of the run's budget"),
        (RunBudget(cost=1, hours=0.5), "it may take up to 3.0 h, over the 30.0 min of the run's budget"),
    ):
        (rejection,) = choose([long], budget=budget).rejections
        assert rejection.detail == words


def test_a_length_within_the_budget_is_found_where_the_longest_is_over_it():
    decision = choose([candidate("a", 9, 8192), candidate("a", 5, 4096)], budget=RunBudget(cost=6))
    assert decision.chosen.length_tokens == 4096
    assert decision.lost == ()


def test_when_nothing_fits_nothing_is_chosen_and_every_reason_stands():
    decision = choose([candidate("a", 5, fit=NO), candidate("b", 5, fit=TIGHT)])
    assert decision.chosen is None
    assert [r.reason for r in decision.rejections] == [Reason.DOES_NOT_FIT, Reason.TIGHT]


def test_where_no_flavour_has_a_price_hours_decide():
    free = {"price_per_hour": None, "cost": None}
    fast, slow = (candidate(n, hours=Range.exactly(h), **free) for n, h in (("fast", 2), ("slow", 5)))
    decision = choose([slow, fast])
    assert decision.chosen.flavour == "fast"
    assert decision.by_hours
    assert decision.lost[0].detail == "slower by 3.0 h"


def test_nothing_to_choose_from_is_an_error():
    with pytest.raises(CostError, match="nothing to choose from"):
        choose([])


@pytest.mark.parametrize("length", [0, -5])
def test_a_length_of_nothing_is_refused(length):
    with pytest.raises(CostError, match="1 token"):
        choose([candidate("a", 5)], at_least_tokens=length)


candidates = st.lists(
    st.builds(
        candidate,
        flavour=st.sampled_from("abcd"),
        cost=st.none() | st.floats(0.1, 100),
        length=st.sampled_from([1024, 2048, 4096]),
        fit=st.sampled_from([FITS, TIGHT, NO, None]),
        gpu_count=st.sampled_from([1, 2]),
    ),
    min_size=1,
    max_size=12,
)


@given(candidates, st.none() | st.floats(0.1, 100))
def test_each_candidate_is_either_chosen_or_rejected_once(given_candidates, cost):
    decision = choose(given_candidates, budget=RunBudget(cost=cost))
    rejected = [id(r.candidate) for r in decision.rejections]
    chosen = [id(decision.chosen)] if decision.chosen else []
    assert sorted(rejected + chosen) == sorted(id(c) for c in given_candidates)


@given(candidates)
def test_no_eligible_candidate_of_the_wanted_length_is_cheaper_than_the_chosen_one(given_candidates):
    decision = choose(given_candidates)
    for c in decision.eligible:
        assert c.length_tokens < decision.at_least_tokens or c.cost.expected >= decision.chosen.cost.expected


def test_the_frontier_names_the_cheapest_the_fastest_and_the_longest():
    cheap = candidate("cheap", 2, 2048)
    fast = candidate("fast", 9, 2048, hours=Range.exactly(0.1))
    long = candidate("long", 5, 8192)
    worse = candidate("worse", 6, 2048)
    edge = frontier(choose([cheap, fast, long, worse]))
    assert (edge.cheapest, edge.fastest, edge.longest) == (cheap, fast, long)
    assert edge.undominated == (cheap, long, fast)


def test_the_frontier_stays_within_the_budget():
    cheap, fast = candidate("cheap", 2), candidate("fast", 9, hours=Range.exactly(0.1))
    assert frontier(choose([cheap, fast], budget=RunBudget(cost=5))).fastest is cheap


def test_an_empty_frontier_has_none_of_them():
    edge = frontier(choose([candidate("a", 5, fit=NO)]))
    assert (edge.cheapest, edge.fastest, edge.longest, edge.undominated) == (None, None, None, ())


def test_another_margin_says_what_it_changes_in_dollars_and_tokens():
    before = choose([candidate("small", 3, fit=TIGHT), candidate("large", 5)])
    after = choose([candidate("small", 3), candidate("large", 5)])
    change = trade_off("margin 4 %", before, after)
    assert (change.chosen.flavour, change.cost_change, change.length_change_tokens) == ("small", -2, 0)


def test_a_change_after_which_nothing_is_left_has_no_figures():
    before, after = choose([candidate("a", 5)]), choose([candidate("a", 5, fit=NO)])
    assert trade_off("margin 30 %", before, after).cost_change is None


def test_without_start_up_the_break_even_is_the_ratio_of_the_prices():
    point = break_even(candidate("a", price_per_hour=2.5), candidate("b", price_per_hour=5.0))
    assert (point.ratio, point.seen, point.pays) == (2.0, None, None)


@given(p1=st.floats(0.5, 10), p2=st.floats(0.5, 10), hours=st.floats(1, 100), start=st.floats(0.01, 0.5))
def test_at_the_break_even_ratio_both_runs_cost_the_same(p1, p2, hours, start):
    one = candidate("a", hours=Range.exactly(hours), price_per_hour=p1)
    ratio = break_even(one, candidate("b", price_per_hour=p2), start_hours=start).ratio
    if ratio is None:
        assert p2 * start >= p1 * hours
    else:
        assert p2 * (start + (hours - start) / ratio) == pytest.approx(p1 * hours, rel=1e-6)


def test_a_speed_seen_above_the_break_even_pays():
    one = candidate("a", hours=Range.exactly(3.1), price_per_hour=2.5)
    other = candidate("b", hours=Range.exactly(1.4), price_per_hour=5.0)
    point = break_even(one, other)
    assert point.seen == pytest.approx(3.1 / 1.4)
    assert point.pays


def test_a_break_even_without_a_price_names_the_flavour():
    with pytest.raises(CostError, match="b has none"):
        break_even(candidate("a"), candidate("b", price_per_hour=None))


def test_ten_thousand_candidates_are_chosen_from_in_under_a_second():
    many = [candidate(f"f{i % 20}", 1 + i % 97, 64 * (1 + i // 20)) for i in range(10_000)]
    start = time.process_time()
    choose(many)
    assert time.process_time() - start < 1
