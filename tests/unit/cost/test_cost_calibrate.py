import random
from dataclasses import replace

import pytest

from cost.calibrate import calibrate
from cost.errors import CostError
from cost.evidence import Evidence
from cost.lengths import LengthCounts
from cost.money import Terms
from cost.plan import RunPlan, Stage
from cost.throughput import TimeModel, Timing, Work

FIRST = TimeModel(floor_seconds=0.1, linear_seconds_per_token=1e-4, evidence=Evidence.FORECAST, scale_share=0.435)
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
        result = calibrate(PLAN, FIRST, stretches[:10])
        left = sum(t.seconds for t in stretches[10:])
        held += result.remaining_seconds.low <= left <= result.remaining_seconds.high
        assert result.remaining_seconds.high / result.remaining_seconds.low < 1.5
    assert 0.82 <= held / 300 <= 0.97


@pytest.mark.parametrize("count", [0, 2])
def test_too_short_a_log_is_refused(count):
    with pytest.raises(CostError, match="three logged stretches"):
        calibrate(PLAN, FIRST, logged(count, slower=1))


def test_a_stretch_of_no_time_is_refused():
    with pytest.raises(CostError, match="some time"):
        calibrate(PLAN, FIRST, [*logged(3, slower=1), Timing(work=Work.of([10]), seconds=0)])
