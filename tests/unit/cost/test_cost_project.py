import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.batches import Packing, PackingMethod
from cost.errors import CostError
from cost.evidence import Evidence
from cost.lengths import LengthCounts, OverLength
from cost.money import Billing, BillingStep, Spot, Terms
from cost.plan import Pause, RunPlan, Stage, StartUp, work_of
from cost.project import longest_step_tokens, padding_options, project
from cost.throughput import TimeModel

MODEL = TimeModel(
    floor_seconds=0.2,
    linear_seconds_per_token=1e-4,
    new_length_seconds=0.3,
    optimizer_step_seconds=0.05,
    evidence=Evidence.MEASURED,
    longest_timed_tokens=4096,
)


def one_stage(*lengths: int, epochs: float = 1.0, **options: object) -> RunPlan:
    return RunPlan(stages=(Stage(name="all", items=LengthCounts.of(lengths), epochs=epochs),), **options)


STAGE_1 = Stage(
    name="stage1", items=LengthCounts.of_totals(items=5000, tokens=1_000_000, loss_share=0.94), loss_share=0.40
)
STAGE_2 = Stage(name="stage2", items=LengthCounts.of_totals(items=36, tokens=940_000, loss_share=0.25), epochs=3)


@pytest.mark.parametrize(
    ("tokens_per_second", "usd_per_hour", "hours", "usd"), [(296, 2.50, 3.1, 7.74), (655, 5.00, 1.4, 7.00)]
)
def test_golden_arithmetic_of_tokens_a_second(tokens_per_second, usd_per_hour, hours, usd):
    plan = RunPlan(stages=(Stage(name="all", items=LengthCounts.of_totals(items=1000, tokens=3_300_000), epochs=1),))
    rate = TimeModel.of_rate(tokens_per_second, evidence=Evidence.MEASURED)
    projection = project(plan, rate, Terms(price_per_hour=usd_per_hour))
    assert round(projection.hours.expected, 1) == hours
    assert round(projection.cost.expected, 2) == usd


@pytest.mark.parametrize(("growth", "stage_1_tokens", "stage_2_tokens"), [(1, 0.50e6, 2.82e6), (3, 1.50e6, 8.46e6)])
def test_golden_stages_of_given_epochs_and_a_share_of_the_loss(growth, stage_1_tokens, stage_2_tokens):
    first, second = work_of(RunPlan(stages=(STAGE_1, STAGE_2)).scaled({"stage2": growth}))
    assert first.tokens == pytest.approx(stage_1_tokens, rel=1e-9)
    assert second.tokens == pytest.approx(stage_2_tokens, rel=1e-9)
    assert (first.loss_share, second.loss_share) == (pytest.approx(0.40), pytest.approx(0.60))


@given(share=st.floats(0.01, 0.98), epochs=st.floats(0.1, 20), growth=st.floats(0.1, 10))
def test_a_stage_carries_exactly_the_share_of_the_loss_it_was_given(share, epochs, growth):
    plan = RunPlan(stages=(replace(STAGE_1, loss_share=share), replace(STAGE_2, epochs=epochs)))
    first, second = work_of(plan.scaled({"stage2": growth}))
    assert first.loss_share == pytest.approx(share)
    assert first.loss_share + second.loss_share == pytest.approx(1)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "at least one stage"),
        ((replace(STAGE_1, epochs=1.0),), "either epochs or loss_share"),
        ((replace(STAGE_1, loss_share=None),), "either epochs or loss_share"),
        ((STAGE_1,), "leave nothing"),
        ((replace(STAGE_1, loss_share=1.0), STAGE_2), "between 0 and 1"),
        ((STAGE_1, replace(STAGE_2, epochs=0.0)), "positive"),
        ((STAGE_1, replace(STAGE_2, items=LengthCounts.of([9]))), "'stage2' has no count of loss-bearing tokens"),
        ((STAGE_1, replace(STAGE_2, items=LengthCounts.of([9], [0]))), "'stage2' has no loss-bearing token, .* are 0"),
        ((STAGE_2, STAGE_2), "names of their own"),
    ],
)
def test_stages_that_contradict_themselves_are_refused(stages, message):
    with pytest.raises(CostError, match=message):
        work_of(RunPlan(stages=stages))


def test_growth_of_an_unknown_stage_names_the_nearest():
    with pytest.raises(CostError, match=r"'stage3'.*Did you mean 'stage"):
        RunPlan(stages=(STAGE_1, STAGE_2)).scaled({"stage3": 2})


def test_every_part_of_the_time_is_there_once():
    plan = one_stage(
        *range(101, 201),
        epochs=2,
        accumulation=8,
        warm_up_seconds=40,
        pauses=(
            Pause(name="evaluation", seconds=20, every_optimizer_steps=10),
            Pause(name="checkpoint", seconds=5, every_optimizer_steps=20, at_stage_end=True),
        ),
        start_up=StartUp(
            image_seconds=90, model_bytes=15_000_000_000, download_bytes_per_second=200_000_000, load_seconds=30
        ),
    )
    projection = project(plan, MODEL)
    optimizer_steps = 2 * 13  # 100 items in eights, the last four of each epoch by themselves
    training = 200 * 0.2 + 2 * sum(range(101, 201)) * 1e-4 + 100 * 0.3 + optimizer_steps * 0.05
    assert projection.training_seconds.expected == pytest.approx(training)
    assert projection.new_length_seconds == pytest.approx(30)
    assert dict(projection.pause_seconds) == {"evaluation": 40, "checkpoint": 10}
    assert projection.start_seconds == pytest.approx(90 + 75 + 30 + 40)
    assert projection.machine_seconds.expected == pytest.approx(training + 50 + 235)


def test_each_process_pays_the_one_off_steps_once():
    plan = RunPlan(stages=(STAGE_1, STAGE_2), process_per_stage=True)
    before, after = (project(plan, replace(MODEL, one_off_seconds=x)) for x in (0.0, 7.0))
    assert after.start_seconds - before.start_seconds == pytest.approx(14)
    assert after.hours.expected > before.hours.expected


def test_a_last_checkpoint_that_is_due_anyway_is_not_written_twice():
    pause = Pause(name="checkpoint", seconds=1, every_optimizer_steps=5, at_stage_end=True)
    assert dict(project(one_stage(*[9] * 10, pauses=(pause,)), MODEL).pause_seconds) == {"checkpoint": 2}


def test_a_second_stage_pays_only_for_lengths_the_first_has_not_shown():
    stages = tuple(
        Stage(name=name, items=LengthCounts.of(items), epochs=1)
        for name, items in (("a", range(100, 200)), ("b", range(150, 250)))
    )
    assert project(RunPlan(stages=stages), MODEL).work.new_lengths == pytest.approx(150)
    assert project(RunPlan(stages=stages, process_per_stage=True), MODEL).work.new_lengths == pytest.approx(200)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 5))
def test_without_one_off_costs_time_is_linear_in_epochs(lengths, epochs):
    steady = replace(MODEL, new_length_seconds=0.0)
    once = project(one_stage(*lengths), steady).training_seconds.expected
    assert project(one_stage(*lengths, epochs=epochs), steady).training_seconds.expected == pytest.approx(epochs * once)


def test_padding_to_a_multiple_saves_one_off_costs_and_says_what_it_needs_in_memory():
    plan = one_stage(*range(100, 1100))
    best, *_ = padding_options(plan, MODEL, Terms(price_per_hour=5.0), (64, 128))
    assert best.hours_saved > 0.05
    assert best.cost_saved == pytest.approx(best.hours_saved * 5.0, abs=0.01)
    assert best.new_lengths < 20
    assert best.longest_tokens >= 1099


def test_padding_that_costs_time_says_so():
    free = replace(MODEL, new_length_seconds=0.0)
    (option,) = padding_options(one_stage(*range(100, 300)), free, None, (512,))
    assert option.hours_saved < 0
    assert option.cost_saved is None


def test_sorting_by_length_saves_padding():
    rng = random.Random(1)
    plan = one_stage(*(rng.randrange(50, 4000) for _ in range(500)), micro_batch=8)
    shuffled, ordered = project(plan, MODEL), project(replace(plan, sorted_by_length=True), MODEL)
    assert ordered.padding_share < 0.05
    assert shuffled.padding_share > 0.3
    assert ordered.hours.expected < shuffled.hours.expected


def test_packing_leaves_one_length_and_hardly_any_padding():
    projection = project(one_stage(*range(100, 1100), packing=Packing(sequence_tokens=4096)), MODEL)
    assert projection.work.new_lengths == pytest.approx(1)
    assert projection.padding_share < 0.01


@pytest.mark.parametrize("method", PackingMethod)
def test_packed_items_are_not_padded_one_by_one(method):
    packing = Packing(sequence_tokens=1000, method=method)
    plan = one_stage(*[500] * 8, packing=packing)
    assert work_of(replace(plan, pad_to_multiple_tokens=6400)) == work_of(plan)


def test_a_length_limit_shortens_the_run_and_says_what_it_loses():
    projection = project(one_stage(500, 1500, limit_tokens=1000, over_length=OverLength.TRUNCATE), MODEL)
    assert projection.tokens == 1500
    assert projection.stages[0].lost.tokens == 500


def test_steps_longer_than_any_probe_are_marked():
    assert project(one_stage(5000), MODEL).beyond_tokens == 4096
    assert project(one_stage(5000, limit_tokens=4096), MODEL).beyond_tokens is None


def test_the_longest_step_counts_padding_and_packing():
    assert longest_step_tokens(one_stage(1000, 10, pad_to_multiple_tokens=64)) == 1024
    assert longest_step_tokens(one_stage(1000, 10, packing=Packing(sequence_tokens=2048))) == 2048


def test_hours_billed_are_started_ones():
    terms = Terms(price_per_hour=6.0, billing=Billing(step=BillingStep.HOUR), currency="EUR")
    projection = project(one_stage(1000), MODEL, terms)
    assert projection.cost.expected == 6.0
    assert projection.currency == "EUR"


def test_interruptions_make_a_run_longer_and_dearer():
    plan = one_stage(*[1000] * 30_000)
    spot = Spot(interruptions_per_hour=0.3, checkpoint_every_seconds=1200, restart_seconds=200, wait_seconds=900)
    calm, shaky = (project(plan, MODEL, Terms(price_per_hour=1.0, spot=s)) for s in (None, spot))
    assert shaky.cost.expected > calm.cost.expected
    assert shaky.hours.expected > shaky.machine_seconds.expected / 3600 > calm.hours.expected


def test_what_interruptions_waste_is_told_apart_so_that_the_parts_add_up():
    plan = one_stage(*[1000] * 30_000, start_up=StartUp(image_seconds=100.0))
    spot = Spot(interruptions_per_hour=0.3, checkpoint_every_seconds=1200, restart_seconds=200, wait_seconds=900)
    shaky = project(plan, MODEL, Terms(price_per_hour=1.0, spot=spot))
    parts = (shaky.start_seconds, shaky.training_seconds.expected, shaky.redone_seconds, shaky.wait_seconds.expected)
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(shaky.hours.expected * 3600)
    assert project(plan, MODEL, Terms(price_per_hour=1.0)).redone_seconds == 0


def test_a_download_without_a_rate_is_refused():
    with pytest.raises(CostError, match="download_bytes_per_second"):
        project(one_stage(10, start_up=StartUp(model_bytes=1)), MODEL)


def test_a_million_items_from_counts_project_in_under_three_seconds():
    rng = random.Random(0)
    counts: dict[int, float] = {}
    for _ in range(1_000_000):
        length = min(32_768, 16 + int(rng.expovariate(1 / 2000)))
        counts[length] = counts.get(length, 0) + 1
    plan = RunPlan(stages=(Stage(name="all", items=LengthCounts.of_counts(counts), epochs=3),), micro_batch=4)
    start = time.process_time()
    project(plan, MODEL, Terms(price_per_hour=5.0))
    padding_options(plan, MODEL, Terms(price_per_hour=5.0))
    assert time.process_time() - start < 3
