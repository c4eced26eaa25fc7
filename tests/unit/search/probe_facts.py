"""Records of probes that never ran, for policies to be told."""

from __future__ import annotations

from datetime import UTC, datetime

from raysweep.records import Measurement, Mode, ProbeRecord, ProbeState, Source
from raysweep.search.runner import ProbeRequest


def record_of(request: ProbeRequest, state: ProbeState, reason: str | None = None) -> ProbeRecord:
    """Return the record with which a request ended."""
    completed = state is ProbeState.COMPLETED
    return ProbeRecord(
        probe_id=request.probe_id,
        sweep_id="sweep",
        session_id="session",
        source=Source.SIMULATED,
        mode=request.mode,
        model="tiny",
        step=request.step,
        flavour=request.flavour,
        length_tokens=request.length_tokens
        if request.mode is Mode.TRAIN and not request.item_tokens
        else max(request.item_tokens, default=None),
        item_tokens=request.item_tokens,
        prompt_tokens=request.prompt_tokens,
        new_tokens=request.new_tokens,
        state=state,
        reason=reason or (None if completed else "oom"),
        measurement=Measurement(peak_allocated_bytes=1, peak_reserved_bytes=2) if completed else None,
        device_name="none",
        device_memory_bytes=1,
        started_at=datetime.now(tz=UTC),
        probe_seconds=0.1,
    )
