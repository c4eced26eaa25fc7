"""What a sweep tells its caller while it runs, and at the end. Plain data, for a terminal or a log to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raysweep.records import ProbeRecord, ProbeState, Source
from raysweep.search.runner import ProbeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStarted:
    """Sessions are about to start."""

    sweep_id: str
    flavours: tuple[str, ...]
    """Flavours that get a session."""
    probes_at_most: int
    """Upper estimate of the probes to come."""
    probes_before: int
    """Probes already in the artifact, which are not bought again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavourSkipped:
    """A flavour gets no probe, or no further one."""

    flavour: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted:
    """A session holds its device."""

    session_id: str
    flavour: str
    device_name: str
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """A session died and is started again; what it had in flight is asked again or recorded as failed."""

    session_id: str
    flavour: str
    reason: str
    """``lost``, ``host_oom``, or ``replaced`` where it ended its own process after a probe that spoilt its device."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session has no more work and frees its device."""

    session_id: str
    flavour: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStarted:
    """A session runs a probe."""

    session_id: str
    request: ProbeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A probe has ended; its record is in the artifact by the time this event is told."""

    record: ProbeRecord
    probes_done: int
    """Of this sweep, this one included."""
    probes_left_at_most: int


Event = SweepStarted | FlavourSkipped | SessionStarted | SessionLost | SessionEnded | ProbeStarted | ProbeEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrial:
    """One trial of Optuna's study, as Optuna has it."""

    probe_id: str
    state: str
    """``COMPLETE``, ``PRUNED`` or ``FAIL``."""
    reason: str | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """What a sweep did. Times are of this run alone, not of a sweep that it resumed."""

    sweep_id: str
    records: tuple[ProbeRecord, ...]
    """The probes that this run bought, in the order in which they ended."""
    wall_seconds: float
    """From the call to the end, Ray's start included."""
    spent_usd: float
    """Price times the time that sessions were held, 0 for simulated ones; earlier runs of a resumed sweep included."""
    stopped: Mapping[str, str]
    """Per flavour that was not probed to its end, why: no node, budget, a session that would not start."""
    over_budget: bool
    """Whether a probe was refused, or ended, because the budget did not allow it."""
    nothing_left: bool = False
    """Whether what the artifact held was all that could be bought: not one probe was asked for."""
    trials: tuple[StudyTrial, ...] = field(default=(), repr=False)

    @property
    def counts(self) -> dict[ProbeState, int]:
        """Probes of this run by state, every state named."""
        return {state: sum(record.state is state for record in self.records) for state in ProbeState}

    @property
    def probe_seconds_sum(self) -> float:
        """Wall time of all probes added up, side by side ones each in full."""
        return sum(record.probe_seconds for record in self.records)

    @property
    def step_seconds_sum(self) -> float:
        """Time in optimizer steps, first ones included; *simulated* seconds where the probes are simulated."""
        seen = [record.measurement for record in self.records if record.measurement]
        return sum(sum(m.first_step_seconds) + sum(m.step_seconds) for m in seen)

    @property
    def load_seconds_sum(self) -> float:
        """Time in which models were built and loaded."""
        return sum(record.load_seconds or 0.0 for record in self.records)

    @property
    def busy_seconds(self) -> float:
        """Wall time during which at least one probe ran."""
        return union_seconds((r.started_at.timestamp(), r.probe_seconds) for r in self.records)

    @property
    def overhead_seconds(self) -> float:
        """Wall time during which no probe ran: Ray's start, sessions starting, planning, writing."""
        return max(0.0, self.wall_seconds - self.busy_seconds)


def union_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the spans ``(start, seconds)`` lasted."""
    total, end = 0.0, float("-inf")
    for start, seconds in sorted(spans):
        total += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return total
