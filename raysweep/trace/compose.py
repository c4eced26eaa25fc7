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
    Label,
    LabelTable,
    Op,
    Owner,
    Part,
    Role,
    Segment,
    SegmentName,
    Work,
)
from raysweep.trace.ownership import Ownership, columns
from raysweep.trace.recorder import Recorded
from raysweep.trace.tracing import Recording

TOLERANCE_BYTES = 0.5
"""A fitted size that is further than this from a traced one does not fit."""


class MismatchError(Exception):
    """Traces do not correspond: their lengths belong to different pieces."""


class SizeMismatchError(MismatchError):
    """Events correspond, but their sizes fit no polynomial that these lengths could check."""


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


_WAYS = 3
"""Ways to name a freed object, the most general first: traces with more chunks rule some of them out.

The first column is the object's own part, a foreign segment or the previous part; the second the same chunk's forward
part; the third a part that occurs once.
"""
_NO_WAY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """One stretch of one recording, its objects named by where they come from."""

    role: Role
    op: NDArray[np.int8]
    owner: NDArray[np.int16]
    """(n, _WAYS): the ``Owner`` of each event's object by each way to name it; ``_NO_WAY`` where that way is barred."""
    index: NDArray[np.int32]
    """(n,): as ``Part.index``, whichever way the object is named."""
    size: NDArray[np.float64]
    label: NDArray[np.int32]
    labels: tuple[Label, ...]
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
        features: (recordings, FEATURES): each one's (1, L, p, L^2, R).
        table: the program's labels, to which the segment's labels are added.
        cut: whether to cut at the loss chunks.

    Raises:
        MismatchError: the recordings do not correspond.
    """
    stretched = [
        _Stretched(r, name, at_chunks(r.segments[name]) if cut else whole(r.segments[name])) for r in recordings
    ]
    instances = [s.instances() for s in stretched]
    survivors = [s.survivors() for s in stretched]
    parts = [_part(role, instances, features, table) for role in (list(Role) if cut else [Role.BODY])]
    if not all(np.array_equal(s, survivors[0]) for s in survivors):
        raise MismatchError(f"{name.value}: different objects outlive it")
    return Segment(parts=tuple(parts), survivors=survivors[0])


class _Stretched:
    """A segment of a recording with its cut: where each of its objects is allocated and freed."""

    def __init__(self, recording: Recording, name: SegmentName, cut: Cut) -> None:
        self.recording, self.name, self.cut = recording, name, cut
        self.recorded = recording.segments[name]
        self.ownership = Ownership(recording)
        self.op, self.number = columns(self.recorded)
        self.role = np.array([role for role, _, _ in cut.stretches], np.int16)
        self.chunk = np.array([chunk for _, chunk, _ in cut.stretches])
        count = len(recording.nbytes)
        self.home = np.full(count, -1, np.int32)
        """The stretch in which an object is allocated; -1 where that is in another segment."""
        self.own = np.zeros(count, np.int32)
        """Its number among its stretch's allocations."""
        self.leaving = np.zeros(count, np.int32)
        """Its rank among the objects of its stretch that a later stretch frees."""
        death = np.full(count, -1, np.int32)
        for place, (_, _, stretch) in enumerate(cut.stretches):
            made = self._numbers(stretch, Op.ALLOCATE)
            self.home[made] = place
            self.own[made] = np.arange(len(made))
            death[self._numbers(stretch, Op.FREE)] = place
        for place, (_, _, stretch) in enumerate(cut.stretches):
            made = self._numbers(stretch, Op.ALLOCATE)
            self.leaving[made] = np.cumsum((death[made] >= 0) & (death[made] != place)) - 1

    def _numbers(self, stretch: slice, op: Op) -> NDArray[np.int64]:
        numbers: NDArray[np.int64] = self.number[stretch][self.op[stretch] == op]
        return numbers

    def survivors(self) -> NDArray[np.int32]:
        """Return (k, 2): role and number of each object that outlives the segment."""
        numbers = self.ownership.survivors[self.name]
        roles = self.role[self.home[numbers]]
        if np.isin(roles, _MIDDLES).any():
            raise MismatchError(f"{self.name.value}: an object of a middle loss chunk outlives the micro-step")
        return np.stack([roles, self.own[numbers]], axis=1).astype(np.int32)

    def instances(self) -> list[_Instance]:
        """Return the stretches, their objects named."""
        return [self._instance(place, stretch) for place, (_, _, stretch) in enumerate(self.cut.stretches)]

    def _instance(self, place: int, stretch: slice) -> _Instance:
        op, number = self.op[stretch], self.number[stretch]
        made = self._numbers(stretch, Op.ALLOCATE)
        owner = np.full((len(op), _WAYS), _NO_WAY, np.int16)
        index = np.zeros(len(op), np.int32)
        owner[op != Op.FREE, 0] = Owner.OWN
        index[op == Op.ALLOCATE] = self.own[made]
        frees = np.flatnonzero(op == Op.FREE)
        home = self.home[number[frees]]
        foreign, inner, outer = frees[home < 0], frees[home == place], frees[(home >= 0) & (home != place)]
        owner[foreign, 0] = Owner.FOREIGN + self.ownership.segment[number[foreign]]
        index[foreign] = self.ownership.rank[number[foreign]]
        owner[inner, 0] = Owner.OWN
        index[inner] = self.own[number[inner]]
        index[outer] = self.leaving[number[outer]]
        home = self.home[number[outer]]
        role = self.role[home]
        is_forward = (role >= Role.FORWARD_FIRST) & (role <= Role.FORWARD_LAST)
        owner[outer, 0] = np.where(home == place - 1, Owner.PREVIOUS, _NO_WAY)
        same_chunk = is_forward & (self.chunk[home] == self.chunk[place])
        owner[outer, 1] = np.where(same_chunk, Owner.SAME_CHUNK, _NO_WAY)
        owner[outer, 2] = np.where(np.isin(role, _MIDDLES), _NO_WAY, Owner.PART + role)
        return _Instance(
            role=Role(int(self.role[place])),
            op=op,
            owner=owner,
            index=index,
            size=self.recording.nbytes[made].astype(np.float64),
            label=self.recording.label[made],
            labels=self.recording.labels,
            work=_work(self.recorded, place, len(self.cut.stretches)),
        )


_MIDDLES = (Role.FORWARD_MIDDLE, Role.BACKWARD_MIDDLE)


def _work(recorded: Recorded, place: int, stretches: int) -> NDArray[np.float64]:
    if stretches == 1:
        total: NDArray[np.float64] = np.sum([*recorded.work.values(), [0.0] * len(Work)], axis=0)
        return total
    return np.array(recorded.work.get(place, [0.0] * len(Work)))


def _part(role: Role, recordings: list[list[_Instance]], features: NDArray[np.float64], table: LabelTable) -> Part:
    """Fit one role's part from every instance of it in every recording."""
    rows: list[tuple[_Instance, NDArray[np.float64]]] = []
    for instances, row in zip(recordings, features, strict=True):
        rows += [(i, row) for i in instances if i.role is role]
    if not rows:
        raise MismatchError("no trace has a middle loss chunk")
    found = [i for i, _ in rows]
    first = found[0]
    if not all(np.array_equal(first.op, other.op) for other in found):
        raise MismatchError(f"{role.name}: the order of allocations and frees differs")
    design = np.array([row for _, row in rows])
    size, worst = fit(design, np.array([i.size for i in found]))
    if worst > TOLERANCE_BYTES:
        raise SizeMismatchError(f"{role.name}: sizes are no polynomial of the length (off by {worst:.0f} bytes)")
    work, _ = fit(design, np.array([i.work for i in found]), checked=False)
    used, place = np.unique(first.label, return_inverse=True)
    places = np.array([table.index(first.labels[i]) for i in used], np.int32)
    return Part(
        op=first.op, owner=_common_owner(role, found), index=first.index, size=size, label=places[place], work=work
    )


def _common_owner(role: Role, found: list[_Instance]) -> NDArray[np.int8]:
    """Name each object in the most general way that serves in every instance of a part."""
    first = found[0]
    serves = first.owner != _NO_WAY
    for other in found[1:]:
        serves &= (other.owner == first.owner) & (other.index == first.index)[:, None]
    if not serves.any(axis=1).all():
        raise MismatchError(f"{role.name}: other objects are freed")
    owner: NDArray[np.int8] = first.owner[np.arange(len(serves)), serves.argmax(axis=1)].astype(np.int8)
    return owner


_WHOLE = 1e-3
"""A coefficient this near to a whole number is that number."""

_TERMS = ((0,), (0, 1), (0, 4), (0, 2), (0, 1, 2), (0, 1, 3))
"""The sets of features tried, the simplest first: 1; L; R; p; L and p; L and L^2."""


def fit(
    design: NDArray[np.float64], values: NDArray[np.float64], *, checked: bool = True
) -> tuple[NDArray[np.float64], float]:
    """Fit each column as a polynomial of as few features as serve.

    Args:
        design: (k, FEATURES).
        values: (k, m).
        checked: whether there must be more lengths than terms, so that a fit can fail, and to half a byte; else to a
            millionth of the value.

    Returns:
        (m, FEATURES) coefficients, and the largest residual of those that do not fit: 0 where all do.
    """
    columns = values.shape[1]
    result = np.zeros((columns, FEATURES))
    left = np.arange(columns)
    lengths = len(np.unique(design, axis=0))
    worst = 0.0
    for terms in map(list, _TERMS):
        if not len(left):
            break
        a = design[:, terms]
        scale = np.abs(a).max(axis=0)
        scale[scale == 0] = 1.0
        too_many = len(terms) > 1 and len(terms) >= lengths + (0 if checked else 1)
        if too_many or np.linalg.matrix_rank(a / scale) < len(terms):
            continue
        solution = np.linalg.lstsq(a / scale, values[:, left], rcond=None)[0] / scale[:, None]
        if checked:
            # Bytes grow by whole bytes a token: what the solver adds to them would show far from the lengths fitted.
            solution = np.where(np.abs(solution - np.rint(solution)) < _WHOLE, np.rint(solution), solution)
        residual = np.abs(a @ solution - values[:, left]).max(axis=0)
        good = residual <= (TOLERANCE_BYTES if checked else 1e-6 * np.abs(values[:, left]).max(axis=0))
        result[left] = 0.0
        result[left[:, None], terms] = solution.T
        worst = float(residual[~good].max()) if not good.all() else 0.0
        left = left[~good]
    return result, worst
