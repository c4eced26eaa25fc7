"""What the probes say about time: timings for the time model of each flavour and step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost.domain import Flavour
from cost.evidence import Evidence
from cost.holds import fit_holds
from cost.throughput import TimeModel, Timing, Work, micro_step_timings
from cost.time_fit import forecast
from raysweep.data.batching import micro_batches
from raysweep.records import Measurement, Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What the probes of one flavour and step timed."""

    holds: tuple[tuple[Timing, ...], ...]
    """Steady timings, those of one session together: one machine, held once."""
    optimizer_step_seconds: float | None
    """Median where an optimizer step could be timed apart from its micro-steps: in data probes."""
    warm_up_seconds: float
    """Median over the sessions of what a process's first steps, whichever step's, took beyond steady ones; else 0."""

    @property
    def timings(self) -> tuple[Timing, ...]:
        """All of them."""
        return tuple(timing for timings in self.holds for timing in timings)


def timed(records: Iterable[ProbeRecord], flavour: Flavour, step: StepSetting, source: Source) -> Timed:
    """Return the steady timings of a step on a flavour's own device, from probes of one source."""
    holds: dict[str, list[Timing]] = {}
    met: dict[str, set[int]] = {}
    optimizer_steps: list[float] = []
    warm_ups: list[float] = []
    ordered = sorted((r for r in records if r.source is source and r.mode is Mode.TRAIN), key=lambda r: r.started_at)
    for record in ordered:
        first_of_session = record.session_id not in met
        seen = met.setdefault(record.session_id, set())
        if record.step == step and _is_on(record, flavour) and record.measurement is not None:
            holds.setdefault(record.session_id, []).extend(_timings(record, record.measurement, seen))
            optimizer_steps += _optimizer_steps(record, record.measurement)
        if (
            first_of_session
            and _is_on(record, flavour)
            and record.measurement
            and record.measurement.first_step_seconds
        ):
            warm_ups.append(_warm_up(record, record.measurement))
        seen |= _shapes(record)
    return Timed(
        holds=tuple(tuple(timings) for timings in holds.values() if timings),
        optimizer_step_seconds=statistics.median(optimizer_steps) if optimizer_steps else None,
        warm_up_seconds=statistics.median(warm_ups) if warm_ups else 0.0,
    )


def _is_on(record: ProbeRecord, flavour: Flavour) -> bool:
    """Whether the probe's seconds are this flavour's: a device capped to stand for another keeps its own speed."""
    if record.state is not ProbeState.COMPLETED:
        return False
    if record.source is Source.SIMULATED or record.memory_cap_bytes is None:
        return record.flavour == flavour.name
    return flavour.device is not None and record.device_name == flavour.device.torch_device_name


def _micro_batch_tokens(record: ProbeRecord) -> list[int]:
    """Padded length of each micro-batch of a data probe."""
    padded = micro_batches(np.array(record.item_tokens, dtype=np.int64), record.step.micro_batch)
    return [int(tokens) for tokens in padded]


def _shapes(record: ProbeRecord) -> set[int]:
    """Tokens of the micro-batches that a probe's process has met: libraries choose their kernels by these."""
    if record.item_tokens:
        done = None if record.prune is None or record.prune.item is None else record.prune.item
        lengths = _micro_batch_tokens(record)[: None if done is None else done // record.step.micro_batch + 1]
    else:
        lengths = [] if record.length_tokens is None else [record.length_tokens]
    return {length * record.step.micro_batch for length in lengths}


def _timings(record: ProbeRecord, seen: Measurement, met: set[int]) -> tuple[Timing, ...]:
    """Return a probe's timings: a micro-step each of a data probe, else an optimizer step each."""
    if seen.micro_step_seconds:
        return _of_micro_steps(record, seen.micro_step_seconds, met)
    if record.length_tokens is None or record.item_tokens:
        return ()
    work = Work.of([record.length_tokens] * record.step.accumulation, optimizer_steps=1)
    return tuple(Timing(work=work, seconds=seconds) for seconds in seen.step_seconds)


def _of_micro_steps(record: ProbeRecord, seconds: Sequence[float], met: set[int]) -> tuple[Timing, ...]:
    """A length that its process has not met before costs what only a new length costs; its first warmed it up."""
    lengths = _micro_batch_tokens(record)
    size = record.step.micro_batch
    warmed_up = lengths[:1] if record.measurement and record.measurement.first_step_seconds else []
    return micro_step_timings(lengths, seconds, [*warmed_up, *(n for n in set(lengths) if n * size in met)])


def _optimizer_steps(record: ProbeRecord, seen: Measurement) -> list[float]:
    """Seconds of each optimizer step of a data probe: what its micro-steps leave of the whole."""
    size = record.step.accumulation
    parts = [seen.micro_step_seconds[i : i + size] for i in range(0, len(seen.micro_step_seconds), size)]
    if len(parts) != len(seen.step_seconds):  # simulated ones have micro-steps alone
        return []
    return [max(whole - sum(part), 0.0) for whole, part in zip(seen.step_seconds, parts, strict=True)]


def _warm_up(record: ProbeRecord, seen: Measurement) -> float:
    """What the first steps of a process took beyond steady ones of the same length."""
    steady = seen.micro_step_seconds[:1] if record.item_tokens else seen.step_seconds
    return max(sum(seen.first_step_seconds) - len(seen.first_step_seconds) * statistics.median(steady), 0.0)


def time_model(
    records: Sequence[ProbeRecord], flavour: Flavour, step: StepSetting, roofline: Sequence[Timing]
) -> TimeModel | None:
    """Return the seconds of a step on a flavour: from measured probes, else simulated ones, else a roofline; else None.

    Simulated seconds are a roofline's, so they are as uncertain as one.
    """
    measured = timed(records, flavour, step, Source.MEASURED)
    if measured.holds:
        return _fitted(measured)
    if simulated := timed(records, flavour, step, Source.SIMULATED).timings:
        # They are a roofline's; the same at the data's lengths tells how short items differ from the probed ones.
        return replace(forecast([*simulated, *roofline]), evidence=Evidence.SIMULATED)
    return forecast(roofline) if roofline else None


def _fitted(measured: Timed) -> TimeModel:
    timings = measured.timings
    lengths = {timing.work.tokens / timing.work.micro_steps for timing in timings}
    if len(lengths) > 1:
        return fit_holds(
            measured.holds,
            evidence=Evidence.MEASURED,
            optimizer_step_seconds=measured.optimizer_step_seconds,
        )
    # One length cannot tell a floor from a slope: carried to other lengths as a rate, the usual reading.
    tokens = sum(timing.work.tokens for timing in timings)
    rate = TimeModel.of_rate(tokens / sum(timing.seconds for timing in timings), evidence=Evidence.MEASURED)
    return replace(rate, longest_timed_tokens=round(lengths.pop()), assumed=("floor", "quadratic"))
