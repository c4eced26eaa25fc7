"""The planner, without Ray: what it answers, records and tells."""

from __future__ import annotations

import pytest

from raysweep.records import Measurement, ProbeState, Source
from raysweep.search.bisect import Bisect
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.search.ledger import Ledger
from raysweep.search.runner import Outcome
from raysweep.setting import StepSetting
from raysweep.space import Budget
from raysweep.sweep.events import FlavourSkipped, ProbeEnded, ProbeStarted, SessionEnded, SessionLost, SessionStarted
from raysweep.sweep.facts import DeviceFacts, SweepFacts, spent_before
from raysweep.sweep.planner import Assignment, Ended, Idle, Planner
from raysweep.sweep.study import Study

STEP = StepSetting()
DEVICE = DeviceFacts(
    name="GPU", memory_bytes=10**9, memory_cap_bytes=None, source=Source.MEASURED, versions={"torch": "2"}
)
DONE = Outcome(
    state=ProbeState.COMPLETED,
    measurement=Measurement(peak_allocated_bytes=1, peak_reserved_bytes=2, tokens_per_second=7.0),
    probe_seconds=2.0,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def planner_of(policy=None, *, budget=Budget(), price=3.6, limit_seconds=100.0, before=()):  # noqa: B008 - frozen
    clock = Clock()
    planner = Planner(
        facts=SweepFacts(
            sweep_id="s", model="tiny", seed=3, prices_usd_per_hour={"a": price}, gpu_counts={"a": 1, "b": 1}
        ),
        policy=policy or Grid(training_cells(["a"], [STEP], [64, 128])),
        study=Study(seed=3, flavours=["a", "b"], steps=[STEP], searched=["loss"]),
        ledger=Ledger(budget, started_at=clock.now, first_probe_seconds=10.0),
        charges_usd_per_hour={"a": price},
        probe_limit_seconds=limit_seconds,
        before=before,
        clock=clock,
    )
    return planner, clock


def started(planner: Planner, session: str = "one", device: DeviceFacts = DEVICE) -> Planner:
    planner.open(session, "a")
    planner.ready(session, device)
    return planner


def records(planner: Planner) -> list:
    return [event.record for event in planner.drain() if isinstance(event, ProbeEnded)]


def test_a_session_is_given_a_probe_tells_its_outcome_and_a_record_comes_of_it():
    planner, clock = planner_of()
    started(planner)
    answer = planner.next("one", None)
    assert isinstance(answer, Assignment)
    clock.now += 2
    planner.tell("one", DONE)
    events = planner.drain()
    assert [type(event) for event in events] == [SessionStarted, ProbeStarted, ProbeEnded]
    record = events[-1].record
    assert (record.length_tokens, record.flavour, record.model, record.seed) == (64, "a", "tiny", 3)
    assert (record.device_name, record.versions, record.price_usd_per_hour) == ("GPU", {"torch": "2"}, 3.6)
    assert record.started_at.timestamp() == 1000.0
    assert (events[-1].probes_done, events[-1].probes_left_at_most) == (1, 1)
    assert planner.trials()[0].tokens_per_second == 7.0


def test_a_session_without_work_ends():
    planner, _ = planner_of()
    started(planner)
    for _ in range(2):
        planner.next("one", None)
        planner.tell("one", DONE)
    assert isinstance(planner.next("one", None), Ended)
    planner.close("one", "done")
    assert isinstance(planner.drain()[-1], SessionEnded)
    assert not planner.has_work("a")


def test_a_session_waits_for_what_another_has_in_flight():
    planner, _ = planner_of(Bisect(["a"], [STEP], [1, 2, 3]))
    started(started(planner), "two")
    assert isinstance(planner.next("one", None), Assignment)
    assert isinstance(planner.next("two", None), Idle)
    planner.tell("one", DONE)
    assert isinstance(planner.next("two", None), Assignment)


def test_a_lost_probe_goes_to_whichever_session_asks_next():
    planner, _ = planner_of()
    started(started(planner), "two")
    lost = planner.next("one", None)
    planner.lost("one", "lost", "killed")
    again = planner.next("two", None)
    assert lost.request == again.request
    assert records(planner) == []


def test_a_probe_lost_twice_is_recorded_as_lost():
    planner, _ = planner_of()
    for _ in range(2):
        started(planner).next("one", None)
        planner.lost("one", "lost", "killed")
    (record,) = records(planner)
    assert (record.state, record.reason) == (ProbeState.FAILED, "lost")
    assert started(planner).next("one", None).request.length_tokens == 128


def test_a_probe_that_took_all_host_memory_is_not_asked_again():
    planner, _ = planner_of()
    started(planner).next("one", None)
    planner.lost("one", "host_oom", "host out of memory")
    assert [record.reason for record in records(planner)] == ["host_oom"]
    assert started(planner).next("one", None).request.length_tokens == 128


def test_a_probe_lost_with_no_session_to_come_is_recorded_at_the_end():
    planner, _ = planner_of()
    started(planner).next("one", None)
    planner.lost("one", "lost", "killed")
    planner.finish()
    assert [record.reason for record in records(planner)] == ["lost"]


def test_sessions_that_only_die_give_their_flavour_up():
    planner, _ = planner_of()
    for _ in range(3):
        assert planner.has_work("a")
        planner.failed_to_start("a", "no driver")
    assert not planner.has_work("a")
    assert "no driver" in planner.stopped()["a"]
    assert isinstance(planner.drain()[-1], FlavourSkipped)


def test_a_session_that_dies_after_each_of_its_probes_is_not_given_up():
    planner, _ = planner_of(Grid(training_cells(["a"], [STEP], range(1, 9))))
    for _ in range(8):
        started(planner).next("one", None)
        planner.tell("one", DONE, ends_itself=True)
        planner.lost("one", "lost", "exit")
    assert planner.stopped() == {}
    reasons = {event.reason for event in planner.drain() if isinstance(event, SessionLost)}
    assert reasons == {"replaced"}


def test_an_outcome_told_twice_is_recorded_once():
    planner, _ = planner_of()
    started(planner).next("one", None)
    planner.tell("one", DONE)
    planner.tell("one", DONE)
    assert len(records(planner)) == 1


def test_the_budget_ends_a_session_with_the_reason():
    planner, clock = planner_of(budget=Budget(usd=0.05))  # 50 s at 3.60 USD an hour
    started(planner)
    assert isinstance(planner.next("one", None), Assignment)
    clock.now += 36
    planner.tell("one", DONE)
    answer = planner.next("one", None)
    assert isinstance(answer, Assignment)  # a probe takes 2 s, as seen
    clock.now += 8
    planner.tell("one", DONE)
    answer = planner.next("one", None)
    assert isinstance(answer, Ended)
    assert "of 0.05 USD" in answer.reason
    assert planner.over_budget()


def test_a_probe_gets_more_time_while_the_budget_lasts_and_no_longer():
    planner, clock = planner_of(budget=Budget(usd=0.03))  # 30 s
    started(planner)
    answer = planner.next("one", None)
    assert isinstance(answer, Assignment)
    assert answer.seconds < 25
    clock.now += answer.seconds
    while (seconds := planner.extend("one")) > 0:
        clock.now += seconds
    planner.expire("one")
    assert planner.spent_usd() <= 0.03
    assert [record.reason for record in records(planner)] == ["budget"]


def test_a_probe_is_ended_as_hung_at_its_limit():
    planner, clock = planner_of(limit_seconds=20.0)
    started(planner)
    answer = planner.next("one", None)
    assert isinstance(answer, Assignment)
    assert answer.seconds == 20.0
    clock.now += 20
    assert planner.extend("one") == 0.0
    planner.expire("one")
    assert [record.reason for record in records(planner)] == ["timeout"]
    assert not planner.over_budget()


def test_a_simulated_device_costs_nothing():
    planner, clock = planner_of(budget=Budget(usd=0.001))
    device = DeviceFacts(name="simulated", memory_bytes=1, memory_cap_bytes=None, source=Source.SIMULATED, versions={})
    started(planner, device=device)
    clock.now += 1000
    assert isinstance(planner.next("one", None), Assignment)
    assert planner.spent_usd() == 0.0


def test_records_of_before_are_in_the_study_and_their_cost_is_known():
    planner, _ = planner_of()
    started(planner).next("one", None)
    planner.tell("one", DONE)
    before = tuple(records(planner))
    assert spent_before(before, {"a": 3.6}) == (pytest.approx(3.6 * 2.0 / 3600), 2.0)
    assert spent_before(before, {}) == (0.0, 2.0)
    policy = Grid(training_cells(["a"], [STEP], [64, 128]))
    for record in before:
        policy.tell(record)
    resumed, _ = planner_of(policy, before=before)
    assert [trial.state for trial in resumed.trials()] == ["COMPLETE"]
    assert started(resumed).next("one", None).request.length_tokens == 128


def test_the_study_keeps_each_state_and_reason():
    planner, _ = planner_of(Grid(training_cells(["a"], [STEP], [1, 2, 3, 4])))
    outcomes = [
        DONE,
        Outcome(state=ProbeState.PRUNED, reason="oom", probe_seconds=1.0),
        Outcome(state=ProbeState.FAILED, reason="nan", probe_seconds=1.0),
        Outcome(
            state=ProbeState.COMPLETED,
            measurement=Measurement(peak_allocated_bytes=1, peak_reserved_bytes=1),
            probe_seconds=1.0,
        ),
    ]
    started(planner)
    for outcome in outcomes:
        planner.next("one", None)
        planner.tell("one", outcome)
    assert [(trial.state, trial.reason) for trial in planner.trials()] == [
        ("COMPLETE", None),
        ("PRUNED", "oom"),
        ("FAIL", "nan"),
        ("FAIL", "no throughput in the measurement"),
    ]
