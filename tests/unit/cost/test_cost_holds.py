import math
import random

import pytest

from cost.errors import CostError
from cost.evidence import Evidence
from cost.holds import fit_holds, learned_hold_share
from cost.throughput import HOLD_SHARE, TimeModel, Timing, Work

TRUTH = TimeModel(floor_seconds=0.1, linear_seconds_per_token=1e-4, evidence=Evidence.MEASURED)


def hold(level: float, *lengths: int) -> list[Timing]:
    works = [Work.of([n]) for n in lengths]
    return [Timing(work=w, seconds=level * TRUTH.expected_seconds(w)) for w in works]


def test_machines_of_two_levels_give_the_shape_of_both_and_a_wide_range():
    model = fit_holds([hold(0.9, 500, 1000, 4000), hold(1.1, 700, 2000, 3000)], evidence=Evidence.MEASURED)
    assert model.noise_share < 0.01
    assert model.scale_share > 2 * HOLD_SHARE
    ratio = model.micro_step_seconds(4000) / model.micro_step_seconds(1000)
    assert ratio == pytest.approx(TRUTH.micro_step_seconds(4000) / TRUTH.micro_step_seconds(1000), rel=0.02)


def test_machines_that_agree_narrow_the_range():
    agreeing = [hold(1.0, 500, 1000, 4000)] * 4
    assert fit_holds(agreeing, evidence=Evidence.MEASURED).scale_share < HOLD_SHARE


def test_a_single_hold_is_taken_as_usual():
    assert fit_holds([hold(1.3, 500, 1000), []], evidence=Evidence.MEASURED).scale_share == HOLD_SHARE
    assert learned_hold_share([1.3]) == HOLD_SHARE


def test_no_hold_at_all_is_refused():
    with pytest.raises(CostError, match="at least one timing"):
        fit_holds([[], []], evidence=Evidence.MEASURED)


@pytest.mark.parametrize(
    ("spread", "holds", "least"), [(0.03, 2, 0.88), (0.10, 2, 0.78), (0.10, 3, 0.85), (0.10, 5, 0.85)]
)
def test_the_next_machine_lies_in_the_range_however_much_machines_differ(spread, holds, least):
    rng = random.Random(4)
    held = 0
    for _ in range(2000):
        levels = [math.exp(rng.gauss(0, spread)) for _ in range(holds)]
        width = 1.645 * learned_hold_share(levels)
        mean = sum(math.log(x) for x in levels) / holds
        held += abs(rng.gauss(0, spread) - mean) <= width
    assert least <= held / 2000 <= 0.98
