"""Whole sweeps through Ray Tune, with a runner whose memory rule is made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_fakes import Factory, began, flavour, log_of

from raysweep.errors import ArtifactError, MachineError
from raysweep.records import ProbeState
from raysweep.search.bisect import Bisect
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.setting import Loss, StepSetting, Weights
from raysweep.space import Budget, SearchSpace
from raysweep.store import Artifact
from raysweep.sweep import FlavourSkipped, ProbeEnded, SessionLost, SweepOptions, SweepSummary, run_sweep

pytestmark = pytest.mark.usefixtures("local_ray")

FULL, CHUNKED = StepSetting(), StepSetting(loss=Loss.CHUNKED)
NF4 = StepSetting(weights=Weights.NF4)
LENGTHS = (1024, 2048, 4096, 8192)


def space_of(steps=(FULL,), lengths=LENGTHS, budget=Budget()) -> SearchSpace:  # noqa: B008 - frozen
    return SearchSpace(
        source_text="model: tiny\n",
        path=None,
        model="tiny",
        steps=tuple(steps),
        searched=("loss", "weights"),
        lengths=tuple(lengths),
        flavours=(),
        budget=budget,
    )


class Sweeper:
    """Runs sweeps into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[object] = []
        self.on_event = self.events.append

    def artifact(self) -> Artifact:
        path = self.folder / "artifact"
        return Artifact.open(str(path)) if path.exists() else Artifact.create(str(path), "model: tiny\n")

    def __call__(self, *, names=("lab/a",), steps=(FULL,), lengths=LENGTHS, policy=None, prices=None, **kwargs):
        flavours = [flavour(name, (prices or {}).get(name, 1.0)) for name in names]
        factory = {key: kwargs.pop(key) for key in ("faults", "seconds", "most_tokens", "source") if key in kwargs}
        options = {"gpus_per_session": 0, "cpus_per_session": 0.5, "first_probe_seconds": 1.0}
        return run_sweep(
            space_of(steps, lengths),
            self.artifact(),
            flavours=flavours,
            runners=lambda f: Factory(folder=self.folder, flavour=f.name, **factory),
            policy=policy or Grid(training_cells(names, steps, lengths)),
            options=SweepOptions(**{**options, **kwargs.pop("options", {})}),
            on_event=self.on_event,
            **kwargs,
        )

    def told(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweeper:
    return Sweeper(tmp_path)


def by_length(summary: SweepSummary) -> dict[int, tuple[str, str | None]]:
    return {record.length_tokens: (str(record.state), record.reason) for record in summary.records}


@pytest.fixture(scope="module")
def plain(local_ray, tmp_path_factory) -> tuple[Sweeper, SweepSummary, list[bool]]:
    """A sweep without faults, and whether each record was in the artifact when it was told."""
    sweep = Sweeper(tmp_path_factory.mktemp("plain"))
    artifact = sweep.artifact()
    held = []

    def look(event: object) -> None:
        if isinstance(event, ProbeEnded):
            held.append(event.record in Artifact.open(artifact.uri).records())

    sweep.on_event = look
    return sweep, sweep(), held


def test_out_of_memory_is_pruned_here_and_in_optunas_study(plain):
    _, summary, _ = plain
    assert by_length(summary)[8192] == ("pruned", "oom")
    assert summary.counts == {ProbeState.COMPLETED: 3, ProbeState.PRUNED: 1, ProbeState.FAILED: 0}
    by_id = {trial.probe_id: trial for trial in summary.trials}
    for record in summary.records:
        trial = by_id[record.probe_id]
        pruned = record.state is ProbeState.PRUNED
        assert (trial.state, trial.reason) == (("PRUNED", "oom") if pruned else ("COMPLETE", None))
    assert next(r for r in summary.records if r.length_tokens == 8192).prune.phase == "backward"


def test_the_artifact_holds_every_record_by_the_time_it_is_told(plain):
    sweep, summary, held = plain
    assert held == [True] * 4
    assert sweep.artifact().records() == summary.records


def test_an_artifact_with_probes_is_not_gone_on_with_unasked(plain):
    with pytest.raises(ArtifactError, match="--resume"):
        plain[0]()


@pytest.fixture(scope="module")
def eventful(local_ray, tmp_path_factory) -> tuple[Sweeper, SweepSummary]:
    """One sweep of a device on which every length has another fault."""
    sweep = Sweeper(tmp_path_factory.mktemp("eventful"))
    faults = {2: "failed", 3: "poisoned", 4: "raised", 5: "killed once", 6: "killed"}
    return sweep, sweep(lengths=range(1, 9), most_tokens=7, faults=faults)


def test_after_every_fault_the_sweep_goes_on(eventful):
    assert by_length(eventful[1]) == {
        1: ("completed", None),
        2: ("failed", "nan"),
        3: ("failed", "error"),
        4: ("failed", "error"),
        5: ("completed", None),
        6: ("failed", "lost"),
        7: ("completed", None),
        8: ("pruned", "oom"),
    }


def test_a_lost_probe_is_asked_again_once_and_no_other_is(eventful):
    sweep, _ = eventful
    assert began(sweep.folder, "lab/a") == [1, 2, 3, 4, 5, 5, 6, 6, 7, 8]


def test_a_poisoned_device_costs_its_process_and_nothing_else(eventful):
    sweep, _ = eventful
    process_of = {int(line[3]): line[1] for line in log_of(sweep.folder, "lab/a") if line[2] == "began"}
    assert process_of[1] == process_of[2] == process_of[3]
    assert len({process_of[length] for length in (3, 4, 5)}) == 3
    assert process_of[7] == process_of[8]


def test_a_fault_is_a_failed_trial_of_optunas_with_the_reason(eventful):
    _, summary = eventful
    states = {trial.probe_id: (trial.state, trial.reason) for trial in summary.trials}
    assert len(summary.trials) == 8
    for record in summary.records:
        if record.state is ProbeState.FAILED:
            assert states[record.probe_id] == ("FAIL", record.reason)


def test_lost_sessions_are_told(eventful):
    sweep, _ = eventful
    assert [event.reason for event in sweep.told(SessionLost)] == ["replaced", "replaced", "lost", "lost", "lost"]


def test_a_session_that_never_starts_is_given_up_and_the_others_go_on(sweep):
    flavours = [flavour("lab/a"), flavour("lab/b")]
    names = [f.name for f in flavours]
    summary = run_sweep(
        space_of(),
        sweep.artifact(),
        flavours=flavours,
        runners=lambda f: Factory(
            folder=sweep.folder, flavour=f.name, faults={0: "unready"} if f.name == "lab/b" else {}
        ),
        policy=Grid(training_cells(names, [FULL], LENGTHS)),
        options=SweepOptions(gpus_per_session=0, cpus_per_session=0.5),
    )
    assert {record.flavour for record in summary.records} == {"lab/a"}
    assert len(summary.records) == 4
    assert "no driver on this machine" in summary.stopped["lab/b"]


def test_two_flavours_are_probed_at_once_each_in_its_own_process(sweep):
    sweep(names=("lab/a", "lab/b"), seconds=0.5)
    spans = {}
    for name in ("lab/a", "lab/b"):
        lines = log_of(sweep.folder, name)
        times = [float(line[0]) for line in lines if line[2] == "began"]
        spans[name] = (min(times), max(times) + 0.5, {line[1] for line in lines})
    (start_a, end_a, pids_a), (start_b, end_b, pids_b) = spans.values()
    assert max(start_a, start_b) < min(end_a, end_b)
    assert len(pids_a) == len(pids_b) == 1
    assert pids_a != pids_b


def test_a_session_loads_each_model_once(sweep):
    sweep(steps=(FULL, NF4, CHUNKED))
    assert [line[2] for line in log_of(sweep.folder, "lab/a")].count("loaded") == 2


def test_more_sessions_of_a_flavour_share_its_work(sweep):
    summary = sweep(steps=(FULL, NF4), seconds=0.3, options={"sessions_per_flavour": 2})
    assert len({line[1] for line in log_of(sweep.folder, "lab/a")}) == 2
    assert len({record.probe_id for record in summary.records}) == len(summary.records) == 8


def test_a_resumed_sweep_buys_no_probe_twice(sweep):
    sweep(lengths=(1024, 2048))
    summary = sweep(resume=True)
    assert began(sweep.folder, "lab/a") == list(LENGTHS)
    assert [record.length_tokens for record in summary.records] == [4096, 8192]
    assert not summary.nothing_left
    assert len(sweep.artifact().records()) == len(summary.trials) == 4
    again = sweep(resume=True)
    assert again.records == ()
    assert again.nothing_left
    assert began(sweep.folder, "lab/a") == list(LENGTHS)


def test_no_flavour_with_a_node_is_an_error_of_the_machine(sweep):
    with pytest.raises(MachineError, match="flavour:lab/elsewhere"):
        sweep(names=("lab/elsewhere",))


def test_a_node_that_does_not_come_in_time_ends_the_waiting(sweep):
    summary = sweep(names=("lab/a", "lab/elsewhere"), options={"node_wait_seconds": 3.0})
    assert len(summary.records) == 4
    assert "no node came in time" in summary.stopped["lab/elsewhere"]
    assert [event.flavour for event in sweep.told(FlavourSkipped)] == ["lab/elsewhere"]


def test_a_flavour_of_several_gpus_is_not_probed(sweep):
    summary = run_sweep(
        space_of(),
        sweep.artifact(),
        flavours=[flavour("lab/a", gpu_count=8)],
        runners=lambda f: Factory(folder=sweep.folder, flavour=f.name),
        policy=Grid(training_cells(["lab/a"], [FULL], LENGTHS)),
    )
    assert summary.records == ()
    assert summary.stopped == {"lab/a": "needs a multi-GPU step"}


def test_the_budget_is_not_passed(sweep):
    usd_per_hour = 3600.0  # a dollar a second
    budget = Budget(usd=10.0)
    summary = sweep(lengths=range(1, 40), seconds=0.5, prices={"lab/a": usd_per_hour}, budget=budget, most_tokens=10**6)
    assert summary.over_budget
    assert summary.spent_usd <= 10.0
    assert 1 <= len(summary.records) < 20
    assert "budget" in summary.stopped["lab/a"]


def test_a_probe_that_would_pass_the_budget_while_it_runs_is_ended(sweep):
    summary = sweep(lengths=(1024, 2048), faults={1024: "hung"}, prices={"lab/a": 3600.0}, budget=Budget(usd=8.0))
    assert by_length(summary) == {1024: ("failed", "budget")}
    assert summary.spent_usd <= 8.0


def test_a_hung_probe_is_ended_and_the_sweep_goes_on(sweep):
    summary = sweep(lengths=(1024, 2048), faults={1024: "hung"}, options={"probe_limit_seconds": 1.0})
    assert by_length(summary) == {1024: ("failed", "timeout"), 2048: ("completed", None)}


def test_a_bisection_finds_the_edge_through_sessions(sweep):
    lengths = range(64, 64 * 129, 64)
    names = ("lab/a", "lab/b")
    policy = Bisect(names, [FULL], lengths)
    summary = sweep(names=names, lengths=lengths, policy=policy, most_tokens=5000)
    assert {edge.flavour: edge.length_tokens for edge in policy.edges()} == dict.fromkeys(names, 4992)
    assert len(summary.records) <= 2 * 9


def test_host_memory_that_runs_out_fails_that_probe_alone(sweep, monkeypatch):
    """Ray's memory monitor ends a worker with an error that Tune does not know: here a killed worker stands for it."""
    import ray
    from ray.air.execution._internal.actor_manager import RayActorManager

    from raysweep.sweep.host_oom import wrap_actor_manager

    assert wrap_actor_manager()
    handles = RayActorManager._actor_task_failed

    def memory_monitor(self, tracked_actor_task, exception):
        if isinstance(exception, ray.exceptions.RayActorError):
            exception = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
        handles(self, tracked_actor_task, exception)

    memory_monitor.handles_host_oom = True
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", memory_monitor)
    summary = sweep(faults={2048: "killed"})
    assert by_length(summary)[2048] == ("failed", "host_oom")
    assert by_length(summary)[4096] == ("completed", None)
    assert began(sweep.folder, "lab/a") == list(LENGTHS)  # it would take all memory again: not asked twice


def test_a_record_that_cannot_be_kept_ends_the_sweep(sweep):
    class Full:
        kept = ()

        def records(self):
            return self.kept

        def append(self, record):
            if len(self.kept) == 2:
                raise ArtifactError("no space left on the device")
            self.kept += (record,)

    full = Full()
    sweep.artifact = lambda: full
    with pytest.raises(ArtifactError, match="no space left"):
        sweep(seconds=0.3)
    assert [record.length_tokens for record in full.kept] == [1024, 2048]
    assert len(began(sweep.folder, "lab/a")) <= 4
