import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cost.errors import CostError
from cost.length_summary import of_summary
from cost.lengths import LengthCounts, OverLength

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(lengths)
def test_a_histogram_keeps_items_tokens_and_the_longest(items):
    counts = LengthCounts.of(items)
    assert (counts.count, counts.tokens, counts.longest_tokens) == (len(items), sum(items), max(items))
    assert counts.distinct == len(set(items))


def test_loss_bearing_tokens_are_counted_apart():
    counts = LengthCounts.of([10, 10, 20], [1, 2, 20])
    assert (counts.tokens, counts.loss_tokens) == (40, 23)
    assert LengthCounts.of([10]).loss_tokens is None


def test_totals_alone_are_kept_to_the_token():
    counts = LengthCounts.of_totals(items=36, tokens=940_000, loss_share=0.25)
    assert (counts.count, counts.tokens) == (36, 940_000)
    assert counts.loss_tokens == pytest.approx(235_000)


@given(lengths, st.integers(1, 300))
def test_padding_only_adds_and_less_than_the_multiple_an_item(items, multiple):
    counts = LengthCounts.of(items)
    padded = counts.padded(multiple)
    assert all(n % multiple == 0 for n in padded.lengths_tokens)
    assert counts.tokens <= padded.tokens <= counts.tokens + (multiple - 1) * len(items)
    assert padded.distinct <= counts.distinct


@given(lengths, st.integers(1, 6000))
def test_splitting_loses_nothing_and_no_piece_is_over_the_limit(items, limit):
    counts = LengthCounts.of(items, [n // 3 for n in items])
    kept, lost = counts.limited(limit, OverLength.SPLIT)
    assert kept.tokens == sum(items)
    assert kept.loss_tokens == pytest.approx(counts.loss_tokens)
    assert kept.longest_tokens <= limit
    assert (lost.tokens, lost.loss_tokens) == (0, 0)


@given(lengths, st.integers(1, 6000))
def test_truncation_keeps_every_item_and_what_is_lost_adds_up(items, limit):
    counts = LengthCounts.of(items, [n // 3 for n in items])
    kept, lost = counts.limited(limit, OverLength.TRUNCATE)
    assert kept.count == len(items)
    assert kept.tokens + lost.tokens == sum(items)
    assert kept.loss_tokens + lost.loss_tokens == pytest.approx(counts.loss_tokens)
    assert lost.items == sum(1 for n in items if n > limit)


def test_truncation_cuts_the_completion_first():
    _, lost = LengthCounts.of([100], [30]).limited(80, OverLength.TRUNCATE)
    assert lost.loss_share == pytest.approx(20 / 30)


def test_dropping_loses_whole_items():
    kept, lost = LengthCounts.of([10, 100, 200], [5, 50, 100]).limited(50, OverLength.DROP)
    assert (kept.count, lost.items, lost.tokens, lost.loss_tokens) == (1, 2, 300, 150)


@pytest.mark.parametrize("over", OverLength)
def test_a_limit_that_no_item_reaches_changes_nothing(over):
    counts = LengthCounts.of([10, 100], [5, 50]).scaled(3)
    kept, lost = counts.limited(100, over)
    assert kept == counts
    assert (lost.items, lost.tokens, lost.loss_tokens, lost.loss_share) == (0, 0, 0, 0)
    assert LengthCounts.of([10, 100]).limited(100, over)[1].loss_share is None


def test_a_limit_that_drops_everything_is_refused():
    with pytest.raises(CostError, match="limit of 5"):
        LengthCounts.of([10]).limited(5, OverLength.DROP)


def test_grown_data_shows_more_lengths_as_real_data_would():
    rng = random.Random(1)
    items = [max(1, int(800 * 2.718 ** rng.gauss(0, 0.8))) for _ in range(3000)]
    grown = LengthCounts.of(items[:1000]).scaled(3)
    assert grown.count == pytest.approx(3000)
    assert grown.distinct == pytest.approx(len(set(items)), rel=0.05)


def test_half_the_data_shows_fewer_lengths():
    rng = random.Random(2)
    items = [max(1, int(800 * 2.718 ** rng.gauss(0, 0.8))) for _ in range(2000)]
    assert LengthCounts.of(items).scaled(0.5).distinct == pytest.approx(len(set(items[:1000])), rel=0.05)


def _skewed(items: int) -> list[int]:
    rng = random.Random(3)
    return [max(1, int(800 * 2.718 ** rng.gauss(0, 0.8))) for _ in range(items)]


@pytest.mark.parametrize("factor", [0.1, 3])
@pytest.mark.parametrize("multiple", [1, 8])
def test_scaled_data_under_a_limit_and_padded_shows_as_many_lengths_as_real_data_would(factor, multiple):
    items = _skewed(3000)
    scaled = LengthCounts.of(items[:1000]).scaled(factor).limited(1200, OverLength.TRUNCATE)[0].padded(multiple)
    real = LengthCounts.of(items[: round(1000 * factor)]).limited(1200, OverLength.TRUNCATE)[0].padded(multiple)
    assert scaled.distinct == pytest.approx(real.distinct, rel=0.1)


@given(lengths, st.floats(0.1, 10))
@example([1], 2.0)  # no length is left that could be new
def test_growth_scales_items_and_tokens_alike(items, factor):
    counts = LengthCounts.of(items)
    assert counts.scaled(factor).tokens == pytest.approx(factor * counts.tokens)
    assert counts.scaled(factor).distinct <= counts.longest_tokens + 1e-6


@pytest.mark.parametrize("items", [[], [0, 5], [-1]])
def test_items_of_no_length_are_refused(items):
    with pytest.raises(CostError):
        LengthCounts.of(items)


def test_more_loss_than_tokens_is_refused():
    with pytest.raises(CostError, match="cannot bear loss"):
        LengthCounts.of([10], [11])


@pytest.mark.parametrize("factor", [0, -1, float("inf")])
def test_an_impossible_growth_is_refused(factor):
    with pytest.raises(CostError, match="factor"):
        LengthCounts.of([10]).scaled(factor)


@pytest.mark.parametrize("mean", [650, 900, 1200, 2000])
def test_a_summary_gives_lengths_that_have_it(mean):
    counts = of_summary(count=100_000, mean_tokens=mean, p50_tokens=800, p95_tokens=4000, max_tokens=16_000)
    assert counts.count == pytest.approx(100_000)
    assert counts.tokens / counts.count == pytest.approx(mean, rel=0.01)
    assert counts.longest_tokens == 16_000
    by_length = list(zip(counts.lengths_tokens, counts.items, strict=True))
    below, up_to = (sum(c for n, c in by_length if n < 800 + i) / counts.count for i in (0, 1))
    assert below <= 0.5 + 1e-9
    assert up_to >= 0.5 - 1e-9


def test_a_summary_of_equal_items_is_equal_items():
    counts = of_summary(count=10, mean_tokens=512, p50_tokens=512, p95_tokens=512, max_tokens=512)
    assert (counts.lengths_tokens, counts.count) == ((512,), 10)


@pytest.mark.parametrize(("p50", "mean"), [(800, 300), (800, 5000), (5000, 800)])
def test_a_summary_that_contradicts_itself_is_refused(p50, mean):
    with pytest.raises(CostError):
        of_summary(count=100, mean_tokens=mean, p50_tokens=p50, p95_tokens=4000, max_tokens=16_000)
