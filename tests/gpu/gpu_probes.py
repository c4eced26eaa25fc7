"""Probes of this process as records, and records held against their forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
from gpu_card import compute_capability

from raysweep.records import ProbeRecord
from raysweep.search.runner import ProbeRequest, Runner
from raysweep.setting import AllocatorSetting
from raysweep.sweep.facts import DeviceFacts, SweepFacts, record_of
from raysweep.trace.build import model_program

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from raysweep.decision.verification import Verification

ALLOCATED_SHARE, RESERVED_SHARE = 0.003, 0.005
"""How far a forecast peak may be off: what an H200 showed of six families, and the margins of its reference tests."""


def probed(runner: Runner, request: ProbeRequest) -> ProbeRecord:
    """Run a probe in this process and return its record."""
    started_at = datetime.now(UTC)
    outcome = runner.run(request)
    device = DeviceFacts(
        name=runner.device_name,
        memory_bytes=runner.device_memory_bytes,
        memory_cap_bytes=runner.memory_cap_bytes,
        source=runner.source,
        versions=runner.versions,
    )
    flavour = request.flavour
    sweep = SweepFacts(
        sweep_id="test", model="small", seed=0, prices_usd_per_hour={flavour: None}, gpu_counts={flavour: 1}
    )
    return record_of(sweep, request, outcome, device, session_id="test", flavour=flavour, started_at=started_at)


def requested_peak_bytes() -> int:
    """Return the most that tensors asked for at once in the last probe.

    Allocated are the bytes of the blocks that serve them, each up to 1 MiB larger; which block does hangs on addresses.
    """
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def held_against_forecast(
    records: Sequence[ProbeRecord], config: PretrainedConfig, outside_bytes: Mapping[str, int | None] | None = None
) -> Verification:
    """Forecast every record again, from a trace of its step at its own lengths, on this very chip.

    Args:
        records: of one model.
        config: that model's.
        outside_bytes: see ``raysweep.decision.verification.verify``.
    """
    from raysweep.decision.verification import needed_lengths, verify  # not before it is known that numba is there

    programs = {
        step: model_program("small", config, step, lengths) for step, lengths in needed_lengths(records).items()
    }
    capabilities = {torch.cuda.get_device_name(): compute_capability()}
    return verify(records, programs, AllocatorSetting(), capabilities=capabilities, outside_bytes=outside_bytes)


def agree(found: Verification) -> None:
    """Hold both peaks of every probe that ran to the margins, and the end of every other one to its forecast."""
    for check in found.peaks:
        assert abs(check.allocated_error_share) <= ALLOCATED_SHARE, check
        assert abs(check.reserved_error_share) <= RESERVED_SHARE or check.reserved_beyond_share == 0, check
    for outcome in found.outcomes:
        assert outcome.agrees, outcome
        assert outcome.failure is not None and outcome.record.prune is not None
        assert outcome.failure.moment.phase == outcome.record.prune.phase
        if outcome.record.item_tokens:
            assert outcome.failure.moment.item == outcome.record.prune.item
