"""Traces at a few lengths, composed into one program that holds at every length between and beyond.

Corresponding events are matched one to one, sizes are fitted as polynomials of the length, and a micro-step with a
chunked loss is cut at its chunks so that the middle ones repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysweep.memory.program import (
    FEATURES,
    SEGMENTS,
    LabelTable,
    Owner,
    Part,
    Role,
    Segment,
    SegmentName,
    Work,
)
from raysweep.trace.recorder import ALLOCATE, EMPTY_CACHE, FREE, Event, Recorded
from raysweep.trace.tracing import Recording

TOLERANCE_BYTES = 0.5
"""A fitted size that is further than this from a traced one does not fit."""


class MismatchError(Exception):
    """Traces do not correspond: their lengths belong to different pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a micro-step is cut: the stretches of events with the role and the chunk of each."""

    stretches: tuple[tuple[Role, int, slice], ...]


def whole(recorded: Recorded) -> Cut:
    """Return the cut that leaves a segment in one body."""
    return Cut(stretches=((Role.BODY, 0, slice(0, len(recorded.events))),))


def at_chunks(recorded: Recorded) -> Cut:
    """Cut a micro-step of at least two loss chunks where each chunk's computation starts, forward and backward.

    Raises:
        MismatchError: the chunks do not run forward in order and backward in reverse.
    """
    count = recorded.chunks[0][2] if recorded.chunks else 0
    seen = [index for _, index, _ in recorded.chunks]
    if count < 2 or seen != [*range(count), *reversed(range(count))]:  # one chunk has no middle
        raise MismatchError(f"loss chunks ran in the order {seen}")
    places = [place for place, _, _ in recorded.chunks] + [len(recorded.events)]
    stretches = [(Role.BODY, 0, slice(0, places[0]))]
    for turn, (place, index, _) in enumerate(recorded.chunks):
        stretches.append((_role(index, count, backward=turn >= count), index, slice(place, places[turn + 1])))
    return Cut(stretches=tuple(stretches))


def _role(index: int, count: int, *, backward: bool) -> Role:
    if index == 0:
        return Role.BACKWARD_FIRST if backward else Role.FORWARD_FIRST
    if index == count - 1:
        return Role.BACKWARD_LAST if backward else Role.FORWARD_LAST
    return Role.BACKWARD_MIDDLE if backward else Role.FORWARD_MIDDLE


class Ownership:
    """Which segment and survivor rank each object of a recording has once its segment is over."""

    def __init__(self, recording: Recording) -> None:
        """Work out the survivors of every segment."""
        self.survivors: dict[SegmentName, list[int]] = {}
        self.rank: dict[int, tuple[SegmentName, int]] = {}
        for name, recorded in recording.segments.items():
            freed = {e.number for e in recorded.events if e.kind == FREE}
            alive = [e.number for e in recorded.events if e.kind == ALLOCATE and e.number not in freed]
            self.survivors[name] = alive
            self.rank |= {number: (name, rank) for rank, number in enumerate(alive)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """One stretch of one recording, its objects named by where they come from."""

    role: Role
    chunk: int
    kinds: NDArray[np.int8]
    owners: list[tuple[tuple[int, int], ...]]
    """Of each event: the ways to name its object, as (owner, index) of ``Part``."""
    sizes: NDArray[np.float64]
    labels: list[int]
    work: NDArray[np.float64]


def compose_segment(
    name: SegmentName,
    recordings: Sequence[Recording],
    features: NDArray[np.float64],
    table: LabelTable,
    *,
    cut: bool,
) -> Segment:
    """Compose one segment of several recordings.

    Args:
        name: the segment.
        recordings: traces at different lengths.
        features: (recordings, FEATURES): each one's (1, L, p, L^2).
        table: the program's labels, to which the recordings' labels are added.
        cut: whether to cut at the loss chunks.

    Raises:
        MismatchError: the recordings do not correspond.
    """
    cuts = [at_chunks(r.segments[name]) if cut else whole(r.segments[name]) for r in recordings]
    instances = [_instances(r, name, c, table) for r, c in zip(recordings, cuts, strict=True)]
    roles = list(Role) if cut else [Role.BODY]
    parts = [_part(role, instances, features) for role in roles]
    survivors = [_survivors(r, name, c) for r, c in zip(recordings, cuts, strict=True)]
    if any(s != survivors[0] for s in survivors):
        raise MismatchError(f"{name.value}: different objects outlive it")
    return Segment(parts=tuple(parts), survivors=np.array(survivors[0], np.int32).reshape(-1, 2))


def _survivors(recording: Recording, name: SegmentName, cut: Cut) -> list[tuple[int, int]]:
    recorded = recording.segments[name]
    freed = {e.number for e in recorded.events if e.kind == FREE}
    found = []
    for role, _, stretch in cut.stretches:
        number = 0
        for event in recorded.events[stretch]:
            if event.kind == ALLOCATE:
                if event.number not in freed:
                    if role in (Role.FORWARD_MIDDLE, Role.BACKWARD_MIDDLE):
                        raise MismatchError(f"{name.value}: an object of a middle loss chunk outlives the micro-step")
                    found.append((int(role), number))
                number += 1
    return found


def _instances(recording: Recording, name: SegmentName, cut: Cut, table: LabelTable) -> list[_Instance]:
    recorded = recording.segments[name]
    ownership = Ownership(recording)
    labels = recording.labels.labels()
    born: dict[int, tuple[int, int]] = {}
    leaving: list[dict[int, int]] = []
    result: list[_Instance] = []
    for place, (role, chunk, stretch) in enumerate(cut.stretches):
        owners: list[tuple[tuple[int, int], ...]] = []
        sizes: list[float] = []
        own_labels: list[int] = []
        events = recorded.events[stretch]
        leaving.append(_leaving(events, set(ownership.survivors[name])))
        for event in events:
            if event.kind == ALLOCATE:
                born[event.number] = (place, len(sizes))
                owners.append(((Owner.OWN, len(sizes)),))
                sizes.append(event.nbytes)
                own_labels.append(table.index(labels[event.label]))
            elif event.kind == EMPTY_CACHE:
                owners.append(((Owner.OWN, 0),))
            else:
                owners.append(_owner(event, place, cut=cut, born=born, leaving=leaving, ownership=ownership))
        result.append(
            _Instance(
                role=role,
                chunk=chunk,
                kinds=np.array([e.kind for e in events], np.int8),
                owners=owners,
                sizes=np.array(sizes, np.float64),
                labels=own_labels,
                work=_work(recorded, place, len(cut.stretches)),
            )
        )
    return result


def _leaving(events: list[Event], survivors: set[int]) -> dict[int, int]:
    """Number the objects that a later stretch of the segment frees, in order of allocation: so it names them."""
    freed = {e.number for e in events if e.kind == FREE}
    alive = [e.number for e in events if e.kind == ALLOCATE and e.number not in freed | survivors]
    return {number: rank for rank, number in enumerate(alive)}


def _owner(
    event: Event,
    place: int,
    *,
    cut: Cut,
    born: dict[int, tuple[int, int]],
    leaving: list[dict[int, int]],
    ownership: Ownership,
) -> tuple[tuple[int, int], ...]:
    """The ways to name a freed object, the most general first: traces with more chunks rule some of them out."""
    if event.number not in born:
        segment, rank = ownership.rank[event.number]
        return ((Owner.FOREIGN + SEGMENTS.index(segment), rank),)
    home, index = born[event.number]
    if home == place:
        return ((Owner.OWN, index),)
    role, chunk, _ = cut.stretches[home]
    index = leaving[home][event.number]
    ways = []
    if home == place - 1:
        ways.append((int(Owner.PREVIOUS), index))
    if role is not Role.BODY and role <= Role.FORWARD_LAST and cut.stretches[place][1] == chunk:
        ways.append((int(Owner.SAME_CHUNK), index))
    if role not in (Role.FORWARD_MIDDLE, Role.BACKWARD_MIDDLE):
        ways.append((Owner.PART + role, index))
    return tuple(ways)


def _work(recorded: Recorded, place: int, stretches: int) -> NDArray[np.float64]:
    if stretches == 1:
        total: NDArray[np.float64] = np.sum([*recorded.work.values(), [0.0] * len(Work)], axis=0)
        return total
    return np.array(recorded.work.get(place, [0.0] * len(Work)))


def _part(role: Role, recordings: list[list[_Instance]], features: NDArray[np.float64]) -> Part:
    """Fit one role's part from every instance of it in every recording."""
    rows: list[tuple[_Instance, NDArray[np.float64]]] = []
    for instances, row in zip(recordings, features, strict=True):
        rows += [(i, row) for i in instances if i.role is role]
    if not rows:
        raise MismatchError("no trace has a middle loss chunk")
    first = rows[0][0]
    for other, _ in rows[1:]:
        if not np.array_equal(first.kinds, other.kinds):
            raise MismatchError(f"{role.name}: the order of allocations and frees differs")
    owners = np.array([_common(ways, role) for ways in zip(*(i.owners for i, _ in rows), strict=True)], np.int32)
    design = np.array([row for _, row in rows])
    sizes = np.array([i.sizes for i, _ in rows])
    size, worst = fit(design, sizes)
    if worst > TOLERANCE_BYTES:
        raise MismatchError(f"{role.name}: sizes are no polynomial of the length (off by {worst:.0f} bytes)")
    work, _ = fit(design, np.array([i.work for i, _ in rows]), relative=True)
    owners = owners.reshape(-1, 2)
    return Part(
        op=first.kinds,
        owner=owners[:, 0].astype(np.int8),
        index=owners[:, 1].astype(np.int32),
        size=size,
        label=np.array(first.labels, np.int32),
        work=work,
    )


def _common(ways: tuple[tuple[tuple[int, int], ...], ...], role: Role) -> tuple[int, int]:
    """The way to name an object that serves in every instance of a part."""
    for way in ways[0]:
        if all(way in other for other in ways[1:]):
            return way
    raise MismatchError(f"{role.name}: other objects are freed")


def fit(
    design: NDArray[np.float64], values: NDArray[np.float64], *, relative: bool = False
) -> tuple[NDArray[np.float64], float]:
    """Fit each column as a polynomial with as few terms as serve: 1; then L; then p; then L^2.

    Args:
        design: (k, FEATURES).
        values: (k, m).
        relative: whether the tolerance is a millionth of the value instead of half a byte.

    Returns:
        (m, FEATURES) coefficients, and the largest residual.
    """
    columns = values.shape[1]
    result = np.zeros((columns, FEATURES))
    left = np.arange(columns)
    worst = 0.0
    for terms in map(list, ((0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 3), (0, 1, 2, 3))):
        if not len(left):
            break
        a = design[:, terms]
        scale = np.abs(a).max(axis=0)
        scale[scale == 0] = 1.0
        if np.linalg.matrix_rank(a / scale) < len(terms):
            continue
        solution = np.linalg.lstsq(a / scale, values[:, left], rcond=None)[0]
        residual = np.abs((a / scale) @ solution - values[:, left]).max(axis=0)
        tolerance = TOLERANCE_BYTES * (1 if not relative else 0) + 1e-6 * np.abs(values[:, left]).max(axis=0) * relative
        good = residual <= tolerance
        result[left[good][:, None], terms] = (solution[:, good] / scale[:, None]).T
        last, last_terms, last_scale = solution[:, ~good], terms, scale
        left = left[~good]
        worst = float(residual[~good].max()) if len(left) else 0.0
    if len(left):
        result[left[:, None], last_terms] = (last / last_scale[:, None]).T
    return result, worst
