"""Device memory outside the allocator: measured where a probe saw it, else the owner's number, else an allowance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cost.domain import Flavour
from raysweep.records import ProbeRecord, Source
from raysweep.setting import StepSetting

ALLOWANCE_BYTES = {"plain": 1_300_000_000, "linear-attention": 8_500_000_000}
"""By the program's ``outside_kind``. Seen: 0.55 GB on one A100, 0.8 to 1.2 GB on an H200; 8.0 GB once
flash-linear-attention's kernels ran."""


class OutsideSource(StrEnum):
    """Where a number of bytes outside the allocator comes from."""

    MEASURED = "measured"
    GIVEN = "given"
    """By the flavour's owner."""
    ALLOWANCE = "allowance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Bytes outside the allocator on one flavour, and where the number comes from."""

    size_bytes: int
    source: OutsideSource


def outside_of(flavour: Flavour, step: StepSetting, records: Iterable[ProbeRecord], *, allowance_bytes: int) -> Outside:
    """Return what lives outside the allocator on a flavour while a step runs.

    The most that any probe of the flavour saw with the same kind of step wins; a probe that was capped to stand for the
    flavour ran on another device, whose driver and context are its own.
    """
    seen = [
        record.measurement.outside_allocator_bytes
        for record in records
        if record.source is Source.MEASURED
        and record.flavour == flavour.name
        and record.memory_cap_bytes is None
        and _kind(record.step) == _kind(step)
        and record.measurement is not None
        and record.measurement.outside_allocator_bytes is not None
    ]
    if seen:
        return Outside(size_bytes=max(seen), source=OutsideSource.MEASURED)
    if flavour.outside_allocator_bytes is not None:
        return Outside(size_bytes=flavour.outside_allocator_bytes, source=OutsideSource.GIVEN)
    return Outside(size_bytes=allowance_bytes, source=OutsideSource.ALLOWANCE)


def _kind(step: StepSetting) -> tuple[str, ...]:
    """What decides which libraries' kernels and workspaces a step loads."""
    return (step.weights.value, step.attention.value, step.loss.value, step.optimizer.value)
