"""Rows of a data file, whatever its format: JSONL, Parquet, or a Hugging Face dataset saved to a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from raysweep.errors import DataError, nearest
from raysweep.paths import exists

Row = dict[str, Any]
COUNTS, IDS, TEXT, MESSAGES = "tokens", "input_ids", "text", "messages"
PROMPT, COMPLETION = "prompt", "completion"
LOSS_COUNTS, LABELS = "loss_tokens", "labels"


class Kind(StrEnum):
    """What the rows of a file hold, found from the columns of the first."""

    COUNTS = "tokens"
    IDS = "input_ids"
    TEXT = "text"
    MESSAGES = "messages"
    PROMPT = "prompt and completion"


COLUMNS: dict[Kind, tuple[str, ...]] = {
    Kind.COUNTS: (COUNTS, LOSS_COUNTS),
    Kind.IDS: (IDS, LABELS),
    Kind.MESSAGES: (MESSAGES, "tools"),
    Kind.PROMPT: (PROMPT, COMPLETION),
    Kind.TEXT: (TEXT,),
}
"""The columns of each kind, in the order in which kinds are looked for; other columns are left alone."""


def kind_of(columns: tuple[str, ...], where: str) -> Kind:
    """Return what rows with these columns hold.

    Raises:
        DataError: the columns are of no kind that can be counted.
    """
    for kind, names in COLUMNS.items():
        needed = names if kind is Kind.PROMPT else names[:1]
        if all(name in columns for name in needed):
            return kind
    known = (COUNTS, IDS, TEXT, MESSAGES, PROMPT, COMPLETION)
    hint = next((h for column in columns if column not in known and (h := nearest(column, known))), "")
    found = ", ".join(map(repr, columns)) or "nothing"
    pair = {PROMPT: COMPLETION, COMPLETION: PROMPT}
    if alone := next((column for column in columns if column in pair), None):
        raise DataError(f"{where}: expected {pair[alone]!r} beside {alone!r}, found {found}.{hint}")
    expected = "'tokens', 'text', 'messages', 'input_ids', or 'prompt' and 'completion'"
    raise DataError(f"{where}: expected {expected}, found {found}.{hint}")


class Format(StrEnum):
    """How rows are written."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    """Arrow's stream format, as Hugging Face's ``save_to_disk`` writes it."""


FORMATS = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
}
"""The format of a file by the end of its name."""
_NAMES_SHOWN = 5
"""Of what lies where a file was looked for: enough to see which folder it is."""
_BATCH_BYTES = 4 * 2**20
"""Long texts come in batches of about this size, so that progress moves and an interrupt is heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data file to read rows from.

    Attributes:
        path: The file or folder as given.
        files: The files that hold the rows, in order.
        format: How they are written.
    """

    path: Path
    files: tuple[Path, ...]
    format: Format

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.stat().st_size for file in self.files)


def open_source(path: Path) -> Source:
    """Return where the rows of a path lie.

    Raises:
        DataError: the path is missing, or of no known format.
    """
    if not exists(path):
        raise DataError(_missing(path))
    if path.is_dir():
        return Source(path=path, files=_dataset_files(path), format=Format.ARROW)
    if path.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise DataError(
            f"{path}: expected a file ending in {known}, or a folder of a saved dataset, found {path.suffix!r}"
        )
    return Source(path=path, files=(path,), format=FORMATS[path.suffix.lower()])


def _missing(path: Path) -> str:
    """Say where a path was looked for, and what is there instead."""
    # The first part that is not there: of a path into a misspelt folder that is the folder.
    gone = next((p for p in reversed((path, *path.parents)) if not exists(p)), path)
    beside = _names(gone.parent)
    # Names that share nothing but their ending are not near.
    stems = {Path(name).stem for name in beside if nearest(gone.stem, [Path(name).stem])}
    hint = nearest(gone.name, [name for name in beside if Path(name).stem in stems])
    if not hint and (data := [name for name in beside if Path(name).suffix.lower() in FORMATS]):
        hint = f" There: {', '.join(data[:_NAMES_SHOWN])}{', …' if len(data) > _NAMES_SHOWN else ''}."
    what = "" if gone == path else f": there is no {gone}"
    return (
        f"{path}: expected a data file, found nothing there{what}.{hint} A name in a search space is looked up from "
        f"the folder of the space's file, one after --data from the working directory, {Path.cwd()}."
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _dataset_files(folder: Path) -> tuple[Path, ...]:
    """Return the Arrow files of ``datasets.Dataset.save_to_disk``: state.json lists them."""
    splits = folder / "dataset_dict.json"
    if splits.exists():
        names = json.loads(splits.read_text(encoding="utf-8")).get("splits", [])
        folders = ", ".join(str(folder / name) for name in names)
        raise DataError(f"{folder}: expected one split of a saved dataset, found {len(names)}; name one of {folders}")
    state = folder / "state.json"
    if not state.exists():
        raise DataError(f"{folder}: expected a dataset saved with save_to_disk (a state.json in it), found none")
    try:
        data = json.loads(state.read_text(encoding="utf-8"))
        files = tuple(folder / entry["filename"] for entry in data["_data_files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: expected the state of a saved dataset with _data_files, found {error!r}") from error
    if data.get("_indices_data_files"):
        raise DataError(
            f"{folder}: expected rows in their stored order, found a selection of them; save it with flatten_indices()"
        )
    if missing := [file for file in files if not file.exists()]:
        raise DataError(f"{missing[0]}: expected the file that {state.name} names, found nothing there")
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows, where each stands, and how much of the source has been read."""

    file: Path
    unit: str
    """line or row, counted from 1."""
    numbers: Sequence[int]
    """The line or row of each."""
    rows: list[Row]
    done_bytes: int

    def where(self, index: int) -> str:
        """Return the file and the line or row of one of the batch's rows, for messages."""
        return f"{self.file}, {self.unit} {self.numbers[index]}"


def batches(source: Source, columns: tuple[str, ...], batch_items: int) -> Iterator[Batch]:
    """Yield the rows of a source in order; of Parquet and Arrow files the named columns alone are read.

    Raises:
        DataError: a row cannot be read.
    """
    done_bytes = 0
    for file in source.files:
        if source.format is Format.JSONL:
            yield from _jsonl(file, batch_items)
        else:
            yield from _arrow(file, source.format, columns, batch_items, done_bytes)
        done_bytes += file.stat().st_size


def first_columns(source: Source) -> tuple[str, ...]:
    """Return the columns of a source: a JSONL file's are its first row's.

    Raises:
        DataError: the source has no row.
    """
    if source.format is Format.JSONL:
        for batch in _jsonl(source.files[0], 1):
            return tuple(batch.rows[0])
        raise DataError(f"{source.path}: expected at least one item, found none")
    if not source.files:
        raise DataError(f"{source.path}: expected at least one item, found none")
    return tuple(_columns(source.files[0], source.format))


def _jsonl(file: Path, batch_items: int) -> Iterator[Batch]:
    rows: list[Row] = []
    numbers: list[int] = []
    done_bytes = given_bytes = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            done_bytes += len(line)
            if not line.strip():
                continue
            rows.append(_row(line, f"{file}, line {number}"))
            numbers.append(number)
            if len(rows) == batch_items or done_bytes - given_bytes >= _BATCH_BYTES:
                yield Batch(file=file, unit="line", numbers=numbers, rows=rows, done_bytes=done_bytes)
                rows, numbers, given_bytes = [], [], done_bytes
    if rows:
        yield Batch(file=file, unit="line", numbers=numbers, rows=rows, done_bytes=done_bytes)


def _row(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected UTF-8 text, found byte {line[error.start]:#04x}") from error
    except ValueError as error:
        raise DataError(f"{where}: expected one JSON object a line, found {_shown(line)} ({error})") from error
    except RecursionError:
        raise DataError(
            f"{where}: expected one JSON object a line, found one nested too deep: {_shown(line)}"
        ) from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected one JSON object a line, found {_shown(line)}")
    return row


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return repr(
        text if len(text) <= 60 else text[:57] + "…"
    )  # enough to find it by, and no more than a terminal's line


def _columns(file: Path, form: Format) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _expecting(file, form):
        if form is Format.PARQUET:
            return list(pq.read_schema(file).names)
        with pa.memory_map(str(file)) as mapped:
            return list(pa.ipc.open_stream(mapped).schema.names)


@contextmanager
def _expecting(file: Path, form: Format) -> Iterator[None]:
    import pyarrow as pa

    expected = "a Parquet file" if form is Format.PARQUET else "an Arrow stream, as save_to_disk writes"
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: expected {expected}, found {error}") from error


def record_batches(file: Path, form: Format, columns: tuple[str, ...], batch_items: int) -> Iterator[Any]:
    """Yield Arrow record batches of those of the named columns that the file has, of at most ``batch_items`` rows each.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    present = [name for name in _columns(file, form) if name in columns]
    with _expecting(file, form):
        if form is Format.PARQUET:
            yield from pq.ParquetFile(file).iter_batches(batch_size=batch_items, columns=present)
            return
        with pa.memory_map(str(file)) as mapped:
            for batch in pa.ipc.open_stream(mapped):
                chosen = batch.select(present)
                for start in range(0, chosen.num_rows, batch_items):
                    yield chosen.slice(start, batch_items)


def _arrow(file: Path, form: Format, columns: tuple[str, ...], batch_items: int, before_bytes: int) -> Iterator[Batch]:
    first = 1
    size_bytes = file.stat().st_size
    all_rows = _row_count(file, form)
    for batch in record_batches(file, form, columns, batch_items):
        rows = batch.to_pylist()
        last = first + len(rows) - 1
        # Rows lie compressed: where one stands in the file is told by its number.
        done_bytes = before_bytes + size_bytes * last // all_rows
        yield Batch(file=file, unit="row", numbers=range(first, last + 1), rows=rows, done_bytes=done_bytes)
        first = last + 1


def _row_count(file: Path, form: Format) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _expecting(file, form):
        if form is Format.PARQUET:
            return int(pq.read_metadata(file).num_rows)
        with pa.memory_map(str(file)) as mapped:
            return sum(batch.num_rows for batch in pa.ipc.open_stream(mapped))
