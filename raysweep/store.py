"""The artifact: a folder, local or on any fsspec URI, that keeps what a sweep found.

``probes.parquet`` has one row a probe, ``programs.parquet`` what each step allocates, ``items.parquet`` the token
counts of the run's data, ``prices.csv`` the price list that the sweep was given and ``sweep.json`` how far it came,
beside ``decision.json``, ``report.html`` and ``space.yaml`` as given. Nothing in it is a pickle. Every file is written
whole and then moved into place: a crash loses at most the probe in flight.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from raysweep.errors import ArtifactError
from raysweep.records import PROBES_SCHEMA, SCHEMA_VERSION, ProbeRecord, from_row, to_row

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

PROBES = "probes.parquet"
PROGRAMS = "programs.parquet"
ITEMS = "items.parquet"
DECISION = "decision.json"
REPORT = "report.html"
SPACE = "space.yaml"
SWEEP = "sweep.json"
PRICES = "prices.csv"
_VERSION_KEY = b"raysweep_schema_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStatus:
    """How far the sweep of an artifact came."""

    resume: str
    """What to type to go on with it."""
    probes_at_most: int
    """Of the whole sweep."""
    probes_left: int | None = None
    """At most, as the sweep left them; None while it runs, or where it was cut off."""

    def missing(self, kept: int) -> int:
        """Return how many probes are missing at most, of an artifact that keeps so many."""
        return max(0, self.probes_at_most - kept) if self.probes_left is None else self.probes_left


class Artifact:
    """One artifact folder. Open it with ``create`` or ``open``; one process at a time appends to it."""

    def __init__(self, uri: str, fs: AbstractFileSystem, root: str) -> None:
        """Hold a folder; callers use ``create`` and ``open``, which check it."""
        self.uri = uri
        self._fs = fs
        self._root = root.rstrip("/")
        self._rows: list[dict[str, Any]] | None = None

    @classmethod
    def create(cls, uri: str | Path, space_text: str) -> Self:
        """Make the folder, with the space as given and no probe yet.

        Raises:
            ArtifactError: the folder exists and is not empty (nothing is overwritten), or cannot be made.
        """
        artifact = cls.check_new(uri)
        with _refused(f"{uri}: the folder cannot be made"):
            artifact._fs.makedirs(artifact._root, exist_ok=True)
        artifact._write(SPACE, space_text.encode())
        artifact._rows = []
        artifact._write_probes()
        return artifact

    @classmethod
    def check_new(cls, uri: str | Path) -> Self:
        """Look whether ``create`` may make this artifact; nothing is written.

        Raises:
            ArtifactError: the folder exists and is not empty, or a file is in its place.
        """
        artifact = cls._at(uri)
        with _refused(f"{uri}: the folder cannot be looked into"):
            if artifact._fs.exists(artifact._root):
                if not artifact._fs.isdir(artifact._root):
                    raise ArtifactError(f"{uri}: expected a new or empty folder for the artifact; it is a file.")
                if artifact._fs.ls(artifact._root, detail=False):
                    raise ArtifactError(
                        f"{uri}: expected a new or empty folder for the artifact; it is not empty, and nothing is "
                        f"overwritten. Name another folder, or add --resume to go on with the sweep in it."
                    )
        return artifact

    @classmethod
    def open(cls, uri: str | Path) -> Self:
        """Open an artifact that exists.

        Raises:
            ArtifactError: there is no such folder, or it is not an artifact.
        """
        artifact = cls._at(uri)
        with _refused(f"{uri}: the artifact cannot be read"):
            if not artifact._fs.isdir(artifact._root):
                what = "it is a file" if artifact._fs.exists(artifact._root) else "there is no such folder"
                raise ArtifactError(
                    f"{uri}: expected an artifact folder; {what}. Make one with: raysweep sweep SPACE --out {uri}"
                )
            for name in (PROBES, SPACE):
                if not artifact.has(name):
                    raise ArtifactError(f"{uri}: expected an artifact; {name} is missing from the folder.")
        return artifact

    @classmethod
    def _at(cls, uri: str | Path) -> Self:
        if not str(uri).strip():  # as of a variable that is not set: it is not the working directory
            raise ArtifactError(f"expected an artifact's folder or fsspec URI; {uri!r} came.")
        try:
            fs, root = fsspec.core.url_to_fs(str(uri))
        except (ValueError, ImportError, OSError) as error:
            raise ArtifactError(
                f"{uri}: expected a folder or an fsspec URI such as s3://bucket/folder; {error}."
            ) from None
        return cls(str(uri), fs, root)

    def append(self, record: ProbeRecord) -> None:
        """Add one probe. The file is replaced in one move: a reader sees all probes before it, or all with it."""
        rows = self._probe_rows()
        rows.append(to_row(record))
        try:
            self._write_probes()
        except BaseException:
            # What memory holds stays what the file holds, so that a caller who tries again does not add it twice.
            rows.pop()
            raise

    def records(self) -> tuple[ProbeRecord, ...]:
        """Return every probe, in the order in which they ended.

        Raises:
            ArtifactError: the file is damaged, of a newer schema, or holds rows that contradict themselves.
        """
        try:
            return tuple(from_row(row) for row in self._probe_rows())
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{self._name(PROBES)}: expected rows of probes; one cannot be read ({error}). "
                "Put a whole copy in its place, or sweep again into another folder."
            ) from None

    def write_programs(self, table: pa.Table) -> None:
        """Keep what each step allocates; ``raysweep.memory`` defines the columns."""
        self._write_table(PROGRAMS, table)

    def programs_table(self) -> pa.Table | None:
        """Return what ``write_programs`` kept, or None where the sweep kept none."""
        return self._read_table(PROGRAMS) if self.has(PROGRAMS) else None

    def write_items(self, table: pa.Table) -> None:
        """Keep the token counts of the run's data, so that a projection needs the artifact alone."""
        self._write_table(ITEMS, table)

    def items_table(self) -> pa.Table | None:
        """Return what ``write_items`` kept, or None where the space named no data."""
        return self._read_table(ITEMS) if self.has(ITEMS) else None

    def write_prices(self, text: str) -> None:
        """Keep the price list that the sweep was given, so that a decision knows its cards and prices."""
        self._write(PRICES, text.encode())

    def prices_text(self) -> str | None:
        """Return the price list that ``write_prices`` kept, or None where the sweep was given none."""
        if not self.has(PRICES):
            return None
        try:
            return self._read(PRICES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ArtifactError(f"{self._name(PRICES)}: expected CSV text in UTF-8; the file is damaged.") from None

    def write_sweep_status(self, status: SweepStatus) -> None:
        """Keep how far the sweep came."""
        self._write(SWEEP, json.dumps({"schema_version": SCHEMA_VERSION, **asdict(status)}, indent=2).encode())

    def sweep_status(self) -> SweepStatus | None:
        """Return how far the sweep came, or None where the artifact does not say.

        Raises:
            ArtifactError: the file is damaged or of a newer schema.
        """
        if not self.has(SWEEP):
            return None
        try:
            kept = json.loads(self._read(SWEEP))
            version = kept["schema_version"]
            left = kept["probes_left"]
            status = SweepStatus(
                resume=str(kept["resume"]),
                probes_at_most=int(kept["probes_at_most"]),
                probes_left=None if left is None else int(left),
            )
        except (ValueError, KeyError, TypeError):
            raise ArtifactError(f"{self._name(SWEEP)}: expected a sweep's status in JSON; it is damaged.") from None
        _check_version(version, self._name(SWEEP))
        return status

    def write_decision(self, decision: dict[str, Any]) -> None:
        """Keep the decision, as JSON, in place of an earlier one.

        Raises:
            ArtifactError: the one that is there is of a newer schema; it stays.
        """
        if self.has(DECISION):
            self._keep_newer()
        text = json.dumps({"schema_version": SCHEMA_VERSION, **decision}, indent=2, allow_nan=False)
        self._write(DECISION, text.encode())

    def decision(self) -> dict[str, Any] | None:
        """Return the decision that was kept last, or None where nothing was decided yet."""
        if not self.has(DECISION):
            return None
        try:
            decision: dict[str, Any] = json.loads(self._read(DECISION))
            version = decision["schema_version"]
        except (ValueError, KeyError, TypeError):
            raise ArtifactError(f"{self._name(DECISION)}: expected a decision in JSON; the file is damaged.") from None
        _check_version(version, self._name(DECISION))
        return decision

    def _keep_newer(self) -> None:
        try:
            kept = json.loads(self._read(DECISION))
        except ValueError:
            return  # a damaged decision is worth nothing
        if isinstance(kept, dict) and isinstance(kept.get("schema_version"), int):
            _check_version(kept["schema_version"], self._name(DECISION))

    def space_text(self) -> str:
        """Return the search space, as it was given."""
        try:
            return self._read(SPACE).decode()
        except UnicodeDecodeError:
            raise ArtifactError(f"{self._name(SPACE)}: expected YAML text in UTF-8; the file is damaged.") from None

    def write_report(self, html: str) -> str:
        """Keep the report page and return where it lies."""
        self._write(REPORT, html.encode())
        return self._name(REPORT)

    def _probe_rows(self) -> list[dict[str, Any]]:
        if self._rows is None:
            # A column that an older schema lacked takes its default; these two have no null that could stand for it.
            older = {"mode": "train", "versions": "{}"}
            self._rows = [{**older, **row} for row in self._read_table(PROBES).to_pylist()]
        return self._rows

    def _write_probes(self) -> None:
        try:
            table = pa.Table.from_pylist(self._probe_rows(), schema=PROBES_SCHEMA)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ArtifactError(f"{self._name(PROBES)}: the probe cannot be kept ({error}).") from None
        self._write_table(PROBES, table)

    def _write_table(self, name: str, table: pa.Table) -> None:
        metadata = {**(table.schema.metadata or {}), _VERSION_KEY: str(SCHEMA_VERSION).encode()}
        sink = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(metadata), sink)
        self._write(name, sink.getvalue())

    def _read_table(self, name: str) -> pa.Table:
        data = self._read(name)
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
            _check_version(version, self._name(name))
            return file.read()
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ArtifactError(
                f"{self._name(name)}: expected a Parquet file; it is damaged or cut ({reason}). "
                "Put a whole copy in its place, or sweep again into another folder."
            ) from None

    def has(self, name: str) -> bool:
        """Whether the folder holds a file of this name, such as ``PROGRAMS``."""
        return bool(self._fs.isfile(f"{self._root}/{name}"))

    def _read(self, name: str) -> bytes:
        if not self.has(name):
            raise ArtifactError(f"{self.uri}: expected an artifact; {name} is missing from the folder.")
        with _refused(f"{self._name(name)}: cannot be read"):
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def _write(self, name: str, data: bytes) -> None:
        target = f"{self._root}/{name}"
        with _refused(f"{self._name(name)}: cannot be written"):
            if not isinstance(self._fs, LocalFileSystem):
                # One put of a whole object is atomic on object stores, and a move there is a copy.
                self._fs.pipe_file(target, data)
                return
            temporary = Path(f"{target}.{uuid.uuid4().hex}.tmp")
            try:
                with temporary.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)

    def _name(self, name: str) -> str:
        return f"{self.uri.rstrip('/')}/{name}"


@contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn what the file system raises into an ``ArtifactError`` that begins with what failed."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError of an address that the file system cannot take apart
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ArtifactError(f"{what}: {reason.rstrip('.')}.") from None


def _check_version(version: bytes | int | None, name: str) -> None:
    try:
        number = int(version or b"")
    except (TypeError, ValueError):
        raise ArtifactError(f"{name}: expected a file of raysweep's; it names no schema version.") from None
    if number > SCHEMA_VERSION:
        raise ArtifactError(
            f"{name}: expected schema version {SCHEMA_VERSION} or older; {number} came, from a newer raysweep. "
            f"Read it with that version: pip install --upgrade raysweep"
        )
