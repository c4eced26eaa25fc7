"""What a sweep has spent, and how long its next probe may take within the budget. Clock and prices are given."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysweep.space.model import Budget

SECONDS_PER_HOUR = 3600.0

CLOSING_SECONDS = 5.0
"""Kept back for each held session: ending a process and giving its device back took 1 to 2 s on two cores."""


@dataclass(slots=True)
class _Hold:
    """One session: a flavour held from ``opened_at`` on."""

    flavour: str
    usd_per_hour: float
    opened_at: float
    busy_until: float | None = None
    """Until when money is set aside for the probe in flight; None between probes."""


class Ledger:
    """Holds money back for what is in flight, so that a new probe is refused before the budget could be passed.

    All times are seconds of one clock. A machine costs from when its session opens until it closes, idle or not.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        started_at: float,
        first_probe_seconds: float,
        spent_usd: float = 0.0,
        spent_seconds: float = 0.0,
    ) -> None:
        """Open the books.

        Args:
            budget: Limits of the whole sweep; None is no limit.
            started_at: Now.
            first_probe_seconds: What the first probe of a flavour is expected to take, its load included.
            spent_usd: Spent before, by the sweep that this one resumes.
            spent_seconds: Wall time spent before, likewise.
        """
        self._budget = budget
        self._started_at = started_at - spent_seconds
        self._first_probe_seconds = first_probe_seconds
        self._closed_usd = spent_usd
        self._holds: dict[str, _Hold] = {}
        self._longest_seconds: dict[str, float] = {}

    def open(self, session_id: str, flavour: str, usd_per_hour: float, now: float) -> None:
        """Count a session's machine from now on; one that is open already goes on."""
        self._holds.setdefault(session_id, _Hold(flavour, usd_per_hour, now))

    def close(self, session_id: str, now: float) -> None:
        """Stop counting a session's machine."""
        hold = self._holds.pop(session_id, None)
        if hold is not None:
            self._closed_usd += _usd(hold, now)

    def waive(self, session_id: str) -> None:
        """Count nothing for a session's machine: it is simulated."""
        self._holds[session_id].usd_per_hour = 0.0

    def spent_usd(self, now: float) -> float:
        """Return what has been spent by now, held machines included."""
        return self._closed_usd + sum(_usd(hold, now) for hold in self._holds.values())

    def expected_seconds(self, flavour: str) -> float:
        """Return what a next probe is taken to need: the longest that this flavour has shown."""
        return self._longest_seconds.get(flavour, self._first_probe_seconds)

    def reserve(self, session_id: str, now: float, *, at_least_seconds: float | None = None) -> float | None:
        """Set money aside for the session's next probe, or for more time of the one in flight.

        Args:
            session_id: An open session.
            now: The time.
            at_least_seconds: Refuse unless this much is left; by default what a probe is expected to need.

        Returns:
            Seconds that may be used now, infinite without a budget; None where the budget does not allow it.
        """
        hold = self._holds[session_id]
        needed = self.expected_seconds(hold.flavour) if at_least_seconds is None else at_least_seconds
        left = self._seconds_left(session_id, now)
        if left < needed or left <= 0:
            return None
        if math.isinf(left):
            return left
        # Half again as much as expected: what is set aside here is lacking to other sessions until this probe ends.
        seconds = min(left, max(1.5 * needed, 1.0))
        hold.busy_until = now + seconds
        return seconds

    def settle(self, session_id: str, probe_seconds: float | None = None) -> None:
        """Give back what was set aside: the session's probe has ended, or (None) there was none to run."""
        hold = self._holds.get(session_id)
        if hold is None:
            return
        hold.busy_until = None
        if probe_seconds is not None:
            self._longest_seconds[hold.flavour] = max(probe_seconds, self._longest_seconds.get(hold.flavour, 0.0))

    def refusal(self, flavour: str, now: float) -> str:
        """Return the sentence with which a probe is refused."""
        limits = []
        if self._budget.usd is not None:
            limits.append(f"{self.spent_usd(now):.2f} of {self._budget.usd:.2f} USD spent")
        if self._budget.hours is not None:
            hours = (now - self._started_at) / SECONDS_PER_HOUR
            limits.append(f"{hours:.2f} of {self._budget.hours:.2f} hours used")
        expected = self.expected_seconds(flavour)
        return f"{', '.join(limits)}; one more probe on {flavour}, taken to need {expected:.0f} s, could pass it"

    def _seconds_left(self, session_id: str, now: float) -> float:
        seconds = math.inf
        if self._budget.hours is not None:
            seconds = self._budget.hours * SECONDS_PER_HOUR - (now - self._started_at)
        hold = self._holds[session_id]
        if self._budget.usd is not None and hold.usd_per_hour > 0:
            others = sum(_set_aside_usd(other, now) for key, other in self._holds.items() if key != session_id)
            left_usd = self._budget.usd - self.spent_usd(now) - others
            seconds = min(seconds, left_usd / hold.usd_per_hour * SECONDS_PER_HOUR - CLOSING_SECONDS)
        return seconds


def _usd(hold: _Hold, now: float) -> float:
    return hold.usd_per_hour * max(0.0, now - hold.opened_at) / SECONDS_PER_HOUR


def _set_aside_usd(hold: _Hold, now: float) -> float:
    busy_seconds = max(0.0, (hold.busy_until or now) - now)
    return hold.usd_per_hour * (busy_seconds + CLOSING_SECONDS) / SECONDS_PER_HOUR
