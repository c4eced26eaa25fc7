"""What the probes say about time: timings for the time model of each flavour and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from cost.domain import Flavour
from cost.evidence import Evidence
from cost.throughput import TimeModel, Timing, Work, fit, forecast
from raysweep.data.batching import micro_batches
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting


def timings_of(
    records: Iterable[ProbeRecord], flavour: Flavour, step: StepSetting, source: Source
) -> tuple[Timing, ...]:
    """Return the steady timings of a step on a flavour's own device, from probes of one source."""
    timings: list[Timing] = []
    for record in records:
        if record.source is source and record.step == step and _is_on(record, flavour):
            timings += _timings(record)
    return tuple(timings)


def _is_on(record: ProbeRecord, flavour: Flavour) -> bool:
    """Whether the probe's seconds are this flavour's: a device capped to stand for another keeps its own speed."""
    if record.mode is not Mode.TRAIN or record.state is not ProbeState.COMPLETED:
        return False
    if record.source is Source.SIMULATED or record.memory_cap_bytes is None:
        return record.flavour == flavour.name
    return flavour.device is not None and record.device_name == flavour.device.torch_device_name


def _timings(record: ProbeRecord) -> list[Timing]:
    seen = record.measurement
    if seen is None:
        return []
    if seen.micro_step_seconds:
        return _of_items(record, seen.micro_step_seconds)
    if record.length_tokens is None:
        return []
    lengths = [record.length_tokens] * record.step.accumulation
    return [Timing(work=Work.of(lengths, optimizer_steps=1), seconds=seconds) for seconds in seen.step_seconds]


def _of_items(record: ProbeRecord, seconds: Sequence[float]) -> list[Timing]:
    """One timing a micro-step of a data probe: a length not met before in it costs what only a new length costs."""
    lengths = micro_batches(np.array(record.item_tokens, dtype=np.int64), record.step.micro_batch).tolist()
    if len(lengths) != len(seconds):
        lengths = list(record.item_tokens)
    met: set[int] = set()
    timings: list[Timing] = []
    for length, taken in zip(lengths, seconds, strict=False):
        timings.append(Timing(work=Work.of([length], new_lengths=0 if length in met else 1), seconds=taken))
        met.add(length)
    return timings


def time_model(
    records: Sequence[ProbeRecord], flavour: Flavour, step: StepSetting, roofline: Sequence[Timing]
) -> TimeModel | None:
    """Return the seconds of a step on a flavour: from measured probes, else simulated ones, else a roofline; else None.

    Simulated seconds are a roofline's, so they are as uncertain as one.
    """
    if measured := timings_of(records, flavour, step, Source.MEASURED):
        return _fitted(measured)
    if simulated := timings_of(records, flavour, step, Source.SIMULATED):
        return replace(forecast(simulated), evidence=Evidence.SIMULATED)
    return forecast(roofline) if roofline else None


def _fitted(timings: Sequence[Timing]) -> TimeModel:
    lengths = {timing.work.tokens / timing.work.micro_steps for timing in timings}
    if len(lengths) > 1:
        return fit(timings, evidence=Evidence.MEASURED)
    # One length cannot tell a floor from a slope: carried to other lengths as a rate, the usual reading.
    tokens = sum(timing.work.tokens for timing in timings)
    rate = TimeModel.of_rate(tokens / sum(timing.seconds for timing in timings), evidence=Evidence.MEASURED)
    return replace(rate, longest_timed_tokens=round(lengths.pop()), assumed=("floor", "quadratic"))
