"""A session: one Ray Tune trial that holds one device of one flavour, with its model loaded, for many probes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import tune

from raysweep.records import ProbeState
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest, Runner
from raysweep.sweep.facts import DeviceFacts
from raysweep.sweep.planner import Assignment, Ended, Idle
from raysweep.sweep.watchdog import Watchdog

POLL_SECONDS = 0.25
"""How often an idle session asks again."""

IDLE_SECONDS = 30.0
"""How long a session holds its device without work before it frees it; the other sessions finish what is left."""


class Session(tune.Trainable):
    """Asks the planner for a probe, runs it, tells the outcome; one iteration is one probe."""

    def setup(
        self,
        config: dict[str, Any],
        planner_name: str = "",
        namespace: str = "",
        factories: Mapping[str, Callable[[], Runner]] | None = None,
    ) -> None:
        """Make the runner of this session's flavour, and tell the planner what device it is on."""
        self._planner = ray.get_actor(planner_name, namespace=namespace)
        self._session_id = self.trial_id
        flavour = config["flavour"]
        self._call("open", flavour)
        self._runner: Runner = (factories or {})[flavour]()
        device = DeviceFacts(
            name=self._runner.device_name,
            memory_bytes=self._runner.device_memory_bytes,
            memory_cap_bytes=self._runner.memory_cap_bytes,
            source=self._runner.source,
            versions={"ray": ray.__version__, **self._runner.versions},
        )
        self._call("ready", device)

    def step(self) -> dict[str, Any]:
        """Run one probe; the last iteration has none and ends the trial."""
        answer = self._next()
        if isinstance(answer, Ended):
            return {"done": True, "state": "ended", "reason": answer.reason, "probe_id": None}
        started = time.monotonic()
        limit = Watchdog(
            answer.seconds,
            extend=lambda: float(self._call("extend")),
            expire=lambda: self._call("expire"),
        )
        outcome, unsafe = None, True
        with limit:
            outcome, unsafe = run_probe(self._runner, answer.request, lambda: time.monotonic() - started)
        self._call("tell", outcome, unsafe)
        if unsafe:
            # Nothing gentler gives a poisoned device back; Tune starts the session again in a new process.
            os._exit(1)
        return {"state": str(outcome.state), "reason": outcome.reason, "probe_id": answer.request.probe_id}

    def cleanup(self) -> None:
        """Give the device back."""
        if hasattr(self, "_runner"):
            self._runner.close()

    def _next(self) -> Assignment | Ended:
        idle_until = time.monotonic() + IDLE_SECONDS
        while True:
            answer = self._call("next", self._runner.loaded_key())
            if not isinstance(answer, Idle):
                return answer  # type: ignore[no-any-return]  # what Planner.next returns
            if time.monotonic() > idle_until:
                return Ended(f"no work for {IDLE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _call(self, method: str, *args: Any) -> Any:
        return ray.get(getattr(self._planner, method).remote(self._session_id, *args))


def run_probe(runner: Runner, request: ProbeRequest, seconds: Callable[[], float]) -> tuple[Outcome, bool]:
    """Run a request and return its outcome, and whether the process must be replaced after it.

    A runner raises nothing but ``PoisonedDevice``; what it raises all the same ends that probe alone, as failed.
    """
    try:
        return runner.run(request), False
    except PoisonedDevice as poisoned:
        return poisoned.outcome, True
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return Outcome(state=ProbeState.FAILED, reason="error", detail=detail, probe_seconds=seconds()), True
