"""Programs written by hand: small enough to know by heart what they reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysweep.memory.program import (
    FEATURES,
    SEGMENTS,
    Category,
    Label,
    Op,
    Owner,
    Part,
    Piece,
    Program,
    Segment,
    SegmentName,
    Work,
)
from raysweep.memory.study import Card
from raysweep.setting import StepSetting

MIB = 1 << 20
GB = 10**9
LABELS = (
    Label(category=Category.WEIGHTS, phase="load", layer=None, op="load"),
    Label(category=Category.ACTIVATIONS, phase="forward", layer=0, op="mm"),
    Label(category=Category.LOSS, phase="loss", layer=None, op="log_softmax"),
    Label(category=Category.GRADIENTS, phase="backward", layer=0, op="mm"),
    Label(category=Category.OPTIMIZER, phase="step", layer=None, op="zeros_like"),
)
WEIGHTS, ACTIVATION, LOGITS, GRADIENT, STATE = range(len(LABELS))


def _segment(
    sizes: Sequence[tuple[int, float, float]], frees: Sequence[int] = (), *, foreign: SegmentName | None = None
) -> Segment:
    """Allocate (label, bytes, bytes a token) in order, free the numbered ones, then the foreign segment's survivor."""
    ops = [Op.ALLOCATE] * len(sizes) + [Op.FREE] * len(frees)
    owners = [Owner.OWN] * len(ops)
    index = [*range(len(sizes)), *frees]
    if foreign is not None:
        ops.append(Op.FREE)
        owners.append(Owner.FOREIGN + SEGMENTS.index(foreign))  # type: ignore[arg-type]  # a value above the members
        index.append(0)
    size = np.zeros((len(sizes), FEATURES))
    for row, (_, fixed, per_token) in zip(size, sizes, strict=True):
        row[:2] = fixed, per_token
    part = Part(
        op=np.array(ops, np.int8),
        owner=np.array(owners, np.int8),
        index=np.array(index, np.int32),
        size=size,
        label=np.array([label for label, _, _ in sizes], np.int32),
        work=np.zeros((len(Work), FEATURES)),
    )
    kept = [number for number in range(len(sizes)) if number not in frees]
    return Segment(parts=(part,), survivors=np.array([(0, number) for number in kept], np.int32).reshape(-1, 2))


def _piece(first: int, last: int, per_token: float) -> Piece:
    work = [(ACTIVATION, 0, per_token / 2), (LOGITS, 0, per_token / 2)]
    made = _segment([*work, (GRADIENT, 16 * MIB, 0)], frees=(1, 0))
    added = _segment(work, frees=(1, 0))
    return Piece(
        first_tokens=first,
        last_tokens=last,
        segments={SegmentName.FIRST_MICRO: made, SegmentName.LATER_MICRO: added, SegmentName.MICRO: made},
        host_block=np.zeros(FEATURES),
        host_blocks=0,
    )


def program(
    pieces: Sequence[tuple[int, int, float]] = ((2, 4096, MIB),),
    *,
    step: StepSetting | None = None,
    weights_bytes: int = 1024 * MIB,
    max_tokens: int | None = 4096,
) -> Program:
    """Return a program: weights; per micro-step two equal tensors by the token; a gradient; the optimizer's state.

    Args:
        pieces: first and last length, and the bytes a token of both tensors together.
        step: its setting.
        weights_bytes: of the one weight.
        max_tokens: the model's own longest sequence.
    """
    return Program(
        model="handmade",
        step=step or StepSetting(accumulation=2),
        max_tokens=max_tokens,
        labels=LABELS,
        setup=_segment([(WEIGHTS, weights_bytes, 0)]),
        first_step=_segment([(STATE, 32 * MIB, 0)], foreign=SegmentName.FIRST_MICRO),
        step_segment=_segment([], foreign=SegmentName.MICRO),
        pieces=tuple(_piece(*piece) for piece in pieces),
    )


def card(name: str, memory_bytes: int, *, outside_bytes: int = 0, workspace_bytes: int = 32 * MIB) -> Card:
    """Return a card."""
    return Card(
        flavour=name,
        memory_bytes=memory_bytes,
        outside_bytes=outside_bytes,
        outside_is_allowance=False,
        workspace_bytes=workspace_bytes,
    )
