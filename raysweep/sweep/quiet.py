"""Ray's environment, as a sweep wants it: set before Ray is first imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

_DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's own tables would fight with our progress
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files: the artifact holds the results
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # a lost session is told by our own event
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the sweep at once: each finished probe is in the artifact
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths keep their meaning inside a session
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # leave CUDA_VISIBLE_DEVICES alone where no GPU is asked for
}


def quiet_ray() -> None:
    """Set Ray's environment where the user has not, and keep its loggers to errors."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in ("ray", "ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("optuna").setLevel(logging.WARNING)


@contextmanager
def no_worker_logs() -> Iterator[None]:
    """Keep what Ray prints about dead workers off the terminal for a block: a sweep tells of them by its own events.

    Ray's raylet prints such messages even with ``log_to_driver=False``; the switch for them has no public name, so a
    version of Ray without it prints them.
    """
    from ray._private import worker

    before = getattr(worker, "_worker_logs_enabled", None)
    if before is None:
        yield
        return
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before
