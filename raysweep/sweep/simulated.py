"""A simulated device: probes play a step's program through the allocator at the card's memory.

Their time is the roofline's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from cost.domain import Flavour
from raysweep.records import Measurement, Mode, ProbeState, Prune, Source
from raysweep.search.runner import Outcome, ProbeRequest, load_key

if TYPE_CHECKING:
    from raysweep.memory.outcome import Replay
    from raysweep.memory.program import Program
    from raysweep.memory.replay import Replayer
    from raysweep.setting import AllocatorSetting, StepSetting
    from raysweep.space import SearchSpace
    from raysweep.sweep.run import RunnerFactory

MEASURED_STEPS = 3
"""Optimizer steps that a simulated probe reports; they are all alike."""


def simulated_factory(space: SearchSpace, flavour: Flavour, programs: Sequence[Program]) -> RunnerFactory:
    """Return the factory of a flavour's simulated runners; it travels to the session's process.

    Args:
        space: its allocator setting and seed are the runner's.
        flavour: the card to simulate, and what lives outside its allocator where the owner said so.
        programs: of every step that may be asked for.
    """
    return partial(SimulatedRunner, flavour, tuple(programs), space.allocator)


class SimulatedRunner:
    """A ``Runner`` on which nothing runs: every number it gives is simulated."""

    source = Source.SIMULATED
    memory_cap_bytes: int | None = None

    def __init__(self, flavour: Flavour, programs: tuple[Program, ...], allocator: AllocatorSetting) -> None:
        """Make the runner of one card.

        Raises:
            cost.errors.CostError: the card's memory is not known.
        """
        from raysweep.decision.outside import ALLOWANCE_BYTES

        self._flavour = flavour
        self._programs = {program.step: program for program in programs}
        self._allocator = allocator
        self._allowance_bytes = ALLOWANCE_BYTES
        self._replayers: dict[StepSetting, Replayer] = {}
        self._loaded: str | None = None
        self.device_memory_bytes = flavour.total_memory_bytes
        self.device_name = flavour.device.name if flavour.device else flavour.name
        self.versions = dict(programs[0].versions) if programs else {}

    def loaded_key(self) -> str | None:
        """Return the key of the setting that was run last: a simulated model loads at once."""
        return self._loaded

    def close(self) -> None:
        """Forget everything."""
        self._replayers.clear()
        self._loaded = None

    def run(self, request: ProbeRequest) -> Outcome:
        """Play the request. What no program covers is a failed probe."""
        started = time.perf_counter()
        program = self._programs.get(request.step)
        lengths = _micro_step_lengths(request)
        if request.mode is not Mode.TRAIN or program is None or not all(program.covers(n) for n in lengths):
            return Outcome(
                state=ProbeState.FAILED,
                reason="unsupported",
                detail="the forecast does not cover this probe, so it cannot be simulated",
                probe_seconds=time.perf_counter() - started,
            )
        self._loaded = load_key(request.step)
        outside_bytes = self._outside_bytes(program)
        replay = self._play(program, request, lengths, self.device_memory_bytes - outside_bytes)
        measurement = self._measurement(program, request, lengths, replay, outside_bytes)
        if replay.failure is None:
            return Outcome(
                state=ProbeState.COMPLETED, measurement=measurement, probe_seconds=time.perf_counter() - started
            )
        moment, asked_bytes = replay.failure.moment, replay.failure.requested_bytes
        in_data = bool(request.item_tokens) and not replay.failure.loading
        return Outcome(
            state=ProbeState.PRUNED,
            reason="oom",
            detail=f"simulated: {moment.op} in {moment.phase} asks for {asked_bytes / 1e9:.2f} GB more",
            prune=Prune(
                phase=moment.phase,
                requested_bytes=asked_bytes,
                item=moment.item if in_data else None,
            ),
            measurement=measurement,
            probe_seconds=time.perf_counter() - started,
        )

    def _outside_bytes(self, program: Program) -> int:
        given = self._flavour.outside_allocator_bytes
        return self._allowance_bytes[program.outside_kind] if given is None else given

    def _play(self, program: Program, request: ProbeRequest, lengths: list[int], capacity_bytes: int) -> Replay:
        from raysweep.memory.conditions import Conditions, cublas_workspace_bytes
        from raysweep.memory.replay import Replayer

        capability = self._flavour.device.compute_capability if self._flavour.device else None
        conditions = Conditions(
            allocator=self._allocator,
            capacity_bytes=max(0, capacity_bytes),
            workspace_bytes=cublas_workspace_bytes(capability),
        )
        replayer = self._replayers.setdefault(request.step, Replayer(program))
        if request.item_tokens:
            return replayer.run(
                lengths,
                accumulation=request.step.accumulation,
                conditions=conditions,
                padded=_padded_micro_steps(request),
            )
        return replayer.steady(lengths[0], accumulation=request.step.accumulation, conditions=conditions)

    def _measurement(
        self, program: Program, request: ProbeRequest, lengths: list[int], replay: Replay, outside_bytes: int
    ) -> Measurement:
        micro_steps, step_seconds = self._seconds(program, request, lengths) if replay.runs else ([], [])
        tokens = request.step.accumulation * request.step.micro_batch * (request.length_tokens or 0)
        rate = None
        if step_seconds and tokens:
            rate = tokens / step_seconds[0]
        elif micro_steps:
            rate = sum(request.item_tokens) / sum(micro_steps)
        return Measurement(
            peak_allocated_bytes=replay.peak_allocated_bytes,
            peak_reserved_bytes=replay.peak_reserved_bytes,
            outside_allocator_bytes=outside_bytes,
            allocation_retries=replay.retries,
            host_bytes=max(program.host_bytes(n) for n in set(lengths)) or None,
            step_seconds=tuple(step_seconds),
            micro_step_seconds=tuple(micro_steps),
            tokens_per_second=rate,
            tokens_per_second_low=rate,
            tokens_per_second_high=rate,
        )

    def _seconds(self, program: Program, request: ProbeRequest, lengths: list[int]) -> tuple[list[float], list[float]]:
        from raysweep.memory.roofline import optimizer_step_seconds, run_micro_step_seconds

        device = self._flavour.device
        if device is None:
            return [], []
        if request.item_tokens:
            return run_micro_step_seconds(program, device, lengths) or [], []
        seconds = optimizer_step_seconds(program, device, lengths[0])
        return [], [] if seconds is None else [seconds] * MEASURED_STEPS


def _micro_step_lengths(request: ProbeRequest) -> list[int]:
    """Return the padded length of each micro-step of a request."""
    if not request.item_tokens:
        return [] if request.length_tokens is None else [request.length_tokens]
    size, items = request.step.micro_batch, request.item_tokens
    return [max(items[i : i + size]) for i in range(0, len(items), size)]


def _padded_micro_steps(request: ProbeRequest) -> list[bool]:
    """Return of each micro-step of a request of items whether one of them is padded."""
    size, items = request.step.micro_batch, request.item_tokens
    return [len(set(items[i : i + size])) > 1 for i in range(0, len(items), size)]
