"""The planner: holds the policy, the ledger and Optuna's study, and hands probes to sessions. One per sweep.

It is a plain class, so that it can be tested without Ray; a sweep runs it as a named actor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from raysweep.records import ProbeRecord, ProbeState, Source
from raysweep.search.cell import cell_of_request
from raysweep.search.ledger import Ledger
from raysweep.search.policy import Done, Policy, Wait
from raysweep.search.runner import Outcome, ProbeRequest
from raysweep.sweep.events import (
    Event,
    FlavourSkipped,
    ProbeEnded,
    ProbeStarted,
    SessionEnded,
    SessionLost,
    SessionStarted,
    StudyTrial,
)
from raysweep.sweep.facts import DeviceFacts, SweepFacts, record_of
from raysweep.sweep.study import Study

LOST_ASKS = 2
"""How often a probe is asked for in all, where its session dies under it; then it is recorded as lost."""

FRUITLESS_DEATHS = 3
"""How often in a row a flavour's sessions may die without a single record before the flavour is given up."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A probe to run, and how long it may take before more time must be asked for."""

    request: ProbeRequest
    seconds: float
    """Infinite where nothing limits it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to run now; ask again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more to run: the session is to end."""

    reason: str


@dataclass(slots=True)
class _Probe:
    """A probe in flight."""

    request: ProbeRequest
    device: DeviceFacts
    started_at: datetime
    asks: int


@dataclass(slots=True)
class _Session:
    flavour: str
    device: DeviceFacts | None = None
    probe: _Probe | None = None
    ends_itself: bool = False
    """Whether its process ends by its own will, since its device cannot be used any more."""


@dataclass(slots=True)
class _Flavour:
    again: list[_Probe] = field(default_factory=list)
    """Lost probes, to be asked for once more."""
    deaths: int = 0
    """In a row, without a record between them."""
    given_up: str | None = None


class Planner:
    """Answers sessions (``open``, ``ready``, ``next``, ``extend``, ``tell``) and the driver (the other methods)."""

    def __init__(
        self,
        *,
        facts: SweepFacts,
        policy: Policy,
        study: Study,
        ledger: Ledger,
        charges_usd_per_hour: Mapping[str, float],
        probe_limit_seconds: float,
        before: Iterable[ProbeRecord] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take over the policy, which has been told the records of ``before`` already.

        Args:
            facts: What every record repeats.
            policy: Decides which probe is next.
            study: Optuna's study, still empty.
            ledger: Holds the budget.
            charges_usd_per_hour: What an hour of each flavour's session costs; a missing one costs nothing.
            probe_limit_seconds: Longest that a probe may take before it is ended as hung.
            before: Records of the sweep that this one resumes.
            clock: Seconds.
        """
        self._facts = facts
        self._policy = policy
        self._study = study
        self._ledger = ledger
        self._charges = charges_usd_per_hour
        self._limit_seconds = probe_limit_seconds
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._flavours: dict[str, _Flavour] = {name: _Flavour() for name in facts.gpu_counts}
        self._events: list[Event] = []
        self._probes_done = 0
        self._over_budget = False
        for record in before:
            self._study.finish(record)

    # Called by sessions.

    def open(self, session_id: str, flavour: str) -> None:
        """A session's process has started; its machine costs from now on."""
        if session_id in self._sessions:
            self.lost(session_id, "lost", "the session's process was replaced")
        self._sessions[session_id] = _Session(flavour)
        self._ledger.open(session_id, flavour, self._charges.get(flavour, 0.0), self._clock())

    def ready(self, session_id: str, device: DeviceFacts) -> None:
        """A session's runner is made; a simulated device costs nothing."""
        self._sessions[session_id].device = device
        if device.source is Source.SIMULATED:
            self._ledger.waive(session_id)
        flavour = self._sessions[session_id].flavour
        self._tell(
            SessionStarted(session_id=session_id, flavour=flavour, device_name=device.name, source=device.source)
        )

    def next(self, session_id: str, loaded_key: str | None) -> Assignment | Idle | Ended:
        """Return what the session is to do now."""
        session = self._sessions[session_id]
        flavour = self._flavours[session.flavour]
        if flavour.given_up:
            return Ended(flavour.given_up)
        now = self._clock()
        seconds = self._ledger.reserve(session_id, now)
        if seconds is None:
            return Ended(self._refuse(session.flavour))
        probe = self._choose(session, loaded_key)
        if not isinstance(probe, _Probe):
            self._ledger.settle(session_id)
            return probe
        session.probe = probe
        self._study.start(cell_of_request(probe.request))
        self._tell(ProbeStarted(session_id=session_id, request=probe.request))
        return Assignment(probe.request, min(seconds, self._limit_seconds))

    def extend(self, session_id: str) -> float:
        """Return how many more seconds the probe in flight may take; 0 ends it."""
        probe = self._sessions[session_id].probe
        if probe is None:
            return 0.0
        left = self._limit_seconds - (self._clock() - probe.started_at.timestamp())
        # What is left of the budget may be used in small steps; half a second is not worth another round.
        seconds = self._ledger.reserve(session_id, self._clock(), at_least_seconds=0.5)
        return max(0.0, min(left, seconds)) if seconds is not None else 0.0

    def expire(self, session_id: str) -> None:
        """The session ends its own process: its probe used up its time."""
        session = self._sessions[session_id]
        session.ends_itself = True
        probe = session.probe
        if probe is None:
            return
        taken = self._clock() - probe.started_at.timestamp()
        if taken >= self._limit_seconds:
            reason, detail = "timeout", f"ended after {taken:.0f} s; a probe may take {self._limit_seconds:.0f} s"
        else:
            self._refuse(session.flavour)
            reason, detail = "budget", f"ended after {taken:.0f} s: more time would have passed the budget"
        self._end(session_id, self._failed(probe, reason, detail))

    def tell(self, session_id: str, outcome: Outcome, ends_itself: bool = False) -> None:
        """The session's probe has ended. What is told of no probe in flight is ignored: it was recorded already.

        Args:
            session_id: The session.
            outcome: How the probe ended.
            ends_itself: Whether the session's process ends now, to be replaced by a new one.
        """
        self._sessions[session_id].ends_itself = ends_itself
        self._end(session_id, outcome)

    # Called by the driver.

    def lost(self, session_id: str, reason: str, detail: str) -> None:
        """A session's process has died.

        Its probe is asked for again once; one that took all of the host's memory is not, since it would do so again.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._ledger.close(session_id, self._clock())
        state = self._flavours[session.flavour]
        state.deaths += 1
        if session.ends_itself:
            reason, detail = "replaced", "its probe left the device unusable: a new process takes over"
        self._tell(SessionLost(session_id=session_id, flavour=session.flavour, reason=reason, detail=detail))
        probe = session.probe
        if probe is not None and reason == "lost" and probe.asks < LOST_ASKS:
            state.again.append(probe)
        elif probe is not None:
            self._record(session_id, session.flavour, probe, self._failed(probe, reason, detail))
        if state.deaths >= FRUITLESS_DEATHS:
            self.give_up(session.flavour, f"its sessions died {state.deaths} times in a row: {detail}")

    def failed_to_start(self, flavour: str, detail: str) -> None:
        """A session died before it could open."""
        state = self._flavours[flavour]
        state.deaths += 1
        if state.deaths >= FRUITLESS_DEATHS:
            self.give_up(flavour, f"its session did not start, {state.deaths} times in a row: {detail}")

    def knows(self, session_id: str) -> bool:
        """Return whether a session of that name is open."""
        return session_id in self._sessions

    def close(self, session_id: str, reason: str) -> None:
        """A session has ended in order."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._ledger.close(session_id, self._clock())
            self._tell(SessionEnded(session_id=session_id, flavour=session.flavour, reason=reason))

    def give_up(self, flavour: str, reason: str) -> None:
        """Ask for no further probe of a flavour; probes that were to be asked for again are recorded as lost."""
        state = self._flavours[flavour]
        if state.given_up is None:
            state.given_up = reason
            self._tell(FlavourSkipped(flavour=flavour, reason=reason))
        for probe in state.again:
            detail = f"its session died under it, and the flavour was given up: {reason}"
            self._record("", flavour, probe, self._failed(probe, "lost", detail))
        state.again.clear()

    def finish(self) -> None:
        """The sweep is over: record what was to be asked for again but was not."""
        for flavour, state in self._flavours.items():
            for probe in state.again:
                detail = "its session died under it, and no session came back for it"
                self._record("", flavour, probe, self._failed(probe, "lost", detail))
            state.again.clear()

    def drain(self) -> list[Event]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def has_work(self, flavour: str) -> bool:
        """Return whether a session of the flavour would have anything to do."""
        state = self._flavours[flavour]
        return state.given_up is None and (bool(state.again) or self._policy.remaining(flavour) > 0)

    def spent_usd(self) -> float:
        """Return what has been spent, earlier runs included."""
        return self._ledger.spent_usd(self._clock())

    def stopped(self) -> dict[str, str]:
        """Return why each flavour that was given up was."""
        return {name: state.given_up for name, state in self._flavours.items() if state.given_up}

    def over_budget(self) -> bool:
        """Return whether the budget refused or ended a probe."""
        return self._over_budget

    def trials(self) -> tuple[StudyTrial, ...]:
        """Return the trials of Optuna's study."""
        return self._study.trials()

    def _choose(self, session: _Session, loaded_key: str | None) -> _Probe | Idle | Ended:
        assert session.device is not None  # noqa: S101 - a session is ready before it asks
        started_at = datetime.fromtimestamp(self._clock(), tz=UTC)
        again = self._flavours[session.flavour].again
        if again:
            lost = again.pop(0)
            return _Probe(lost.request, session.device, started_at, lost.asks + 1)
        answer = self._policy.ask(session.flavour, loaded_key)
        if isinstance(answer, Wait):
            return Idle()
        if isinstance(answer, Done):
            return Ended(answer.reason)
        return _Probe(answer, session.device, started_at, 1)

    def _refuse(self, flavour: str) -> str:
        self._over_budget = True
        reason = f"budget: {self._ledger.refusal(flavour, self._clock())}"
        self.give_up(flavour, reason)
        return reason

    def _failed(self, probe: _Probe, reason: str, detail: str) -> Outcome:
        seconds = max(0.0, self._clock() - probe.started_at.timestamp())
        return Outcome(state=ProbeState.FAILED, reason=reason, detail=detail, probe_seconds=seconds)

    def _end(self, session_id: str, outcome: Outcome) -> None:
        session = self._sessions[session_id]
        probe, session.probe = session.probe, None
        if probe is not None:
            self._ledger.settle(session_id, outcome.probe_seconds)
            self._record(session_id, session.flavour, probe, outcome)

    def _record(self, session_id: str, flavour: str, probe: _Probe, outcome: Outcome) -> None:
        record = record_of(
            self._facts,
            probe.request,
            outcome,
            probe.device,
            session_id=session_id,
            flavour=flavour,
            started_at=probe.started_at,
        )
        self._flavours[flavour].deaths = 0
        self._policy.tell(record)
        self._study.finish(record)
        self._probes_done += 1
        left = sum(self._policy.remaining(name) for name, state in self._flavours.items() if not state.given_up)
        self._tell(ProbeEnded(record=record, probes_done=self._probes_done, probes_left_at_most=left))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
