"""Host memory that runs out under Ray Tune: that session alone dies, not the sweep.

Ray's memory monitor ends a worker with ``ray.exceptions.OutOfMemoryError``, which is no ``RayActorError``. Tune's actor
manager knows only the latter and raises ``RuntimeError("Caught unexpected exception")`` out of ``Tuner.fit``, so that
one session too large for its host takes the whole sweep with it (seen in Ray 2.60.0). Offloading checkpoints to the
host makes that likely. ``wrap_actor_manager`` hands such an error on as the death of the actor, which it is.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

HOST_OOM = "host_oom"
"""The reason of a probe during which the host's memory ran out."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

MESSAGE_PREFIX = "host out of memory: "
"""Begins the message of the actor error, so that the driver can tell it from other deaths."""


def wrap_actor_manager() -> bool:
    """Make Tune treat a worker that the memory monitor ended as an actor that died.

    Returns:
        Whether this version of Ray needed it: False where its actor manager no longer raises on unknown errors, or
        where ``OutOfMemoryError`` is an actor error by itself. Calling it again changes nothing.
    """
    import ray.exceptions
    from ray.air.execution._internal.actor_manager import RayActorManager

    original = RayActorManager._actor_task_failed
    if getattr(original, "handles_host_oom", False):
        return True
    if issubclass(ray.exceptions.OutOfMemoryError, ray.exceptions.RayActorError):
        return False
    if "Caught unexpected exception" not in inspect.getsource(original):
        return False

    def actor_task_failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, ray.exceptions.OutOfMemoryError):
            exception = ray.exceptions.RayActorError(error_msg=f"{MESSAGE_PREFIX}{exception}")
        original(self, tracked_actor_task, exception)

    actor_task_failed.handles_host_oom = True  # type: ignore[attr-defined]  # a mark on the function, for the next call
    setattr(RayActorManager, original.__name__, actor_task_failed)
    return True


def death_reason(error_text: str) -> tuple[str, str]:
    """Return ``(reason, detail)`` of a session's death: ``host_oom`` or ``lost``, and the line that says most."""
    lines = [line.strip() for line in _COLOUR.sub("", error_text).splitlines() if line.strip()]
    if not lines:
        return "lost", "its process ended"
    if lines[0].startswith(MESSAGE_PREFIX):
        return HOST_OOM, lines[0]
    # An exception within the session comes with its traceback, which ends with what was raised; the death of a process
    # comes with a sentence first, then Ray's ids.
    raised = any("raised in its creation task" in line or line.startswith("Traceback") for line in lines)
    return "lost", lines[-1] if raised else lines[0]
