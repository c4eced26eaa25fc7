"""One sweep, from a search space to an artifact full of probes."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from cost.domain import Flavour
from raysweep.errors import ArtifactError, MachineError
from raysweep.records import ProbeRecord
from raysweep.search.ledger import Ledger
from raysweep.search.policy import Policy
from raysweep.search.runner import Runner
from raysweep.sweep.events import Event, FlavourSkipped, ProbeEnded, StudyTrial, SweepStarted, SweepSummary
from raysweep.sweep.facts import SweepFacts, spent_before
from raysweep.sweep.quiet import quiet_ray

if TYPE_CHECKING:
    from raysweep.space import Budget, SearchSpace
    from raysweep.sweep.cluster import Place

RunnerFactory = Callable[[], Runner]
"""Makes the runner of one session, in the session's own process; it must be picklable."""

NEEDS_MULTI_GPU = "needs a multi-GPU step"
"""Why a flavour of several GPUs is not probed: a step uses one."""

NODE_WAIT_SECONDS = 900.0
"""How long a flavour may wait for the first node that an autoscaler says it can start."""


class RecordStore(Protocol):
    """Where records are kept: ``raysweep.store.Artifact`` is one."""

    def append(self, record: ProbeRecord) -> None:
        """Keep a record for good."""

    def records(self) -> tuple[ProbeRecord, ...]:
        """Return every record kept, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How a sweep is run; the defaults are those of one machine with one GPU."""

    address: str = "local"
    """``local`` (an embedded Ray), ``auto``, or a cluster's ``HOST:PORT``."""
    gpus_per_session: float = 1.0
    """0 for simulated devices."""
    cpus_per_session: float = 1.0
    """For simulated devices a fraction, so that sessions of several flavours share the cores."""
    sessions_per_flavour: int = 1
    """At most; each one loads the model once more, and finishes sooner."""
    charges_usd_per_hour: Mapping[str, float] | None = None
    """What an hour of each flavour's session really costs: by default the flavour's own price. An emulated flavour
    costs what the machine costs that stands in for it. Simulated devices cost nothing in any case."""
    first_probe_seconds: float = 60.0
    """What a flavour's first probe is taken to need when the budget is asked."""
    probe_limit_seconds: float = 3600.0
    """A probe that takes longer is ended as hung, with the reason ``timeout``."""
    node_wait_seconds: float | None = None
    """How long a flavour without a node may wait for one; None is 15 minutes where the cluster's autoscaler says that
    it can start one, else not at all."""

    @classmethod
    def simulated(cls, **changes: Any) -> SweepOptions:
        """Return the options of simulated devices."""
        return cls(**{"gpus_per_session": 0.0, "cpus_per_session": 0.5, "charges_usd_per_hour": {}, **changes})


def run_sweep(
    space: SearchSpace,
    artifact: RecordStore,
    *,
    flavours: Sequence[Flavour],
    runners: Callable[[Flavour], RunnerFactory],
    policy: Policy,
    options: SweepOptions | None = None,
    budget: Budget | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    resume: bool = False,
) -> SweepSummary:
    """Buy the probes that a policy asks for, on every flavour at once, and keep each record as it ends.

    Args:
        space: What is searched.
        artifact: Where the records go. On ``KeyboardInterrupt``, or if this process is killed, it holds every probe
            that had ended.
        flavours: The space's flavours, resolved.
        runners: Gives each flavour's factory of runners.
        policy: Decides which probe is next. At the end it has been told every record.
        options: How to run.
        budget: What the sweep may cost; the space's own where None.
        on_event: Is told what happens, in this process's main thread.
        resume: Go on with what the artifact holds: none of its probes is bought again, and what they cost counts.

    Returns:
        What was done; ``summary.stopped`` names each flavour that was not probed to its end, and why.

    Raises:
        ArtifactError: The artifact holds probes and ``resume`` is false, or a record cannot be kept.
        MachineError: Ray cannot be reached or started, or no flavour has a node.
        KeyboardInterrupt: The sweep was interrupted.
    """
    started = time.monotonic()
    options = options or SweepOptions()
    before = artifact.records()
    if before and not resume:
        raise ArtifactError(
            f"expected an artifact without probes, got one with {len(before)}. Add --resume to go on with it, "
            "or name another folder with --out."
        )
    for record in before:
        policy.tell(record)
    quiet_ray()
    from raysweep.sweep.cluster import connected

    run = _Run(
        space=space,
        artifact=artifact,
        flavours=tuple(flavours),
        policy=policy,
        options=options,
        budget=budget or space.budget,
        on_event=on_event,
        before=before,
    )
    run.spent_usd = spent_before(before, run.charges())[0]
    wanted = run.wanted()
    if not wanted:
        return replace(run.summary(started), nothing_left=bool(before))
    with connected(options.address, [f.name for f in wanted], options.sessions_per_flavour):
        places = run.places(wanted)
        if not places:
            raise MachineError("no flavour has a place to run: " + "; ".join(run.stopped.values()))
        run.execute(places, {f.name: runners(f) for f in wanted})
        return run.summary(started)


@dataclass(slots=True, kw_only=True)
class _Run:
    """The state of one ``run_sweep``."""

    space: SearchSpace
    artifact: RecordStore
    flavours: tuple[Flavour, ...]
    policy: Policy
    options: SweepOptions
    budget: Budget
    on_event: Callable[[Event], None]
    before: tuple[ProbeRecord, ...]
    stopped: dict[str, str] = field(default_factory=dict)
    sweep_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    records: list[ProbeRecord] = field(default_factory=list)
    spent_usd: float = 0.0
    over_budget: bool = False
    trials: tuple[StudyTrial, ...] = ()

    def charges(self) -> Mapping[str, float]:
        """Return what an hour of each flavour's session costs: as given, else the flavours' own prices."""
        if self.options.charges_usd_per_hour is not None:
            return self.options.charges_usd_per_hour
        return {f.name: f.usd_per_hour for f in self.flavours if f.usd_per_hour is not None}

    def wanted(self) -> list[Flavour]:
        """Return the flavours that still have probes to buy, and can run them."""
        wanted = []
        for flavour in self.flavours:
            if flavour.gpu_count > 1:
                self._skip(flavour.name, NEEDS_MULTI_GPU)
            elif self.policy.remaining(flavour.name):
                wanted.append(flavour)
        return wanted

    def places(self, wanted: Sequence[Flavour]) -> list[Place]:
        """Return where the wanted flavours run; those with no place are skipped with the reason."""
        from raysweep.sweep.cluster import alive_nodes, place_of, startable_resources

        nodes, startable = alive_nodes(), startable_resources()
        places = []
        for flavour in wanted:
            place = place_of(
                flavour,
                nodes,
                gpus_per_session=self.options.gpus_per_session,
                cpus_per_session=self.options.cpus_per_session,
                startable=startable,
            )
            if place.slots or place.may_come or self.options.node_wait_seconds:
                places.append(place)
            else:
                self._skip(flavour.name, place.missing)
        return places

    def execute(self, places: Sequence[Place], factories: Mapping[str, RunnerFactory]) -> None:
        """Run sessions until there is nothing more to do."""
        import ray.exceptions

        from raysweep.sweep.planner_actor import start_planner

        name = f"raysweep-planner-{self.sweep_id}"
        planner = start_planner(name, self._planner_arguments())
        # Tune takes more than a second to import: meanwhile the planner starts.
        from ray.tune import TuneError

        from raysweep.sweep.driver import Driver
        from raysweep.sweep.host_oom import wrap_actor_manager
        from raysweep.sweep.tune_run import fit

        wrap_actor_manager()
        self.on_event(
            SweepStarted(
                sweep_id=self.sweep_id,
                flavours=tuple(place.flavour for place in places),
                probes_at_most=sum(self.policy.remaining(place.flavour) for place in places),
                probes_before=len(self.before),
            )
        )
        driver = Driver(planner, self._receive)
        storage = tempfile.mkdtemp(prefix="raysweep-tune-")
        try:
            fit(
                places,
                factories,
                driver=driver,
                planner_name=name,
                storage=storage,
                sessions_per_flavour=self.options.sessions_per_flavour,
                node_wait_seconds=self.options.node_wait_seconds or NODE_WAIT_SECONDS,
            )
            driver.call("finish")
            driver.drain()
            if driver.error is not None:
                raise driver.error
        except (ray.exceptions.RayError, TuneError) as error:
            raise MachineError(
                f"Ray failed: {error}. The artifact holds every probe that had ended; go on with --resume."
            ) from error
        finally:
            self._settle(driver)
            shutil.rmtree(storage, ignore_errors=True)
            ray.kill(planner)

    def summary(self, started: float) -> SweepSummary:
        """Return what was done since ``started`` (monotonic seconds)."""
        return SweepSummary(
            sweep_id=self.sweep_id,
            records=tuple(self.records),
            wall_seconds=time.monotonic() - started,
            spent_usd=self.spent_usd,
            stopped=dict(self.stopped),
            over_budget=self.over_budget,
            trials=self.trials,
        )

    def _planner_arguments(self) -> dict[str, Any]:
        charges = self.charges()
        spent_usd, spent_seconds = spent_before(self.before, charges)
        return {
            "facts": SweepFacts(
                sweep_id=self.sweep_id,
                model=self.space.model,
                seed=self.space.seed,
                prices_usd_per_hour={flavour.name: flavour.usd_per_hour for flavour in self.flavours},
                gpu_counts={flavour.name: flavour.gpu_count for flavour in self.flavours},
            ),
            "policy": self.policy,
            "steps": self.space.steps,
            "searched": self.space.searched,
            "ledger": Ledger(
                self.budget,
                started_at=time.time(),
                first_probe_seconds=self.options.first_probe_seconds,
                spent_usd=spent_usd,
                spent_seconds=spent_seconds,
            ),
            "charges_usd_per_hour": charges,
            "probe_limit_seconds": self.options.probe_limit_seconds,
            "before": self.before,
        }

    def _receive(self, event: Event) -> None:
        """Keep a record before anybody hears of it."""
        if isinstance(event, ProbeEnded) and event.record not in self.records[-1:]:
            self.artifact.append(event.record)
            self.records.append(event.record)
            self.policy.tell(event.record)
        elif isinstance(event, FlavourSkipped):
            self.stopped[event.flavour] = event.reason
        self.on_event(event)

    def _settle(self, driver: Any) -> None:
        """Take in what the planner still holds, whatever ended the sweep."""
        import ray

        try:
            driver.drain()
            self.spent_usd = driver.call("spent_usd")
            self.over_budget = driver.call("over_budget")
            self.trials = driver.call("trials")
        except ray.exceptions.RayError:
            # The planner is gone: what it had told is kept, and the error that ended the sweep is on its way.
            return

    def _skip(self, flavour: str, reason: str) -> None:
        self.stopped[flavour] = reason
        self.on_event(FlavourSkipped(flavour=flavour, reason=reason))
