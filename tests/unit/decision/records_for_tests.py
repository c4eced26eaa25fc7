"""Records as probes would leave them, with only what a test is about spelt out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from raysweep.records import Measurement, ProbeRecord, ProbeState, Prune, Source
from raysweep.setting import StepSetting

STEP = StepSetting(accumulation=2)


def record(**changes: Any) -> ProbeRecord:
    """Return a completed, measured probe on one H200."""
    values: dict[str, Any] = {
        "probe_id": "p0",
        "sweep_id": "s0",
        "session_id": "t0",
        "source": Source.MEASURED,
        "model": "qwen2.5-7b",
        "step": STEP,
        "flavour": "hf/h200",
        "length_tokens": 4096,
        "state": ProbeState.COMPLETED,
        "measurement": measurement(),
        "device_name": "NVIDIA H200",
        "device_memory_bytes": 150_109_880_320,
        "started_at": datetime(2026, 9, 1, tzinfo=UTC),
        "probe_seconds": 20.0,
    }
    return ProbeRecord(**{**values, **changes})


def measurement(**changes: Any) -> Measurement:
    """Return what a probe saw: 30 GB allocated, 32 GB reserved, three steps of 2 s."""
    values: dict[str, Any] = {
        "peak_allocated_bytes": 30 * 10**9,
        "peak_reserved_bytes": 32 * 10**9,
        "outside_allocator_bytes": 900_000_000,
        "step_seconds": (2.0, 2.0, 2.0),
        "tokens_per_second": 4096.0,
    }
    return Measurement(**{**values, **changes})


def out_of_memory(**changes: Any) -> ProbeRecord:
    """Return a probe that was pruned: out of memory in its backward pass."""
    values: dict[str, Any] = {
        "state": ProbeState.PRUNED,
        "reason": "oom",
        "prune": Prune(phase="backward", requested_bytes=2 * 10**9),
        "measurement": measurement(step_seconds=(), tokens_per_second=None, peak_reserved_bytes=140 * 10**9),
    }
    return record(**{**values, **changes})
