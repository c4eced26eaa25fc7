import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.errors import CostError
from cost.evidence import Range
from cost.money import Allocation, Billing, BillingStep, Spot, Storage, Terms, poisson_quantile


@pytest.mark.parametrize(
    ("step", "seconds", "billed"),
    [
        (BillingStep.SECOND, 61.2, 62),
        (BillingStep.MINUTE, 61.2, 120),
        (BillingStep.MINUTE, 120, 120),
        (BillingStep.HOUR, 61.2, 3600),
        (BillingStep.HOUR, 3601, 7200),
    ],
)
def test_time_is_billed_in_started_steps(step, seconds, billed):
    assert Billing(step=step).billed_seconds(seconds) == billed


def test_a_minimum_is_billed_however_short_the_hold():
    assert Billing(minimum_seconds=600).billed_seconds(10) == 600


@given(st.floats(0.001, 1e6), st.sampled_from(BillingStep))
def test_billed_time_is_never_less_and_less_than_a_step_more(seconds, step):
    billed = Billing(step=step).billed_seconds(seconds)
    assert seconds - 1e-4 <= billed < seconds + step.seconds + 1e-4


def test_without_a_price_there_is_no_money():
    assert Terms(price_per_hour=None).cost(Range.exactly(3600)) is None


def test_stopped_disks_are_paid_by_the_month():
    terms = Terms(price_per_hour=2.0, storage=Storage(size_gb=500, price_per_gb_month=0.08, stopped_hours=73))
    assert terms.cost(Range.exactly(3600)).expected == pytest.approx(2.0 + 500 * 0.08 / 10)


def test_an_allocation_is_priced_by_gpu_and_hour_and_knows_its_time_limit():
    allocation = Allocation(gpu_count=4, price_per_gpu_hour=0.5, currency="EUR", time_margin_share=0.25)
    seconds = Range(expected=3600, low=3000, high=7200)
    assert allocation.terms.cost(seconds).expected == pytest.approx(2.0)
    assert allocation.terms.currency == "EUR"
    assert allocation.time_limit(seconds) == "02:30:00"


def test_an_allocation_without_a_price_gives_hours_only():
    assert Allocation(gpu_count=8).terms.cost(Range.exactly(3600)) is None


def test_without_interruptions_spot_takes_no_longer():
    seconds = Range(expected=10, low=9, high=11)
    assert Spot(interruptions_per_hour=0).billed(seconds) == seconds


def interrupted_run(rng: random.Random, spot: Spot, work_seconds: float) -> float:
    """Seconds on machines of one run, interruption by interruption."""
    done = spent = overhead = 0.0
    while done < work_seconds:
        piece = min(spot.checkpoint_every_seconds or work_seconds, work_seconds - done)
        until = rng.expovariate(spot.interruptions_per_hour / 3600)
        if until >= overhead + piece:
            spent += overhead + piece
            done += piece
            overhead = 0.0
        else:
            spent += until
            overhead = spot.restart_seconds
    return spent


def test_expected_time_with_interruptions_is_that_of_many_simulated_runs():
    spot = Spot(interruptions_per_hour=0.5, checkpoint_every_seconds=1800, restart_seconds=300)
    rng = random.Random(11)
    runs = [interrupted_run(rng, spot, 36_000) for _ in range(4000)]
    billed = spot.billed(Range.exactly(36_000))
    assert billed.expected == pytest.approx(sum(runs) / len(runs), rel=0.01)


def test_the_range_with_interruptions_holds_nine_runs_in_ten():
    spot = Spot(interruptions_per_hour=0.5, checkpoint_every_seconds=1800, restart_seconds=300)
    rng = random.Random(12)
    billed = spot.billed(Range.exactly(36_000))
    runs = [interrupted_run(rng, spot, 36_000) for _ in range(2000)]
    assert sum(billed.low <= r <= billed.high for r in runs) / len(runs) >= 0.9


def test_without_checkpoints_everything_may_be_lost():
    kept = Spot(interruptions_per_hour=0.2, checkpoint_every_seconds=600).billed(Range.exactly(7200))
    lost = Spot(interruptions_per_hour=0.2).billed(Range.exactly(7200))
    assert lost.expected == pytest.approx(18_000 * math.expm1(0.4))
    assert lost.expected > kept.expected > 7200


def test_a_run_that_would_hardly_ever_finish_is_refused():
    with pytest.raises(CostError, match="checkpoint_every_seconds"):
        Spot(interruptions_per_hour=2).billed(Range.exactly(100 * 3600))


def test_waiting_for_a_machine_is_time_but_not_money():
    spot = Spot(interruptions_per_hour=1, checkpoint_every_seconds=60, wait_seconds=600)
    assert spot.waited(Range.exactly(7200)).expected == pytest.approx(1200)


@pytest.mark.parametrize("options", [{"interruptions_per_hour": -1}, {"checkpoint_every_seconds": 0}])
def test_impossible_interruptions_are_refused(options):
    with pytest.raises(CostError):
        Spot(**{"interruptions_per_hour": 1, **options})


@pytest.mark.parametrize(("mean", "low", "high"), [(0.01, 0, 0), (1, 0, 3), (10, 5, 15), (1000, 948, 1053)])
def test_poisson_counts_are_the_printed_ones(mean, low, high):
    assert poisson_quantile(0.05, mean) == pytest.approx(low, abs=1)
    assert poisson_quantile(0.95, mean) == pytest.approx(high, abs=1)
