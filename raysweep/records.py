"""What one probe found, and the Parquet schema in which it is kept.

A probe measures one step at one length (or one sequence of lengths) on one flavour. Its record says what was run,
where, how it ended, and what was seen; a value that was not seen is None, never 0 or -1.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

from raysweep.setting import StepSetting

SCHEMA_VERSION = 1
"""Version of ``probes.parquet`` and ``programs.parquet``; a reader refuses a newer one."""


class ProbeState(StrEnum):
    """How a probe ended."""

    COMPLETED = "completed"
    """All its steps ran."""
    PRUNED = "pruned"
    """A result, not a fault: out of memory (reason ``oom``), or not worth its price (reason ``dominated``)."""
    FAILED = "failed"
    """It ended for a reason that says nothing of the setting: ``host_oom``, ``missing_kernel``, ``nan``, ``lost``, …"""


class Source(StrEnum):
    """Where a number comes from; every number that is shown carries one."""

    MEASURED = "measured"
    FORECAST = "forecast"
    SIMULATED = "simulated"
    PROJECTED = "projected"


class Mode(StrEnum):
    """What a probe runs."""

    TRAIN = "train"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a probe saw. Bytes are device bytes unless the name says host."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_allocator_bytes: int | None = None
    """Device memory in use that PyTorch's allocator does not manage; None where it was not measured."""
    allocation_retries: int = 0
    """How often the allocator had to free its cache and try again."""
    host_bytes: int | None = None
    """Pinned host memory for checkpoints (simulated), or the process's peak resident set (measured): libraries, the
    interpreter and pinned memory together, since Linux counts CUDA's pinned pages as resident shared ones. Seen with
    Linux 6.14, driver 570 and torch 2.9 (tristangrech's measurement for github.com/MakazhanAlpamys/Soup)."""
    pinned_host_bytes: int | None = None
    """The pinned part of a measured probe's, at its peak, as PyTorch's host allocator holds it: each block rounded up
    to a power of two, and so up to twice what ``checkpointing: cpu`` asks for. None where there is no CUDA."""
    first_step_seconds: tuple[float, ...] = ()
    """Optimizer steps that compile, tune or warm up; kept apart from the measured ones."""
    step_seconds: tuple[float, ...] = ()
    """Measured optimizer steps of ``accumulation`` micro-steps each, device-synchronised."""
    micro_step_seconds: tuple[float, ...] = ()
    """For a probe of the data's own lengths: one entry a micro-batch of ``item_tokens``, in order."""
    tokens_per_second: float | None = None
    """Median over the measured steps."""
    tokens_per_second_low: float | None = None
    tokens_per_second_high: float | None = None
    loaded_bytes: int | None = None
    """Device bytes allocated once the model was loaded, before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prune:
    """Where an out-of-memory probe stopped."""

    phase: str
    """load, forward, loss, backward, optimizer or generate."""
    requested_bytes: int | None = None
    """The allocation that failed, where the error names it."""
    item: int | None = None
    """Index from 0 of the item at which a data probe died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRecord:
    """One row of ``probes.parquet``."""

    probe_id: str
    sweep_id: str
    session_id: str
    source: Source
    mode: Mode = Mode.TRAIN
    model: str
    step: StepSetting
    flavour: str
    gpu_count: int = 1
    length_tokens: int | None
    """Tokens in one item; for a data probe the longest item's."""
    item_tokens: tuple[int, ...] = ()
    """The items of a data probe, in order; empty for a probe of one length."""
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    state: ProbeState
    reason: str | None = None
    """A short stable word: ``oom``, ``dominated``, ``host_oom``, ``missing_kernel``, ``nan``, ``lost``, ``error``."""
    detail: str | None = None
    """A sentence for people."""
    prune: Prune | None = None
    measurement: Measurement | None = None
    """None where nothing was seen; an out-of-memory probe still has the peaks that it reached."""
    price_usd_per_hour: float | None = None
    device_name: str
    """As the device names itself; a simulated probe names the device it simulates."""
    device_memory_bytes: int
    """Of the device that ran, or was simulated."""
    memory_cap_bytes: int | None = None
    """Set where the probe was capped, so that the device stands for a smaller one."""
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    started_at: datetime
    """UTC."""
    probe_seconds: float
    """Wall time of the probe, loading within it included."""
    load_seconds: float | None = None
    """Time to build and load the model, where this probe had to."""

    def __post_init__(self) -> None:
        """Refuse records that contradict themselves."""
        if self.state is ProbeState.COMPLETED and self.measurement is None:
            raise ValueError("a completed probe has a measurement")
        if self.state is not ProbeState.COMPLETED and not self.reason:
            raise ValueError(f"a {self.state} probe has a reason")


_SECONDS = pa.list_(pa.float64())
_MEASUREMENT = pa.struct(
    [
        ("peak_allocated_bytes", pa.int64()),
        ("peak_reserved_bytes", pa.int64()),
        ("outside_allocator_bytes", pa.int64()),
        ("allocation_retries", pa.int64()),
        ("host_bytes", pa.int64()),
        ("pinned_host_bytes", pa.int64()),
        ("first_step_seconds", _SECONDS),
        ("step_seconds", _SECONDS),
        ("micro_step_seconds", _SECONDS),
        ("tokens_per_second", pa.float64()),
        ("tokens_per_second_low", pa.float64()),
        ("tokens_per_second_high", pa.float64()),
        ("loaded_bytes", pa.int64()),
    ]
)
_PRUNE = pa.struct([("phase", pa.string()), ("requested_bytes", pa.int64()), ("item", pa.int64())])

PROBES_SCHEMA = pa.schema(
    [
        ("probe_id", pa.string()),
        ("sweep_id", pa.string()),
        ("session_id", pa.string()),
        ("source", pa.string()),
        ("mode", pa.string()),
        ("model", pa.string()),
        ("step", pa.string()),
        ("flavour", pa.string()),
        ("gpu_count", pa.int64()),
        ("length_tokens", pa.int64()),
        ("item_tokens", pa.list_(pa.int64())),
        ("prompt_tokens", pa.int64()),
        ("new_tokens", pa.int64()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("prune", _PRUNE),
        ("measurement", _MEASUREMENT),
        ("price_usd_per_hour", pa.float64()),
        ("device_name", pa.string()),
        ("device_memory_bytes", pa.int64()),
        ("memory_cap_bytes", pa.int64()),
        ("versions", pa.string()),
        ("seed", pa.int64()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("probe_seconds", pa.float64()),
        ("load_seconds", pa.float64()),
    ],
    metadata={"raysweep_schema_version": str(SCHEMA_VERSION)},
)
"""``step`` and ``versions`` are JSON objects; everything else has a column (or a struct field) of its own."""


def to_row(record: ProbeRecord) -> dict[str, Any]:
    """Return the record as one row of ``PROBES_SCHEMA``."""
    row = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    row["step"] = json.dumps(record.step.to_dict(), sort_keys=True)
    row["versions"] = json.dumps(record.versions, sort_keys=True)
    row["prune"] = dataclasses.asdict(record.prune) if record.prune else None
    row["measurement"] = dataclasses.asdict(record.measurement) if record.measurement else None
    return row


def from_row(row: dict[str, Any]) -> ProbeRecord:
    """Return the record of one row; a column that an older schema lacked takes its default."""
    known = {f.name for f in dataclasses.fields(ProbeRecord)}
    values = {name: value for name, value in row.items() if name in known}
    values["source"] = Source(values["source"])
    values["mode"] = Mode(values["mode"])
    values["state"] = ProbeState(values["state"])
    values["step"] = StepSetting.from_dict(json.loads(values["step"]))
    values["versions"] = json.loads(values["versions"])
    values["item_tokens"] = tuple(values.get("item_tokens") or ())
    values["prune"] = Prune(**values["prune"]) if values.get("prune") else None
    values["measurement"] = _measurement(values.get("measurement"))
    return ProbeRecord(**values)


def _measurement(row: dict[str, Any] | None) -> Measurement | None:
    if row is None:
        return None
    known = {f.name for f in dataclasses.fields(Measurement)}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in known}
    return Measurement(**values)
