"""Programs as a Parquet table: one row a program, its parts as arrays of little-endian numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raysweep.errors import ArtifactError
from raysweep.memory.program import (
    FEATURES,
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
from raysweep.setting import StepSetting

_DTYPES = {"op": "<i1", "owner": "<i1", "index": "<i4", "size": "<f8", "label": "<i4", "work": "<f8"}
_SHAPES = {"size": (-1, FEATURES), "work": (len(Work), FEATURES)}
_FIXED = -1
"""The piece of a segment that does not depend on the length."""

_LABEL = pa.struct([("category", pa.string()), ("phase", pa.string()), ("layer", pa.int32()), ("op", pa.string())])
_PIECE = pa.struct(
    [
        ("first_tokens", pa.int64()),
        ("last_tokens", pa.int64()),
        ("host_block", pa.list_(pa.float64())),
        ("host_blocks", pa.int64()),
    ]
)
_SEGMENT = pa.struct(
    [
        ("piece", pa.int32()),
        ("name", pa.string()),
        ("survivors", pa.binary()),
        ("parts", pa.list_(pa.struct([(name, pa.binary()) for name in _DTYPES]))),
    ]
)

PROGRAMS_SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("step", pa.string()),
        ("max_tokens", pa.int64()),
        ("outside_kind", pa.string()),
        ("notes", pa.list_(pa.string())),
        ("versions", pa.string()),
        ("kernels", pa.string()),
        ("labels", pa.list_(_LABEL)),
        ("pieces", pa.list_(_PIECE)),
        ("padded_pieces", pa.list_(_PIECE)),
        ("segments", pa.list_(_SEGMENT)),
    ]
)
"""``step``, ``versions`` and ``kernels`` are JSON objects; ``size`` and ``work`` hold rows of (1, L, p, L^2, R).

A segment's ``piece`` counts the pieces, then the padded ones. Tables written before those were known lack their column.
"""


def table_of(programs: Iterable[Program]) -> pa.Table:
    """Return the programs as a table of ``PROGRAMS_SCHEMA``."""
    return pa.Table.from_pylist([_row(program) for program in programs], schema=PROGRAMS_SCHEMA)


def programs_of(table: pa.Table) -> tuple[Program, ...]:
    """Return the programs of a table.

    Raises:
        ArtifactError: a column is missing or a program contradicts itself.
    """
    try:
        return tuple(_program(row) for row in table.to_pylist())
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(
            f"programs.parquet: expected one program a row; one cannot be read ({error}). "
            "Forecast again from the space: raysweep forecast SPACE"
        ) from None


def _row(program: Program) -> dict[str, Any]:
    segments = [
        _segment_row(_FIXED, name, segment)
        for name, segment in (
            (SegmentName.SETUP, program.setup),
            (SegmentName.FIRST_STEP, program.first_step),
            (SegmentName.STEP, program.step_segment),
        )
    ]
    for number, piece in enumerate((*program.pieces, *program.padded_pieces)):
        segments += [_segment_row(number, name, segment) for name, segment in piece.segments.items()]
    return {
        "model": program.model,
        "step": json.dumps(program.step.to_dict(), sort_keys=True),
        "max_tokens": program.max_tokens,
        "outside_kind": program.outside_kind,
        "notes": list(program.notes),
        "versions": json.dumps(program.versions, sort_keys=True),
        "kernels": json.dumps(program.kernels, sort_keys=True),
        "labels": [
            {"category": label.category.name.lower(), "phase": label.phase, "layer": label.layer, "op": label.op}
            for label in program.labels
        ],
        "pieces": [_piece_row(piece) for piece in program.pieces],
        "padded_pieces": [_piece_row(piece) for piece in program.padded_pieces],
        "segments": segments,
    }


def _piece_row(piece: Piece) -> dict[str, Any]:
    return {
        "first_tokens": piece.first_tokens,
        "last_tokens": piece.last_tokens,
        "host_block": piece.host_block.tolist(),
        "host_blocks": piece.host_blocks,
    }


def _segment_row(piece: int, name: SegmentName, segment: Segment) -> dict[str, Any]:
    return {
        "piece": piece,
        "name": name.value,
        "survivors": segment.survivors.astype("<i4").tobytes(),
        "parts": [
            {column: getattr(part, column).astype(dtype).tobytes() for column, dtype in _DTYPES.items()}
            for part in segment.parts
        ],
    }


def _program(row: dict[str, Any]) -> Program:
    segments: dict[int, dict[SegmentName, Segment]] = {}
    for segment in row["segments"]:
        segments.setdefault(segment["piece"], {})[SegmentName(segment["name"])] = _segment(segment)
    fixed = segments[_FIXED]
    for segment in (s for named in segments.values() for s in named.values()):
        _check(segment, labels=len(row["labels"]))
    rows = [*row["pieces"], *(row.get("padded_pieces") or ())]
    pieces = tuple(_piece(piece, segments[number]) for number, piece in enumerate(rows))
    return Program(
        model=row["model"],
        step=StepSetting.from_dict(json.loads(row["step"])),
        max_tokens=row["max_tokens"],
        labels=tuple(
            Label(
                category=Category[label["category"].upper()], phase=label["phase"], layer=label["layer"], op=label["op"]
            )
            for label in row["labels"]
        ),
        setup=fixed[SegmentName.SETUP],
        first_step=fixed[SegmentName.FIRST_STEP],
        step_segment=fixed[SegmentName.STEP],
        pieces=pieces[: len(row["pieces"])],
        padded_pieces=pieces[len(row["pieces"]) :],
        outside_kind=row["outside_kind"],
        notes=tuple(row["notes"] or ()),
        versions=json.loads(row["versions"]),
        kernels=json.loads(row["kernels"]),
    )


def _piece(row: dict[str, Any], segments: dict[SegmentName, Segment]) -> Piece:
    return Piece(
        first_tokens=row["first_tokens"],
        last_tokens=row["last_tokens"],
        segments=segments,
        host_block=np.array(row["host_block"], np.float64),
        host_blocks=row["host_blocks"],
    )


def _segment(row: dict[str, Any]) -> Segment:
    parts = tuple(Part(**{column: _array(part[column], column) for column in _DTYPES}) for part in row["parts"])
    return Segment(parts=parts, survivors=np.frombuffer(row["survivors"], "<i4").reshape(-1, 2))


def _check(segment: Segment, *, labels: int) -> None:
    """Refuse columns that contradict each other."""
    for part in segment.parts:
        made = int(np.count_nonzero(part.op == Op.ALLOCATE))
        if not (len(part.owner) == len(part.index) == len(part.op)):
            raise ValueError(f"{len(part.op)} events, {len(part.owner)} owners, {len(part.index)} indices")
        if not (len(part.size) == len(part.label) == made):
            raise ValueError(f"{made} allocations, {len(part.size)} sizes, {len(part.label)} labels")
        if made and not 0 <= int(part.label.min()) <= int(part.label.max()) < labels:
            raise ValueError(f"labels up to {int(part.label.max())}, of {labels}")
        own = part.index[(part.op == Op.FREE) & (part.owner == Owner.OWN)]
        if len(own) and not 0 <= int(own.min()) <= int(own.max()) < made:
            raise ValueError(f"object {int(own.max())} freed, of {made}")


def _array(data: bytes, column: str) -> NDArray[Any]:
    array = np.frombuffer(data, _DTYPES[column])
    return array.reshape(_SHAPES[column]) if column in _SHAPES else array
