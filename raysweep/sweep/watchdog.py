"""Ends a process whose probe uses up its time: a hung kernel cannot be interrupted in any gentler way."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Watchdog:
    """While entered, asks for more time whenever the given time is used up, and ends the process where none is left."""

    def __init__(
        self,
        seconds: float,
        *,
        extend: Callable[[], float],
        expire: Callable[[], None],
        end_process: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """Hold the first time limit.

        Args:
            seconds: Until more time is asked for; infinite watches nothing.
            extend: Returns further seconds, 0 for none.
            expire: Tells that the process is about to end.
            end_process: Ends it.
        """
        self._seconds = seconds
        self._extend = extend
        self._expire = expire
        self._end_process = end_process
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Start watching."""
        if not math.isinf(self._seconds):
            threading.Thread(target=self._watch, daemon=True, name="probe-watchdog").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._over.set()

    def _watch(self) -> None:
        seconds = self._seconds
        while not self._over.wait(min(seconds, threading.TIMEOUT_MAX)):
            seconds = self._extend()
            if seconds <= 0:
                if not self._over.is_set():
                    self._expire()
                    self._end_process()
                return
