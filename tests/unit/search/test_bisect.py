from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from probe_facts import record_of

from raysweep.records import ProbeState
from raysweep.search.bisect import Bisect, Limit, next_index
from raysweep.search.policy import Done, Wait
from raysweep.search.runner import ProbeRequest, load_key
from raysweep.setting import Checkpointing, StepSetting, Weights

STEP = StepSetting()
COUNTS = st.integers(1, 200)


def simulate(policy: Bisect, runs, flavour: str = "a") -> list[int]:
    """Run a policy against a rule over lengths; return the lengths probed, in order."""
    probed = []
    key = None
    while isinstance(request := policy.ask(flavour, key), ProbeRequest):
        probed.append(request.length_tokens)
        key = load_key(request.step)
        state = ProbeState.COMPLETED if runs(request.length_tokens) else ProbeState.PRUNED
        policy.tell(record_of(request, state))
    assert isinstance(request, Done)
    return probed


@given(count=COUNTS, data=st.data())
def test_the_edge_of_a_monotone_device_is_found_in_a_few_probes(count, data):
    edge = data.draw(st.integers(0, count))
    policy = Bisect(["a"], [STEP], range(1, count + 1))
    most = policy.remaining("a")
    probed = simulate(policy, lambda length: length <= edge)
    (found,) = policy.edges()
    assert found.length_tokens == (edge or None)
    assert found.limit is (Limit.GRID if edge == count else Limit.OOM)
    assert len(probed) <= most <= math.floor(math.log2(count)) + 2
    assert len(set(probed)) == len(probed)


@given(ran=st.lists(st.booleans(), min_size=1, max_size=60))
def test_on_any_device_the_edge_ran_and_so_did_the_length_below_it_and_the_next_did_not(ran):
    policy = Bisect(["a"], [STEP], range(1, len(ran) + 1))
    probed = simulate(policy, lambda length: ran[length - 1])
    (edge,) = policy.edges()
    assert len(set(probed)) == len(probed)
    longest = edge.length_tokens or 0
    if longest:
        assert ran[longest - 1]
        assert longest in probed
    if longest > 1:
        assert longest - 1 in edge.completed_tokens
    if longest < len(ran):
        assert longest + 1 in edge.oom_tokens
    assert all(length > longest for length in edge.oom_tokens)


@given(ran=st.lists(st.booleans(), min_size=1, max_size=60))
def test_what_was_not_checked_is_said(ran):
    policy = Bisect(["a"], [STEP], range(1, len(ran) + 1))
    simulate(policy, lambda length: ran[length - 1])
    (edge,) = policy.edges()
    below = set(range(1, edge.length_tokens or 0))
    assert set(edge.unchecked_tokens) == below - set(edge.completed_tokens)


@given(count=COUNTS, data=st.data())
def test_a_bisection_resumed_from_its_records_buys_no_probe_twice(count, data):
    edge = data.draw(st.integers(0, count))
    whole = simulate(Bisect(["a"], [STEP], range(1, count + 1)), lambda length: length <= edge)
    done = data.draw(st.integers(0, len(whole)))
    policy, resumed = (Bisect(["a"], [STEP], range(1, count + 1)) for _ in range(2))
    for _ in range(done):
        request = policy.ask("a", None)
        assert isinstance(request, ProbeRequest)
        record = record_of(request, ProbeState.COMPLETED if request.length_tokens <= edge else ProbeState.PRUNED)
        policy.tell(record)
        resumed.tell(record)
    assert simulate(resumed, lambda length: length <= edge) == whole[done:]


@given(results=st.dictionaries(st.integers(0, 29), st.booleans()))
def test_the_next_length_is_never_one_already_known(results):
    assert next_index(results, 30) not in results


def test_two_sessions_of_a_flavour_work_on_two_steps_and_a_third_waits():
    policy = Bisect(["a"], [STEP, StepSetting(checkpointing=Checkpointing.CPU)], [1, 2, 3])
    first, second = policy.ask("a", None), policy.ask("a", None)
    assert isinstance(first, ProbeRequest)
    assert isinstance(second, ProbeRequest)
    assert first.step != second.step
    assert isinstance(policy.ask("a", None), Wait)
    policy.tell(record_of(first, ProbeState.COMPLETED))
    assert isinstance(policy.ask("a", None), ProbeRequest)


def test_the_loaded_model_is_bisected_to_its_end_first():
    nf4 = StepSetting(weights=Weights.NF4)
    policy = Bisect(["a"], [STEP, nf4], range(1, 17))
    key = load_key(nf4)
    order = []
    while isinstance(request := policy.ask("a", key), ProbeRequest):
        key = load_key(request.step)
        order.append(request.step)
        policy.tell(record_of(request, ProbeState.COMPLETED))
    assert order == sorted(order, key=lambda step: step != nf4)
    assert len(set(order)) == 2


def test_a_failure_leaves_a_lower_bound_and_says_so():
    policy = Bisect(["a"], [STEP], [1, 2, 3, 4])
    while isinstance(request := policy.ask("a", None), ProbeRequest):
        failed = request.length_tokens > 2
        policy.tell(
            record_of(request, ProbeState.FAILED, "host_oom") if failed else record_of(request, ProbeState.COMPLETED)
        )
    (edge,) = policy.edges()
    assert (edge.length_tokens, edge.limit, edge.failed_tokens) == (2, Limit.FAILED, (3,))


def test_a_missing_kernel_ends_the_bisection_of_its_step():
    policy = Bisect(["a"], [STEP], range(1, 100))
    request = policy.ask("a", None)
    assert isinstance(request, ProbeRequest)
    policy.tell(record_of(request, ProbeState.FAILED, "missing_kernel"))
    assert isinstance(policy.ask("a", None), Done)
    assert policy.remaining("a") == 0


def test_an_edge_reads_as_a_sentence_of_evidence():
    policy = Bisect(["hf/h200"], [STEP], [1024, 2048, 4096, 8192, 16384])
    simulate(policy, lambda length: length <= 8192, "hf/h200")
    assert str(policy.edges()[0]) == (
        "hf/h200: runs at 8192 tokens (also ran 4096; out of memory at 16384; not probed below it 1024, 2048); "
        "limit: oom"
    )


def test_an_edge_that_is_not_finished_says_so():
    assert Bisect(["a"], [STEP], [1, 2]).edges()[0].limit is Limit.UNFINISHED
