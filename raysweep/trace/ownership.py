"""Which segment of a trace each object belongs to, and whether the segments can be played again and again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raysweep.errors import NotForecastError
from raysweep.memory.program import SEGMENTS, Category, Op, SegmentName
from raysweep.trace.recorder import EMPTY_CACHE, WORKSPACES, Recorded, freed
from raysweep.trace.tracing import Recording


def columns(recorded: Recorded) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Return each event's ``Op`` and its object's number (-1 where there is none)."""
    events = np.array(recorded.events, np.int64)
    op = np.full(len(events), Op.FREE, np.int8)
    op[events >= 0] = Op.ALLOCATE
    op[events == EMPTY_CACHE] = Op.EMPTY_CACHE
    number = np.where(op == Op.FREE, freed(events), events)
    return op, number


class Ownership:
    """Which segment each object of a recording belongs to, and its rank among those that outlive the segment."""

    def __init__(self, recording: Recording) -> None:
        """Work out the survivors of every segment."""
        self.survivors: dict[SegmentName, NDArray[np.int64]] = {}
        """Numbers, in order of allocation."""
        self.foreign: dict[SegmentName, NDArray[np.int64]] = {}
        """Numbers of the objects of earlier segments that a segment frees."""
        self.segment = np.full(len(recording.nbytes), -1, np.int16)
        """Of every object: its segment's place in ``SEGMENTS``."""
        self.rank = np.full(len(recording.nbytes), -1, np.int32)
        """Of every object: its rank among the survivors; -1 where it is none."""
        for name, recorded in recording.segments.items():
            op, number = columns(recorded)
            born, gone = number[op == Op.ALLOCATE], number[op == Op.FREE]
            alive = np.setdiff1d(born, gone)
            self.survivors[name] = alive
            self.foreign[name] = np.setdiff1d(gone, born)
            self.segment[born] = SEGMENTS.index(name)
            self.rank[alive] = np.arange(len(alive))


def is_alike(recording: Recording) -> bool:
    """Return whether the micro-step after an optimizer's step did as the first one, libraries' workspaces apart."""
    workspace = np.array([label.op in WORKSPACES for label in recording.labels])[recording.label]
    found = []
    for name in (SegmentName.FIRST_MICRO, SegmentName.MICRO):
        op, number = columns(recording.segments[name])
        kept = (number < 0) | ~workspace[number]
        op, number = op[kept], number[kept]
        born = number[op == Op.ALLOCATE]
        # Objects by their place among the segment's own; those of earlier segments by their number.
        own = np.isin(number, born)
        found.append((op, np.where(own, np.searchsorted(born, number), -1 - number), recording.nbytes[born]))
    return all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def check_repeats(recording: Recording) -> None:
    """Refuse a step that leaves behind what a replay, which plays its segments again and again, cannot carry on.

    The first micro-step and the first optimizer step are played once and may leave what they like. A later micro-step
    that makes gradients leaves those alone, and the optimizer's step frees them; a micro-step that adds to gradients
    leaves nothing.

    Raises:
        NotForecastError: the model keeps something from one step to the next.
    """
    ownership = Ownership(recording)
    nothing = np.zeros(0, np.int64)
    made = ownership.survivors[SegmentName.MICRO]
    category = np.array([label.category for label in recording.labels])[recording.label[made]]
    for name, kept, dropped in (
        (SegmentName.LATER_MICRO, nothing, nothing),
        (SegmentName.MICRO, made[category == Category.GRADIENTS], nothing),
        (SegmentName.STEP, nothing, made),
    ):
        if name not in recording.segments:
            continue
        survivors, foreign = ownership.survivors[name], ownership.foreign[name]
        if not (np.array_equal(survivors, kept) and np.array_equal(foreign, dropped)):
            other = np.concatenate([np.setxor1d(survivors, kept), np.setxor1d(foreign, dropped)])
            label = recording.labels[recording.label[other[0]]]
            raise NotForecastError(
                "The forecast expects a step that leaves nothing but gradients to the next; this model keeps or drops "
                f"{len(other)} other tensors from step to step (the first one made by {label.op} in {label.phase}). "
                "Measure it instead: `raysweep sweep SPACE --out FOLDER --device cuda`."
            )
