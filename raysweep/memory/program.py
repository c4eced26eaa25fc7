"""A *program*: what one training step allocates and frees, as plain data over the length.

A program is made from a few traces (``raysweep.trace``) and replayed at any length (``raysweep.memory.replay``). It has

- *segments*: loading (``setup``), the micro-step that makes the gradients (``first_micro`` the first time, ``micro``
  from then on), one that adds to them (``later_micro``), and the optimizer's step (``first_step``, which makes its
  state, and ``step``);
- *pieces*: ranges of lengths within which the micro-steps' events correspond one to one. Loading and the optimizer do
  not depend on the length;
- *parts*: a micro-step with a chunked loss is cut at its chunks, so that the middle ones can be repeated for any number
  of chunks;
- *padded pieces*, where they were asked for: the same for micro-steps whose items differ in length, so that all but the
  longest are padded and the model is given a mask. Their segments bear the same names, and leave what the others leave.

Every size is a polynomial of the length: ``bytes = c0 + c1 L + c2 p + c3 L^2 + c4 R``, L the tokens of one item, p the
tokens of the last, partial loss chunk, and R is L rounded up to ``GRAIN_TOKENS``. So are the operations that a segment
performs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysweep.setting import Loss, StepSetting

FEATURES = 5
"""Terms of a size: 1, L, p, L^2, R."""

GRAIN_TOKENS = 128
"""To which fused attention rounds the length of two buffers of its backward pass."""


class Category(IntEnum):
    """What an allocation is for: the components of a peak."""

    WEIGHTS = 0
    ADAPTER = 1
    GRADIENTS = 2
    OPTIMIZER = 3
    ACTIVATIONS = 4
    LOSS = 5
    WORKSPACE = 6


class SegmentName(StrEnum):
    """The stretches of a run."""

    SETUP = "setup"
    FIRST_MICRO = "first_micro"
    LATER_MICRO = "later_micro"
    MICRO = "micro"
    FIRST_STEP = "first_step"
    STEP = "step"


SEGMENTS = tuple(SegmentName)
MICRO_SEGMENTS = (SegmentName.FIRST_MICRO, SegmentName.LATER_MICRO, SegmentName.MICRO)
FIXED = (SegmentName.SETUP, SegmentName.FIRST_STEP, SegmentName.STEP)
"""Segments that do not depend on the length."""


class Op(IntEnum):
    """Kind of an event."""

    ALLOCATE = 0
    FREE = 1
    EMPTY_CACHE = 2


class Owner(IntEnum):
    """Where a freed object was allocated, as seen from the part that frees it.

    Values from ``FOREIGN`` on name a segment.
    """

    OWN = 0
    """This part."""
    PREVIOUS = 1
    """The part before this one."""
    SAME_CHUNK = 2
    """The forward part of the same loss chunk."""
    PART = 16
    """Plus a role: a part of this segment that occurs once."""
    FOREIGN = 32
    """Plus a segment's place in ``SEGMENTS``: the index then counts that segment's survivors."""


class Role(IntEnum):
    """Place of a part in a micro-step with a chunked loss; an uncut segment is one ``BODY``."""

    BODY = 0
    FORWARD_FIRST = 1
    FORWARD_MIDDLE = 2
    FORWARD_LAST = 3
    BACKWARD_LAST = 4
    """The last chunk is the first to be recomputed."""
    BACKWARD_MIDDLE = 5
    BACKWARD_FIRST = 6


class Work(IntEnum):
    """What is counted of a segment's operations."""

    FLOPS = 0
    """Of half-precision matrix products outside attention's quadratic part; two a multiply-add."""
    ATTENTION_FLOPS = 1
    """Of attention's quadratic part, the causal half alone."""
    BYTES = 2
    """Read and written by all other operations."""
    LAUNCHES = 3
    """Operations that start a kernel (a count)."""
    FP32_FLOPS = 4
    """Of matrix products in fp32, which run far below the bf16 peak; not among ``FLOPS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What is known of an allocation."""

    category: Category
    phase: str
    layer: int | None
    op: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A stretch of events: three columns over its n events, two over its m allocations, numbered as they occur."""

    op: NDArray[np.int8]
    owner: NDArray[np.int8]
    """Of a free: where its object was allocated."""
    index: NDArray[np.int32]
    """Of an allocation its number. Of a free: the object's number where the owner is this part, else its rank among
    those that leave the owner (``Segment.leaving``), or among a foreign segment's survivors."""
    size: NDArray[np.float64]
    """(m, FEATURES): bytes as coefficients."""
    label: NDArray[np.int32]
    """(m,): index into the program's labels."""
    work: NDArray[np.float64]
    """(len(Work), FEATURES): the operations performed."""

    @property
    def allocations(self) -> int:
        """How many allocations there are: m."""
        return int(self.size.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """The parts of one stretch of a run: one body, or the seven roles of a chunked micro-step."""

    parts: tuple[Part, ...]
    survivors: NDArray[np.int32]
    """(k, 2): role and number of each object that outlives the segment, in order of allocation."""

    def leaving(self, role: Role) -> NDArray[np.int64]:
        """The numbers of the objects of a part that a later part of the segment frees, in order of allocation."""
        part = self.parts[role]
        freed = part.index[(part.op == Op.FREE) & (part.owner == Owner.OWN)]
        kept = self.survivors[self.survivors[:, 0] == role, 1]
        return np.setdiff1d(np.arange(part.allocations), np.concatenate([freed, kept]))

    @property
    def is_cut(self) -> bool:
        """True where the loss chunks stand apart."""
        return len(self.parts) > 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """The micro-steps over a range of lengths."""

    first_tokens: int
    last_tokens: int
    segments: dict[SegmentName, Segment]
    host_block: NDArray[np.float64]
    """(FEATURES,): bytes of one layer's input kept in pinned host memory; zeros where none is kept there."""
    host_blocks: int
    """How many such blocks are held at once."""

    def covers(self, length_tokens: int) -> bool:
        """True where the piece is valid."""
        return self.first_tokens <= length_tokens <= self.last_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """What one step setting of one model allocates, at any length that its pieces cover."""

    model: str
    step: StepSetting
    max_tokens: int | None
    """The model's own longest sequence; None where its configuration names none."""
    labels: tuple[Label, ...]
    setup: Segment
    first_step: Segment
    step_segment: Segment
    pieces: tuple[Piece, ...]
    padded_pieces: tuple[Piece, ...] = ()
    """Of micro-steps in which an item is padded; none where those were not traced."""
    outside_kind: str = "plain"
    """Which allowance holds for memory outside the allocator: ``plain`` or ``linear-attention``."""
    notes: tuple[str, ...] = ()
    """What a reader of the forecast must know, such as that routing depends on values."""
    versions: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    """Which kernels were assumed: attention's path, for instance."""

    def piece(self, length_tokens: int, *, padded: bool = False) -> Piece:
        """Return the piece for a length.

        Args:
            length_tokens: of the longest item.
            padded: whether an item of the micro-step is padded. Where such micro-steps were not traced, they are taken
                for one of items that are all as long.

        Raises:
            KeyError: no piece covers it.
        """
        for piece in (*(self.padded_pieces if padded else ()), *self.pieces):
            if piece.covers(length_tokens):
                return piece
        covered = ", ".join(f"{p.first_tokens} to {p.last_tokens}" for p in self.pieces)
        raise KeyError(f"the program of {self.model} covers lengths {covered}, not {length_tokens}")

    def covers(self, length_tokens: int, *, padded: bool = False) -> bool:
        """True where some piece covers the length; padded: where one of micro-steps in which an item is padded does."""
        return any(p.covers(length_tokens) for p in (self.padded_pieces if padded else self.pieces))

    def segment(self, name: SegmentName, length_tokens: int, *, padded: bool = False) -> Segment:
        """Return a segment, for micro-steps that of the length's piece; arguments as ``piece``'s."""
        fixed = {
            SegmentName.SETUP: self.setup,
            SegmentName.FIRST_STEP: self.first_step,
            SegmentName.STEP: self.step_segment,
        }
        return fixed[name] if name in fixed else self.piece(length_tokens, padded=padded).segments[name]

    def chunks(self, length_tokens: int) -> tuple[int, int]:
        """Return the number of loss chunks and the tokens of the last one; (1, 0) where the loss is not chunked."""
        return loss_chunks(self.step, length_tokens)

    def host_bytes(self, length_tokens: int) -> int:
        """Return the pinned host memory that checkpoints take: every block is rounded up to a power of two.

        Source: aten/src/ATen/core/CachingHostAllocator.h, which serves a request from a block of the next power of two.
        """
        piece = self.piece(length_tokens)
        block_bytes = round(float(piece.host_block @ self.features(length_tokens)))
        return piece.host_blocks * (1 << (block_bytes - 1).bit_length()) if block_bytes else 0

    def features(self, length_tokens: int) -> NDArray[np.float64]:
        """Return (1, L, p, L^2, R)."""
        return features(self.step, length_tokens)


def loss_chunks(step: StepSetting, length_tokens: int) -> tuple[int, int]:
    """Return the number of loss chunks and the tokens of the last one; (1, 0) where the loss is not chunked."""
    if step.loss is not Loss.CHUNKED:
        return 1, 0
    tokens = step.micro_batch * (length_tokens - 1)
    count = max(1, -(-tokens // step.loss_chunk_tokens))
    return count, tokens - (count - 1) * step.loss_chunk_tokens


def features(step: StepSetting, length_tokens: int) -> NDArray[np.float64]:
    """Return the terms of a size at a length: (1, L, p, L^2, R)."""
    _, partial = loss_chunks(step, length_tokens)
    rounded = -(-length_tokens // GRAIN_TOKENS) * GRAIN_TOKENS
    return np.array([1.0, length_tokens, partial, float(length_tokens) ** 2, rounded])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat:
    """A segment laid out for one number of chunks: events in order, objects numbered for a table of handles.

    Objects 0 to k-1 are the segment's survivors; the rest are its own. A negative object -(s * 2^20 + r) - 1 is
    survivor r of segment s.
    """

    op: NDArray[np.int8]
    object: NDArray[np.int64]
    size: NDArray[np.float64]
    """(n, FEATURES); zeros where the event is no allocation."""
    label: NDArray[np.int32]
    """-1 where the event is no allocation."""
    objects: int
    survivors: int
    work: NDArray[np.float64]
    """(len(Work), FEATURES)."""


FOREIGN_STRIDE = 1 << 20


def flatten(segment: Segment, chunks: int) -> Flat:
    """Lay a segment out for a number of loss chunks (ignored where the segment is not cut).

    Raises:
        ValueError: a cut segment needs at least two chunks.
    """
    order = _order(segment, chunks)
    bases: dict[tuple[Role, int], int] = {}
    total = 0
    for role, chunk in order:
        bases[role, chunk] = total
        total += segment.parts[role].allocations
    once = {role: base for (role, _), base in bases.items()}
    number = _numbering(segment, once, total)
    leaving = {role: segment.leaving(role) for role in once}
    columns: list[tuple[NDArray[Any], ...]] = []
    for place, (role, chunk) in enumerate(order):
        part = segment.parts[role]
        objects = part.index + np.int64(bases[role, chunk])
        others: list[tuple[int, Role, int]] = [(Owner.PART + r, r, base) for r, base in once.items()]
        if place:
            before = order[place - 1]
            others.append((Owner.PREVIOUS, before[0], bases[before]))
        if role >= Role.BACKWARD_LAST:
            forward = _forward_of(order, chunk)
            others.append((Owner.SAME_CHUNK, forward, bases[forward, chunk]))
        for owner, other, base in others:
            theirs = part.owner == owner
            objects[theirs] = leaving[other][part.index[theirs]] + base
        foreign = part.owner >= Owner.FOREIGN
        real = (part.op != Op.EMPTY_CACHE) & ~foreign
        objects[real] = number[objects[real]]
        survivors_of = part.owner[foreign].astype(np.int64) - Owner.FOREIGN
        objects[foreign] = -(survivors_of * FOREIGN_STRIDE + part.index[foreign]) - 1
        size = np.zeros((len(part.op), FEATURES))
        label = np.full(len(part.op), -1, np.int32)
        size[part.op == Op.ALLOCATE] = part.size
        label[part.op == Op.ALLOCATE] = part.label
        columns.append((part.op, objects, size, label))
    op, objects, size, label = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Flat(
        op=op,
        object=objects,
        size=size,
        label=label,
        objects=total,
        survivors=len(segment.survivors),
        work=work_features(segment, chunks),
    )


def work_features(segment: Segment, chunks: int) -> NDArray[np.float64]:
    """Return a segment's work for a number of loss chunks, (len(Work), FEATURES), without laying it out.

    Raises:
        ValueError: as ``flatten``.
    """
    work: NDArray[np.float64] = np.sum([segment.parts[role].work for role, _ in _order(segment, chunks)], axis=0)
    return work


def _order(segment: Segment, chunks: int) -> list[tuple[Role, int]]:
    if segment.is_cut and chunks < 2:  # one chunk is first and last at once: a piece of its own
        raise ValueError("a segment cut at its chunks stands for two chunks or more")
    return _instances(chunks) if segment.is_cut else [(Role.BODY, 0)]


def _instances(chunks: int) -> list[tuple[Role, int]]:
    """The parts of a cut micro-step in the order in which they run, with their chunk."""
    middle = range(1, chunks - 1)
    return [
        (Role.BODY, 0),
        (Role.FORWARD_FIRST, 0),
        *((Role.FORWARD_MIDDLE, i) for i in middle),
        (Role.FORWARD_LAST, chunks - 1),
        (Role.BACKWARD_LAST, chunks - 1),
        *((Role.BACKWARD_MIDDLE, i) for i in reversed(middle)),
        (Role.BACKWARD_FIRST, 0),
    ]


def _forward_of(order: list[tuple[Role, int]], chunk: int) -> Role:
    return next(role for role, c in order if c == chunk and Role.BODY < role <= Role.FORWARD_LAST)


def _numbering(segment: Segment, once: dict[Role, int], total: int) -> NDArray[np.int64]:
    """Number survivors first, in order, then all other objects."""
    survivors = [once[Role(int(role))] + int(index) for role, index in segment.survivors]
    number = np.full(total, -1, np.int64)
    number[survivors] = np.arange(len(survivors))
    rest = number < 0
    number[rest] = np.arange(len(survivors), total)
    return number


class LabelTable:
    """Labels as they come, each kept once."""

    def __init__(self) -> None:
        """Start empty."""
        self._index: dict[Label, int] = {}
        self._labels: list[Label] = []

    def index(self, label: Label) -> int:
        """Return the label's place in the table, adding it where it is new."""
        place = self._index.setdefault(label, len(self._labels))
        if place == len(self._labels):
            self._labels.append(label)
        return place

    def label(self, index: int) -> Label:
        """Return the label at a place."""
        return self._labels[index]

    def labels(self) -> tuple[Label, ...]:
        """Return the table."""
        return tuple(self._labels)
