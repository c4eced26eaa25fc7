"""What sessions and the sweep know about themselves, and how it makes an outcome a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from raysweep.records import Mode, ProbeRecord, Source
from raysweep.search.ledger import SECONDS_PER_HOUR
from raysweep.search.runner import Outcome, ProbeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What a session knows of its device."""

    name: str
    memory_bytes: int
    memory_cap_bytes: int | None
    source: Source
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFacts:
    """What every record of a sweep repeats."""

    sweep_id: str
    model: str
    seed: int
    prices_usd_per_hour: Mapping[str, float | None]
    """Per flavour, as the records show it."""
    gpu_counts: Mapping[str, int]


def record_of(
    sweep: SweepFacts,
    request: ProbeRequest,
    outcome: Outcome,
    device: DeviceFacts,
    *,
    session_id: str,
    flavour: str,
    started_at: datetime,
) -> ProbeRecord:
    """Return the record of a probe that has ended."""
    generates = request.mode is Mode.GENERATE
    return ProbeRecord(
        probe_id=request.probe_id,
        sweep_id=sweep.sweep_id,
        session_id=session_id,
        source=device.source,
        mode=request.mode,
        model=sweep.model,
        step=request.step,
        flavour=flavour,
        gpu_count=sweep.gpu_counts[flavour],
        length_tokens=None if generates else request.length_tokens or max(request.item_tokens),
        item_tokens=request.item_tokens,
        prompt_tokens=request.prompt_tokens,
        new_tokens=request.new_tokens,
        state=outcome.state,
        reason=outcome.reason,
        detail=outcome.detail,
        prune=outcome.prune,
        measurement=outcome.measurement,
        price_usd_per_hour=sweep.prices_usd_per_hour.get(flavour),
        device_name=device.name,
        device_memory_bytes=device.memory_bytes,
        memory_cap_bytes=device.memory_cap_bytes,
        versions=dict(device.versions),
        seed=sweep.seed,
        started_at=started_at,
        probe_seconds=outcome.probe_seconds,
        load_seconds=outcome.load_seconds,
    )


def spent_before(records: Iterable[ProbeRecord], charges_usd_per_hour: Mapping[str, float]) -> tuple[float, float]:
    """Return ``(usd, seconds)`` that the probes of an earlier run cost, as far as their records tell.

    A machine's idle time between probes is not in the records, so this is a lower bound.

    Args:
        records: The earlier run's.
        charges_usd_per_hour: What an hour of each flavour's session costs; a missing one costs nothing.
    """
    usd = seconds = 0.0
    for record in records:
        seconds += record.probe_seconds
        if record.source is Source.MEASURED:
            usd += charges_usd_per_hour.get(record.flavour, 0.0) * record.probe_seconds / SECONDS_PER_HOUR
    return usd, seconds
