"""Bisection: the longest length of a grid that runs, for every flavour and step, in a few probes each.

Out of memory is *no*, completed is *yes*. A real allocator is not strictly monotone in length, so once a bisection has
closed in, the length just below the edge is probed too; an ``Edge`` says which lengths were seen and which were not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from raysweep.records import Mode, ProbeRecord, ProbeState
from raysweep.search.cell import Cell, cell_of
from raysweep.search.policy import Done, Wait
from raysweep.search.runner import ProbeRequest, load_key
from raysweep.setting import StepSetting

Line = tuple[str, StepSetting]
"""A flavour and a step: one bisection."""

HOPELESS_REASONS = frozenset({"missing_kernel"})
"""Failures that no shorter length can cure: the bisection of that flavour and step ends."""


class Limit(StrEnum):
    """What ends the lengths that run."""

    GRID = "grid"
    """Nothing: the longest length of the grid runs."""
    OOM = "oom"
    """The next length of the grid runs out of memory."""
    FAILED = "failed"
    """The next length failed for a reason that says nothing about memory: the edge is a lower bound."""
    UNFINISHED = "unfinished"
    """The bisection was not carried to its end: the edge is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where a bisection ended, and the evidence for it."""

    flavour: str
    step: StepSetting
    length_tokens: int | None
    """The longest length that ran such that every shorter one that was probed ran too; None where none did."""
    limit: Limit
    completed_tokens: tuple[int, ...]
    oom_tokens: tuple[int, ...]
    failed_tokens: tuple[int, ...]
    unchecked_tokens: tuple[int, ...]
    """Lengths of the grid below the edge that were not probed: taken to run since a longer one does."""

    def __str__(self) -> str:
        """Return one sentence that says what was checked."""
        found = f"runs at {self.length_tokens} tokens" if self.length_tokens else "no probed length runs"
        parts = [
            ("also ran", tuple(length for length in self.completed_tokens if length != self.length_tokens)),
            ("out of memory at", self.oom_tokens),
            ("failed at", self.failed_tokens),
            ("not probed below it", self.unchecked_tokens),
        ]
        seen = "; ".join(f"{label} {', '.join(map(str, lengths))}" for label, lengths in parts if lengths)
        return f"{self.flavour}: {found}" + (f" ({seen})" if seen else "") + f"; limit: {self.limit}"


class Bisect:
    """Bisects every flavour and step over one grid of lengths."""

    def __init__(self, flavours: Iterable[str], steps: Iterable[StepSetting], lengths_tokens: Iterable[int]) -> None:
        """Hold the lines to bisect; lengths are sorted, each once."""
        self._lengths = tuple(sorted(set(lengths_tokens)))
        self._index = {length: index for index, length in enumerate(self._lengths)}
        steps = tuple(dict.fromkeys(steps))
        self._results: dict[Line, dict[int, ProbeState]] = {(f, s): {} for f in dict.fromkeys(flavours) for s in steps}
        self._hopeless: set[Line] = set()
        self._in_flight: set[Line] = set()

    def ask(self, flavour: str, loaded_key: str | None) -> ProbeRequest | Wait | Done:
        """Return the next length of one of the flavour's lines; each line has one probe in flight at most."""
        unfinished = {line: index for line in self._lines(flavour) if (index := self._next(line)) is not None}
        if not unfinished:
            return Done("the longest length is found for every step")
        free = [line for line in unfinished if line not in self._in_flight]
        if not free:
            return Wait()
        line = next((line for line in free if load_key(line[1]) == loaded_key), free[0])
        self._in_flight.add(line)
        return self._cell(line, unfinished[line]).request()

    def tell(self, record: ProbeRecord) -> None:
        """Take in a probe of one of the lines at one of the lengths."""
        line = (record.flavour, record.step)
        cell = cell_of(record)
        if line not in self._results or cell.mode is not Mode.TRAIN or cell.length_tokens not in self._index:
            return
        self._in_flight.discard(line)
        self._results[line][self._index[cell.length_tokens]] = record.state
        if record.reason in HOPELESS_REASONS:
            self._hopeless.add(line)

    def remaining(self, flavour: str) -> int:
        """Return what the flavour's bisections still need at most, if memory grows with length as it should."""
        return sum(self._most_left(line) for line in self._lines(flavour))

    def edges(self) -> tuple[Edge, ...]:
        """Return every line's edge as far as it is known."""
        return tuple(self._edge(line) for line in self._results)

    def _lines(self, flavour: str) -> list[Line]:
        return [line for line in self._results if line[0] == flavour]

    def _cell(self, line: Line, index: int) -> Cell:
        return Cell(flavour=line[0], step=line[1], length_tokens=self._lengths[index])

    def _next(self, line: Line) -> int | None:
        if line in self._hopeless:
            return None
        return next_index({i: s is ProbeState.COMPLETED for i, s in self._results[line].items()}, len(self._lengths))

    def _most_left(self, line: Line) -> int:
        if self._next(line) is None:
            return 0
        low, high = bracket({i: s is ProbeState.COMPLETED for i, s in self._results[line].items()}, len(self._lengths))
        # Halving an open bracket of n lengths takes at most floor(log2 n) + 1 probes; one more looks below the edge.
        return (high - low - 1).bit_length() + 1

    def _edge(self, line: Line) -> Edge:
        results = self._results[line]
        low, high = bracket({i: s is ProbeState.COMPLETED for i, s in results.items()}, len(self._lengths))
        if self._next(line) is not None:
            limit = Limit.UNFINISHED
        elif high == len(self._lengths):
            limit = Limit.GRID
        else:
            limit = Limit.OOM if results[high] is ProbeState.PRUNED else Limit.FAILED

        def lengths(state: ProbeState) -> tuple[int, ...]:
            return tuple(self._lengths[i] for i in sorted(results) if results[i] is state)

        return Edge(
            flavour=line[0],
            step=line[1],
            length_tokens=self._lengths[low] if low >= 0 else None,
            limit=limit,
            completed_tokens=lengths(ProbeState.COMPLETED),
            oom_tokens=lengths(ProbeState.PRUNED),
            failed_tokens=lengths(ProbeState.FAILED),
            unchecked_tokens=tuple(self._lengths[i] for i in range(max(low, 0)) if i not in results),
        )


def bracket(ran: Mapping[int, bool], count: int) -> tuple[int, int]:
    """Return the largest index known to run below the smallest known not to, and that smallest one.

    Args:
        ran: Whether the probe at an index of the grid ran to its end.
        count: Lengths in the grid.

    Returns:
        ``(low, high)`` with ``-1 <= low < high <= count``; -1 and ``count`` stand for *none known*.
    """
    high = min((index for index, ok in ran.items() if not ok), default=count)
    low = max((index for index, ok in ran.items() if ok and index < high), default=-1)
    return low, high


def next_index(ran: Mapping[int, bool], count: int) -> int | None:
    """Return the index to probe next, or None once the edge is found and the length below it has been looked at."""
    low, high = bracket(ran, count)
    if high - low > 1:
        return (low + high) // 2
    below = low - 1
    return below if below >= 0 and below not in ran else None
