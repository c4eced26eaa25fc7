import math
import random
from dataclasses import replace

import pytest

from cost.calibrate import calibrate
from cost.errors import CostError
from cost.evidence import Evidence
from cost.lengths import LengthCounts
from cost.money import Spot, Terms
from cost.plan import Pause, RunPlan, Stage
from cost.throughput import HOLD_SHARE, TimeModel, Timing, Work

FIRST = TimeModel(floor_seconds=0.1, linear_seconds_per_token=1e-4, evidence=Evidence.FORECAST, scale_share=0.435)
DEVICE_BOUND = TimeModel(linear_seconds_per_token=2e-4, evidence=Evidence.FORECAST, scale_share=0.435)
"""As fast at 1,000 tokens, and none of it the host's."""
PLAN = RunPlan(stages=(Stage(name="all", items=LengthCounts.of([1000] * 1000), epochs=1),))


def logged(count: int, *, slower: float, noise: float = 0.0, seed: int = 1) -> list[Timing]:
    rng = random.Random(seed)
    work = Work.of([1000] * 10)
    seconds = FIRST.expected_seconds(work) * slower
    return [Timing(work=work, seconds=seconds * (1 + noise * rng.gauss(0, 1))) for _ in range(count)]


def test_a_run_that_is_slower_says_by_how_much_and_moves_the_projection():
    result = calibrate(PLAN, FIRST, logged(20, slower=1.3), Terms(price_per_hour=3.6))
    assert result.ratio == pytest.approx(1.3)
    assert result.done_share == pytest.approx(0.2)
    assert result.remaining_seconds.expected == pytest.approx(800 * 0.2 * 1.3)
    assert result.projection.training_seconds.expected == pytest.approx(1000 * 0.2 * 1.3)
    assert result.projection.cost.expected == pytest.approx(0.26, abs=0.001)
    assert result.projection.evidence is Evidence.MEASURED


def test_it_says_whether_the_first_range_held():
    assert calibrate(PLAN, FIRST, logged(5, slower=1.3)).within_range
    assert not calibrate(PLAN, replace(FIRST, scale_share=0.03), logged(5, slower=1.3)).within_range


def test_a_corrected_range_is_much_narrower_than_a_forecast_and_holds_nine_runs_in_ten():
    held = 0
    for seed in range(300):
        stretches = logged(100, slower=1.3, noise=0.1, seed=seed)
        result = calibrate(PLAN, DEVICE_BOUND, stretches[:10])
        left = sum(t.seconds for t in stretches[10:])
        held += result.remaining_seconds.low <= left <= result.remaining_seconds.high
        assert result.remaining_seconds.high / result.remaining_seconds.low < 1.5
    assert 0.82 <= held / 300 <= 0.97


def test_the_rest_of_a_run_has_noise_of_its_own_however_long_the_log():
    held = 0
    for seed in range(300):
        stretches = logged(100, slower=1.3, noise=0.1, seed=seed)
        remaining = calibrate(PLAN, DEVICE_BOUND, stretches[:90]).remaining_seconds
        held += remaining.low <= sum(t.seconds for t in stretches[90:]) <= remaining.high
    assert 0.84 <= held / 300 <= 0.96


def test_two_stretches_are_less_sure_than_ten_that_differ_as_much():
    def width(count):
        alternating = [
            replace(t, seconds=t.seconds * (1 + 0.2 * (-1) ** i)) for i, t in enumerate(logged(count, slower=1))
        ]
        remaining = calibrate(PLAN, DEVICE_BOUND, alternating).remaining_seconds
        return (remaining.high - remaining.low) / remaining.expected

    assert width(2) > 3 * width(10)


def test_the_longer_a_log_the_surer_it_is_of_the_hosts_part():
    def host_share(seconds):
        steps = [Timing(work=Work.of([1000]), seconds=seconds / 100)] * 100
        return calibrate(PLAN, FIRST, steps).model.host_share

    assert host_share(30) == pytest.approx(host_share(60))
    assert host_share(60) == pytest.approx(10 * host_share(6000))


@pytest.mark.parametrize("count", [3, 50, 99])
def test_stretches_that_are_all_alike_leave_what_may_still_drift(count):
    remaining = calibrate(PLAN, DEVICE_BOUND, logged(count, slower=1.3)).remaining_seconds
    doubt = 1.645 * HOLD_SHARE * math.sqrt(1 - count / 100)
    assert remaining.high / remaining.expected - 1 == pytest.approx(doubt, rel=0.001)
    assert 1 - remaining.low / remaining.expected == pytest.approx(doubt, rel=0.001)


def test_micro_steps_that_a_shape_fits_exactly_leave_what_may_still_drift():
    steps = [Timing(work=Work.of([n]), seconds=2e-4 * n) for n in (500, 1000, 2000, 4000)] * 5
    result = calibrate(PLAN, DEVICE_BOUND, steps)
    assert result.refitted
    assert result.remaining_seconds.high / result.remaining_seconds.expected > 1.04


def test_stretches_that_differ_by_more_than_a_drift_are_not_doubted_further():
    assert calibrate(PLAN, DEVICE_BOUND, logged(10, slower=1.3, noise=0.3)).model.scale_share == 0


def test_a_single_total_is_as_sure_as_one_hold_of_a_machine():
    result = calibrate(PLAN, FIRST, logged(1, slower=1.3))
    assert result.ratio == pytest.approx(1.3)
    assert result.model.scale_share == HOLD_SHARE


def test_micro_steps_of_different_lengths_fit_the_shape_anew():
    steps = [Timing(work=Work.of([n]), seconds=0.3 + 2e-4 * n) for n in (500, 1000, 2000, 4000)] * 5
    result = calibrate(PLAN, FIRST, steps)
    assert result.refitted
    assert result.model.floor_seconds == pytest.approx(0.3, rel=0.01)
    assert result.model.linear_seconds_per_token == pytest.approx(2e-4, rel=0.01)


def test_a_very_long_log_of_micro_steps_fits_the_same_shape():
    rng = random.Random(1)
    lengths = [rng.randint(500, 8000) for _ in range(5000)]
    steps = [Timing(work=Work.of([n]), seconds=(0.3 + 2e-4 * n) * rng.gauss(1, 0.05)) for n in lengths]
    model = calibrate(PLAN, FIRST, steps).model
    assert model.micro_step_seconds(1000) == pytest.approx(0.5, rel=0.01)
    assert model.micro_step_seconds(8000) == pytest.approx(1.9, rel=0.01)
    assert model.noise_share == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("lengths", [(1000, 2000, 4000), (1000, 1010, 1020, 1030)], ids=["too few", "too alike"])
def test_micro_steps_of_few_or_like_lengths_correct_the_level_alone(lengths):
    steps = [Timing(work=Work.of([n]), seconds=1.3 * FIRST.micro_step_seconds(n)) for n in lengths]
    result = calibrate(PLAN, FIRST, steps)
    assert not result.refitted
    assert result.model.floor_seconds == pytest.approx(1.3 * FIRST.floor_seconds)


def test_what_is_done_may_be_more_than_what_was_timed():
    result = calibrate(PLAN, FIRST, logged(20, slower=1.3), done=Work.of([1000] * 500))
    assert result.done_share == pytest.approx(0.5)
    assert result.remaining_seconds.expected == pytest.approx(500 * 0.2 * 1.3)


def test_what_remains_has_its_share_of_the_pauses_and_is_paid_by_the_hour():
    plan = replace(PLAN, pauses=(Pause(name="evaluation", seconds=100, at_stage_end=True),))
    result = calibrate(plan, FIRST, logged(20, slower=1), Terms(price_per_hour=3.6))
    assert result.remaining_seconds.expected == pytest.approx(800 * 0.2 + 80)
    assert result.remaining_cost.expected == pytest.approx(0.24)


def test_interruptions_lengthen_what_remains():
    spot = Spot(interruptions_per_hour=30, checkpoint_every_seconds=20, restart_seconds=10)
    plain, broken = (
        calibrate(PLAN, FIRST, logged(20, slower=1), Terms(price_per_hour=1, spot=s)).remaining_seconds
        for s in (None, spot)
    )
    assert broken.expected > 1.05 * plain.expected


def test_nothing_remains_of_a_run_that_is_done():
    spot = Spot(interruptions_per_hour=1)
    result = calibrate(PLAN, FIRST, logged(100, slower=1.3), Terms(price_per_hour=1, spot=spot))
    assert result.done_share == 1
    assert result.remaining_seconds.high == 0


def test_no_stretch_is_refused():
    with pytest.raises(CostError, match="one timed stretch"):
        calibrate(PLAN, FIRST, [])


def test_a_stretch_of_no_time_is_refused():
    with pytest.raises(CostError, match="some time"):
        calibrate(PLAN, FIRST, [*logged(3, slower=1), Timing(work=Work.of([10]), seconds=0)])
