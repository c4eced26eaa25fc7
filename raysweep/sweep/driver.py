"""The driver's side of a running sweep: Tune's callbacks, which keep every record as it ends and tell every event."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler

from raysweep.sweep.events import Event
from raysweep.sweep.host_oom import death_reason

DRAIN_SECONDS = 0.2
"""How often the planner is asked for events when no session has reported one."""


class Driver(Callback):
    """Passes the planner's events on, and tells it of dead sessions."""

    def __init__(self, planner: Any, on_event: Callable[[Event], None]) -> None:
        """Hold the planner's handle and the receiver of its events."""
        self._planner = planner
        self._on_event = on_event
        self._drained_at = 0.0
        self._events: deque[Event] = deque()
        self.error: Exception | None = None
        """What the receiver raised: a record could not be kept, say. It ends the sweep."""

    def __reduce__(self) -> tuple[type, tuple[None, None]]:
        """Tune pickles its callbacks; ours are never restored, since a sweep resumes from its artifact."""
        return (Driver, (None, None))

    def drain(self) -> None:
        """Pass on everything that has happened, unless the receiver has failed before."""
        if self.error is not None:
            return
        try:
            self._events.extend(self.call("drain"))
            while self._events:
                # Off the list only once received: an interrupted sweep passes on what is left at its end.
                self._on_event(self._events[0])
                self._events.popleft()
        except Exception as error:
            # Tune would take what a callback raises for a fault of the session that has just reported.
            self.error = error
        self._drained_at = time.monotonic()

    def call(self, method: str, *args: Any) -> Any:
        """Call the planner and wait for its answer."""
        return ray.get(getattr(self._planner, method).remote(*args))

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Look for events now and then; end the sweep where they cannot be received any more."""
        if self.error is not None:
            raise self.error
        if time.monotonic() - self._drained_at > DRAIN_SECONDS:
            self.drain()

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A session has reported: a probe ended, or the session did."""
        if result.get("done"):
            self.call("close", trial.trial_id, result.get("reason") or "ended")
        self.drain()

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A session died and Tune is about to start it again."""
        # Where its flavour was given up, Patience stops the session that Tune has queued again.
        self._died(trial)
        self.drain()

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A session died for good."""
        self._died(trial)
        self.drain()

    def _died(self, trial: Trial) -> None:
        reason, detail = death_reason(_last_error(trial))
        if self.call("knows", trial.trial_id):
            self.call("lost", trial.trial_id, reason, detail)
        else:
            self.call("failed_to_start", trial.config["flavour"], detail)


def _last_error(trial: Trial) -> str:
    """Return the text of a trial's last error.

    It is read where Tune writes it, on this machine: ``Trial.get_error`` reads the copy in the experiment's storage,
    which follows later.
    """
    path = Path(trial.error_file) if trial.error_file else None
    text = path.read_text() if path is not None and path.exists() else ""
    # The file gathers all failures, each headed "Failure # 2 (occurred at 2026-01-01_00-00-00)".
    return re.split(r"^Failure # \d+ .*$", text, flags=re.MULTILINE)[-1]


class NoTables(TrialProgressCallback):
    """Stands where Tune would put its own progress tables, and prints nothing."""

    def log_result(self, trial: Trial, result: dict[str, Any], error: bool = False) -> None:
        """Print nothing."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Print nothing."""


class Patience(FIFOScheduler):
    """First come, first served, but a pending session ends where its flavour has no work left, or no node in time."""

    def __init__(self, driver: Driver | None, deadlines: Mapping[str, float], reasons: Mapping[str, str]) -> None:
        """Hold until when each flavour may wait for its first node.

        Args:
            driver: For questions to the planner.
            deadlines: Monotonic time per flavour without a node; other flavours wait as long as it takes.
            reasons: What each of them waits for.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # ray's
        self._driver = driver
        self._deadlines = dict(deadlines)
        self._reasons = dict(reasons)
        self._looked_at = 0.0

    def __reduce__(self) -> tuple[type, tuple[None, dict[str, float], dict[str, str]]]:
        """Tune pickles its scheduler; ours is never restored."""
        return (Patience, (None, {}, {}))

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Stop what waits in vain, then choose as usual."""
        if self._driver is not None and time.monotonic() - self._looked_at > DRAIN_SECONDS:
            self._looked_at = time.monotonic()
            trials = tune_controller.get_trials()
            for trial in trials:
                if trial.status == Trial.RUNNING:
                    self._deadlines.pop(trial.config["flavour"], None)
            for trial in trials:
                if trial.status == Trial.PENDING and self._in_vain(trial.config["flavour"]):
                    tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)

    def _in_vain(self, flavour: str) -> bool:
        assert self._driver is not None  # noqa: S101 - asked only with a driver
        deadline = self._deadlines.get(flavour)
        if deadline is not None and time.monotonic() > deadline:
            self._driver.call("give_up", flavour, f"no node came in time: {self._reasons[flavour]}")
        return not self._driver.call("has_work", flavour)
