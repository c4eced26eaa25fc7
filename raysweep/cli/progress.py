"""What a sweep, or the counting of texts, tells while it runs, on stderr: a live bar on a terminal.

Elsewhere a sweep writes a line a probe, and counting writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from textwrap import wrap
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from raysweep.report.sweep import probe_line
from raysweep.report.text import plain_width_columns
from raysweep.setting import StepSetting

if TYPE_CHECKING:
    from raysweep.sweep.events import Event

_INDENT = " " * 4
"""Of what a line goes on with below itself."""


class CountProgress:
    """Shows how far texts are counted: nothing where none are, or where no terminal is there. Use it as a context."""

    def __init__(self, *, quiet: bool) -> None:
        """Begin without a bar; ``quiet`` never shows one."""
        console = Console(file=sys.stderr, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> Self:
        """Begin; a bar is first shown when a file's texts are."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was, after an interrupt too."""
        self._bar.stop()

    def of(self, name: str) -> Callable[[int, int], None]:
        """Return what to call with the bytes counted and the bytes of all of the file of that name."""
        task: TaskID | None = None

        def show(done_bytes: int, all_bytes: int) -> None:
            nonlocal task
            if task is None:
                self._bar.start()
                task = self._bar.add_task(f"counting the tokens of {name}", total=all_bytes)
            self._bar.update(task, completed=done_bytes)

        return show


class SweepProgress:
    """Shows events. Use it as a context; ``tell`` is the sweep's ``on_event``."""

    def __init__(self, labels: Mapping[StepSetting, str], *, quiet: bool) -> None:
        """Take the steps' names; ``quiet`` shows nothing but warnings."""
        self._labels = labels
        self._quiet = quiet
        self._console = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("starting Ray", total=None)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def tell(self, event: Event) -> None:
        """Show one event."""
        from raysweep.sweep import events

        match event:
            case events.SweepStarted():
                self._bar.update(self._task, description="probes", total=event.probes_at_most, completed=0)
                if event.probes_before:
                    self._line(f"{event.probes_before} probes are in the artifact already and are not bought again.")
            case events.ProbeEnded():
                done, left = event.probes_done, event.probes_left_at_most
                self._bar.update(self._task, completed=done, total=done + left)
                self._line(f"[{done}/{done + left}] {probe_line(event.record, self._labels)}")
            case events.FlavourSkipped():
                self._print(f"{event.flavour} is not probed further: {event.reason}")
            case events.SessionLost():
                self._print(f"{event.flavour}: its session ended ({event.reason}: {event.detail})")
            case _:
                pass

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._print(text)

    def _print(self, text: str) -> None:
        """Print a line, broken between its words where it is longer than the terminal is wide."""
        width = self._console.width if self._console.is_terminal else plain_width_columns()
        lines = wrap(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
        self._console.print("\n".join(lines))
