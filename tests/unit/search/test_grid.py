from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from probe_facts import record_of

from raysweep.records import Mode, ProbeState
from raysweep.search.cell import SAMPLE_MICRO_STEPS, cell_of, generation_cells, training_cells
from raysweep.search.grid import Grid
from raysweep.search.policy import Done
from raysweep.search.runner import ProbeRequest, load_key
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting, Weights

BF16_GPU, BF16_CPU = (StepSetting(checkpointing=c) for c in (Checkpointing.GPU, Checkpointing.CPU))
NF4 = StepSetting(weights=Weights.NF4)
STEPS = st.lists(
    st.builds(
        StepSetting,
        weights=st.sampled_from(Weights),
        loss=st.sampled_from(Loss),
        adapter=st.builds(AdapterSetting, rank=st.integers(1, 3)),
    ),
    min_size=1,
    max_size=6,
    unique=True,
)


def drain(policy: Grid, flavour: str, told: ProbeState = ProbeState.COMPLETED) -> list[ProbeRequest]:
    asked = []
    key = None
    while isinstance(request := policy.ask(flavour, key), ProbeRequest):
        asked.append(request)
        key = load_key(request.step)
        policy.tell(record_of(request, told))
    return asked


@given(steps=STEPS, lengths=st.sets(st.integers(1, 10**6), min_size=1, max_size=4), told=st.sampled_from(ProbeState))
def test_every_step_and_length_is_asked_for_once_per_flavour(steps, lengths, told):
    policy = Grid(training_cells(["a", "b"], steps, lengths))
    for flavour in ("a", "b"):
        asked = drain(policy, flavour, told)
        assert sorted((steps.index(r.step), r.length_tokens) for r in asked) == sorted(
            (i, length) for i in range(len(steps)) for length in lengths
        )
        assert policy.remaining(flavour) == 0


@given(steps=STEPS, lengths=st.sets(st.integers(1, 10**6), min_size=1, max_size=4))
def test_one_session_loads_each_model_once(steps, lengths):
    asked = drain(Grid(training_cells(["a"], steps, lengths)), "a")
    keys = [load_key(request.step) for request in asked]
    loads = 1 + sum(a != b for a, b in itertools.pairwise(keys))
    assert loads == len(set(keys))


def test_a_session_goes_on_with_the_model_that_it_has_loaded():
    policy = Grid(training_cells(["a"], [BF16_GPU, NF4], [1024]))
    request = policy.ask("a", load_key(NF4))
    assert isinstance(request, ProbeRequest)
    assert request.step == NF4


def test_a_second_session_takes_another_model():
    policy = Grid(training_cells(["a"], [BF16_GPU, BF16_CPU, NF4], [1024, 2048]))
    first, second = policy.ask("a", None), policy.ask("a", None)
    assert isinstance(first, ProbeRequest)
    assert isinstance(second, ProbeRequest)
    assert load_key(first.step) != load_key(second.step)


def test_a_probe_in_flight_is_not_asked_for_again():
    policy = Grid(training_cells(["a"], [BF16_GPU], [1024]))
    assert isinstance(policy.ask("a", None), ProbeRequest)
    assert isinstance(policy.ask("a", None), Done)
    assert policy.remaining("a") == 1


def test_records_told_first_are_not_bought_again():
    cells = training_cells(["a"], [BF16_GPU, NF4], [1024, 2048])
    before = drain(Grid(cells), "a")
    policy = Grid(cells)
    for request in before[:3]:
        policy.tell(record_of(request, ProbeState.PRUNED))
    assert [r.probe_id for r in drain(policy, "a")] == [before[3].probe_id]


def test_a_record_of_another_space_changes_nothing():
    other = training_cells(["a"], [NF4], [64])[0].request()
    policy = Grid(training_cells(["a"], [BF16_GPU], [64]))
    policy.tell(record_of(other, ProbeState.COMPLETED))
    assert policy.remaining("a") == 1


def test_an_unknown_flavour_is_done():
    assert isinstance(Grid(training_cells(["a"], [NF4], [64])).ask("b", None), Done)


def test_the_datas_own_items_are_one_probe_a_step():
    policy = Grid(training_cells(["a"], [BF16_GPU], [64], item_tokens=(10, 30, 20)))
    asked = drain(policy, "a")
    assert [(r.length_tokens, r.item_tokens) for r in asked] == [(64, ()), (None, (10, 30, 20))]


def test_a_sample_grows_with_the_items_of_a_micro_step():
    steps = [replace(BF16_GPU, micro_batch=2), BF16_GPU]
    asked = drain(Grid(training_cells(["a"], steps, [64], item_tokens=tuple(range(2, 1002)))), "a")
    assert [len(r.item_tokens) for r in asked if r.item_tokens] == [2 * SAMPLE_MICRO_STEPS, SAMPLE_MICRO_STEPS]


def test_a_generation_is_one_probe_a_step():
    (request,) = drain(Grid(generation_cells(["a"], [BF16_GPU], prompt_tokens=5, new_tokens=7)), "a")
    assert (request.mode, request.prompt_tokens, request.new_tokens) == (Mode.GENERATE, 5, 7)


@given(steps=STEPS, items=st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple))
def test_a_record_answers_the_cell_that_asked_for_it(steps, items):
    cells = training_cells(["a"], steps, [64], items) + generation_cells(["a"], steps, prompt_tokens=1, new_tokens=1)
    assert len({cell.probe_id for cell in cells}) == len(cells)
    assert all(cell_of(record_of(cell.request(), ProbeState.PRUNED)) == cell for cell in cells)


def test_a_policy_travels():
    policy = Grid(training_cells(["a"], [BF16_GPU], [1, 2]))
    policy.ask("a", None)
    assert pickle.loads(pickle.dumps(policy)).remaining("a") == 2  # noqa: S301 - our own bytes
