from dataclasses import replace

import pytest

from cost.errors import CostError
from cost.evidence import Evidence
from cost.lengths import LengthCounts
from cost.plan import Pause, RunPlan, Stage, work_of
from cost.stretches import Stretch, merged, timings_of, tokens_share, without_standstill, work_until
from cost.throughput import TimeModel, Timing, Work

PLAN = RunPlan(
    stages=(
        Stage(name="short", items=LengthCounts.of([100] * 40), epochs=1),
        Stage(name="long", items=LengthCounts.of([1000] * 40), epochs=2),
    ),
    accumulation=4,
)
"""10 optimizer steps of short items, then 20 of long ones."""


def stretch(first, last, seconds=10.0, tokens=None):
    return Stretch(first_step=first, last_step=last, seconds=seconds, tokens=tokens)


def test_a_stretch_has_the_work_of_its_own_stage():
    short, both, long = timings_of(PLAN, [stretch(0, 10), stretch(8, 12), stretch(20, 30)])
    assert short.work.tokens == pytest.approx(40 * 100)
    assert both.work.tokens == pytest.approx(8 * 100 + 8 * 1000)
    assert long.work.tokens == pytest.approx(40 * 1000)
    assert long.work.optimizer_steps == 10


def test_all_of_a_run_is_the_whole_plans_work():
    whole = work_of(PLAN)[0].work.plus(work_of(PLAN)[1].work)
    assert work_until(PLAN, 30) == whole


def test_the_first_steps_meet_more_new_lengths_than_later_ones():
    plan = RunPlan(stages=(Stage(name="all", items=LengthCounts.of(list(range(100, 200)) * 10), epochs=1),))
    first, last = timings_of(plan, [stretch(0, 100), stretch(900, 1000)])
    assert first.work.new_lengths > 10 * last.work.new_lengths


def test_pauses_and_warm_up_that_the_plan_names_are_no_training():
    plan = replace(PLAN, warm_up_seconds=3, pauses=(Pause(name="checkpoint", seconds=2, every_optimizer_steps=5),))
    first, second = timings_of(plan, [stretch(0, 5), stretch(5, 10)])
    assert first.seconds == pytest.approx(10 - 3 - 2)
    assert second.seconds == pytest.approx(10 - 2)


def test_a_stretch_that_its_pauses_fill_is_refused():
    plan = replace(PLAN, warm_up_seconds=30)
    with pytest.raises(CostError, match="pauses and warm-up fill"):
        timings_of(plan, [stretch(0, 5)])


def test_a_log_beyond_the_runs_end_is_refused():
    with pytest.raises(CostError, match="at optimizer step 31, and the run of the projection has 30"):
        timings_of(PLAN, [stretch(20, 31)])


def test_counted_tokens_tell_how_much_work_a_stretch_held():
    light, heavy = timings_of(PLAN, [stretch(10, 20, tokens=20_000), stretch(20, 30, tokens=60_000)])
    assert light.work.tokens == pytest.approx(20_000)
    assert heavy.work.tokens == pytest.approx(60_000)
    assert heavy.work.squared_tokens == pytest.approx(9 * light.work.squared_tokens)


@pytest.mark.parametrize("padded", [True, False])
def test_counted_tokens_are_taken_with_or_without_padding_whichever_is_nearer(padded):
    plan = RunPlan(stages=(Stage(name="all", items=LengthCounts.of([100, 1000] * 20), epochs=1),), micro_batch=2)
    tokens = work_of(plan)[0].padded_tokens if padded else work_of(plan)[0].tokens
    share = tokens_share(plan, [stretch(0, 20, tokens=tokens)])
    assert share.padded is padded
    assert share.seen_over_planned == pytest.approx(1)


def test_a_log_that_counts_no_tokens_tells_no_share():
    assert tokens_share(PLAN, [stretch(0, 10)]) is None


def test_a_long_log_is_merged_but_not_across_a_gap():
    parts = [stretch(i, i + 1, 1.0, 5.0) for i in range(40)] + [stretch(i, i + 1, 1.0, 5.0) for i in range(50, 60)]
    found = merged(parts, 10)
    assert len(found) <= 11
    assert sum(part.seconds for part in found) == 50
    assert sum(part.tokens for part in found) == 250
    assert all(not part.first_step < 45 < part.last_step for part in found)


def test_a_stretch_in_which_the_run_stood_still_is_told_apart():
    model = TimeModel(linear_seconds_per_token=0.01, evidence=Evidence.FORECAST)
    timings = [Timing(work=Work.of([100] * 10), seconds=s) for s in (12, 11, 60, 12)]
    steady, still = without_standstill(model, timings)
    assert [t.seconds for t in steady] == [12, 11, 12]
    assert still == (2,)


def test_a_slower_stage_is_no_standstill():
    model = TimeModel(linear_seconds_per_token=0.01, evidence=Evidence.FORECAST)
    timings = [Timing(work=Work.of([n] * 10), seconds=n * 0.1) for n in (100, 100, 1000)]
    assert without_standstill(model, timings) == (tuple(timings), ())
