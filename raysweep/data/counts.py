"""Token counts that a file already holds: as numbers, or as token ids with labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.data.items import MAX_TOKENS, Counts
from raysweep.data.rows import COUNTS, IDS, LABELS, LOSS_COUNTS, Format, Kind, Row, Source, batches, record_batches
from raysweep.errors import DataError

IGNORED_LABEL = -100
"""A label that bears no loss: torch.nn.functional.cross_entropy's ignore_index."""
_BATCH_ITEMS = 65_536
"""Rows read at once: large enough for arrays to pay, small enough for token ids to stay in memory."""


def read_counts(source: Source, kind: Kind) -> tuple[Counts, Counts | None]:
    """Return tokens and loss-bearing tokens of each row, shape [items]; None where every token bears loss.

    Raises:
        DataError: a row holds no such counts; the message names its line or row.
    """
    if source.format is Format.JSONL:
        quick = _quick_jsonl(source.path) if kind is Kind.COUNTS else None
        return quick or _slow(source, kind)
    return _arrow(source, kind)


def _quick_jsonl(path: Path) -> tuple[Counts, Counts | None] | None:
    """Return the counts of a well-formed file, or None where a row needs a closer look."""
    import pyarrow as pa
    import pyarrow.json as pj

    parse = pj.ParseOptions(
        explicit_schema=pa.schema([(COUNTS, pa.int64()), (LOSS_COUNTS, pa.int64())]),
        unexpected_field_behavior="ignore",
    )
    try:
        table = pj.read_json(path, parse_options=parse)
    except pa.ArrowException:
        return None
    tokens, loss = table[COUNTS], table[LOSS_COUNTS]
    if tokens.null_count or 0 < loss.null_count < len(loss):
        return None
    counts = tokens.to_numpy(), None if loss.null_count else loss.to_numpy()
    return None if _wrong(*counts).size else counts


def _slow(source: Source, kind: Kind) -> tuple[Counts, Counts | None]:
    tokens: list[int] = []
    loss: list[int] = []
    has_loss: bool | None = None
    for batch in batches(source, (), _BATCH_ITEMS):
        for index, row in enumerate(batch.rows):
            where = batch.where(index)
            count, loss_count = _given(row, where) if kind is Kind.COUNTS else _ids(row, where)
            if has_loss is None:
                has_loss = loss_count is not None
            if has_loss != (loss_count is not None):
                raise DataError(
                    f"{where}: expected {LOSS_COUNTS if kind is Kind.COUNTS else LABELS} in all items or in none"
                )
            tokens.append(count)
            if loss_count is not None:
                loss.append(loss_count)
    return np.array(tokens, dtype=np.int64), np.array(loss, dtype=np.int64) if has_loss else None


def _given(row: Row, where: str) -> tuple[int, int | None]:
    if COUNTS not in row:
        found = ", ".join(map(repr, row)) or "nothing"
        raise DataError(f"{where}: expected {COUNTS!r} as in the rows before, found {found}")
    tokens = _whole(row, COUNTS, 1, where)
    if row.get(LOSS_COUNTS) is None:
        return tokens, None
    loss = _whole(row, LOSS_COUNTS, 0, where)
    if loss > tokens:
        raise DataError(f"{where}, {LOSS_COUNTS}: expected at most its {tokens} tokens, found {loss}")
    return tokens, loss


def _whole(row: Row, key: str, least: int, where: str) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{where}, {key}: expected a whole number of {least} or more, found {value!r}")
    if value > MAX_TOKENS:
        raise DataError(f"{where}, {key}: expected at most {MAX_TOKENS:,} tokens an item, found {value:,}")
    return value


def _ids(row: Row, where: str) -> tuple[int, int | None]:
    ids, labels = row.get(IDS), row.get(LABELS)
    if not isinstance(ids, list) or not ids:
        raise DataError(f"{where}, {IDS}: expected a list of one token id or more, found {ids!r}")
    if labels is None:
        return len(ids), None
    if not isinstance(labels, list) or len(labels) != len(ids):
        found = f"{len(labels)} labels" if isinstance(labels, list) else repr(labels)
        raise DataError(f"{where}, {LABELS}: expected one label a token id ({len(ids)}), found {found}")
    return len(ids), len(labels) - labels.count(IGNORED_LABEL)


def _arrow(source: Source, kind: Kind) -> tuple[Counts, Counts | None]:
    names = (COUNTS, LOSS_COUNTS) if kind is Kind.COUNTS else (IDS, LABELS)
    read: Callable[[Any, str], Counts] = _numbers if kind is Kind.COUNTS else _lengths
    tokens: list[Counts] = []
    loss: list[Counts] = []
    for file in source.files:
        first = 1
        for batch in record_batches(file, source.format, names, _BATCH_ITEMS):
            where = f"{file}, rows {first} to {first + batch.num_rows - 1}"
            counts = read(batch.column(names[0]), f"{where}, {names[0]}")
            loss_counts = None
            if names[1] in batch.schema.names:
                column = batch.column(names[1])
                loss_counts = (
                    _numbers(column, f"{where}, {names[1]}") if kind is Kind.COUNTS else _bearing(column, counts, where)
                )
                loss.append(loss_counts)
            if (wrong := _wrong(counts, loss_counts)).size:
                row = int(wrong[0])
                found = (
                    f"{counts[row]}" if loss_counts is None else f"{counts[row]} with {loss_counts[row]} loss-bearing"
                )
                raise DataError(f"{file}, row {first + row}: expected 1 token or more, found {found}")
            tokens.append(counts)
            first += batch.num_rows
    if not tokens:
        raise DataError(f"{source.path}: expected at least one item, found none")
    return np.concatenate(tokens), np.concatenate(loss) if loss else None


def _numbers(column: Any, where: str) -> Counts:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) or column.null_count:
        found = f"{column.null_count} missing" if column.null_count else f"type {column.type}"
        raise DataError(f"{where}: expected a whole number in every row, found {found}")
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _lengths(column: Any, where: str) -> Counts:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)) or column.null_count:
        found = f"{column.null_count} missing" if column.null_count else f"type {column.type}"
        raise DataError(f"{where}: expected a list of numbers in every row, found {found}")
    return np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False), dtype=np.int64)


def _bearing(labels: Any, tokens: Counts, where: str) -> Counts:
    lengths = _lengths(labels, f"{where}, {LABELS}")
    if not np.array_equal(lengths, tokens):
        raise DataError(f"{where}, {LABELS}: expected one label a token id")
    bears = labels.flatten().to_numpy(zero_copy_only=False) != IGNORED_LABEL
    ends = np.cumsum(lengths)
    running = np.concatenate(([0], np.cumsum(bears)))
    return np.asarray(running[ends] - running[ends - lengths], dtype=np.int64)


def _wrong(tokens: Counts, loss: Counts | None) -> Counts:
    wrong = tokens < 1
    if loss is not None:
        wrong |= (loss < 0) | (loss > tokens)
    return np.flatnonzero(wrong)
