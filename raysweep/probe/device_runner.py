"""Runs probes on a real device and keeps the model between them."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from raysweep.errors import MachineError, SpaceError
from raysweep.probe.device import Device, Usage, peak_resident_bytes, take_device
from raysweep.probe.fault import Fault, Reason, classify, forget
from raysweep.probe.meter import Meter, is_clean
from raysweep.probe.steps import Pace, Place, data_lengths, fixed_length, generation
from raysweep.probe.timing import Timing, rate
from raysweep.probe.versions import installed_versions
from raysweep.records import Measurement, Mode, ProbeState, Prune, Source
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest, load_key
from raysweep.setting import WeightsFrom
from raysweep.step.model import build, build_base
from raysweep.step.observer import Phase
from raysweep.step.training import TrainingStep

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel

    from raysweep.step.pretrained import Checkpoint

# What the free memory after an out-of-memory probe is to be compared with. Libraries load kernels as they are first
# used and keep them, so that only an earlier completed probe tells what there was to come back.
_BEFORE_LOADING = "before a model was loaded"
_BEFORE_KERNELS = "with the model loaded, before its first step loaded any kernel"
_AFTER_COMPLETED = "after the last completed probe"


class DeviceRunner:
    """A ``raysweep.search.runner.Runner`` on a CUDA device, or on the CPU where the kernels have one.

    After every probe all that it made is dropped; the model stays where the device is back at the level after loading.
    """

    source = Source.MEASURED

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        device: str | Device = "cuda",
        checkpoint: Checkpoint | None = None,
        seed: int = 0,
        memory_cap_bytes: int | None = None,
        outside_allocator_bytes: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Take the device; nothing is loaded yet.

        Args:
            config: the model's, as ``raysweep.step.model.load_config`` gives it.
            device: ``cuda``, ``cuda:N`` or ``cpu``.
            checkpoint: whose weights the model has; None draws them at random.
            seed: of the random weights, tokens and dropout.
            memory_cap_bytes: memory of a smaller card that this device is to stand for.
            outside_allocator_bytes: what lives outside the allocator on that card; by default as much as here.
            pace: how many steps a probe runs.

        Raises:
            MachineError: there is no such device, or it cannot stand for that card.
        """
        self._config = config
        self._device = take_device(device) if isinstance(device, str) else device
        self._checkpoint = checkpoint
        self._seed = seed
        self._cap_bytes = memory_cap_bytes
        self._outside_bytes = outside_allocator_bytes
        self._pace = pace or Pace()
        self._versions = installed_versions() | _weights_version(config, checkpoint)
        self._meter = Meter(self._device)
        self._bare = self._device.usage()
        self._level = self._bare
        self._free_before = _BEFORE_LOADING, self._bare.free_bytes
        self._model: PeftModel | PreTrainedModel | None = None
        self._loaded: str | None = None
        self._step: TrainingStep | None = None
        self._place = Place()
        self._limit()

    @property
    def device_name(self) -> str:
        """The device's own name."""
        return self._device.name

    @property
    def device_memory_bytes(self) -> int:
        """The device's memory, exactly as it reports it."""
        return self._device.total_bytes

    @property
    def memory_cap_bytes(self) -> int | None:
        """Memory of the card that the device stands for, or None."""
        return self._cap_bytes

    @property
    def versions(self) -> dict[str, str]:
        """Versions of everything that the numbers hang on, and where the weights come from."""
        return dict(self._versions)

    def loaded_key(self) -> str | None:
        """Return ``load_key`` of the setting whose model is loaded, or None."""
        return self._loaded

    def run(self, request: ProbeRequest) -> Outcome:
        """Run one probe, loading the model first where the loaded one cannot serve it.

        Raises:
            PoisonedDevice: the outcome is known, but the device's memory did not come back, or its context is lost.
        """
        started = time.perf_counter()
        self._place = Place()
        timing = Timing()
        load_seconds: float | None = None
        fault: Fault | None = None
        usage: Usage | None = None
        try:
            load_seconds = self._load(request)
            torch.manual_seed(self._seed)
            self._limit()
            self._meter.restart()
            self._run_steps(request, timing)
            usage = self._meter.read()
        except Exception as error:
            fault = classify(error)
            usage = self._read_after_fault()
            forget(error)
        probe_seconds = time.perf_counter() - started
        after = self._tidy(fault, usage)
        outcome = self._outcome(timing, fault, usage, after)
        outcome = replace(outcome, load_seconds=load_seconds, probe_seconds=probe_seconds)
        if after is None:
            raise PoisonedDevice(outcome)
        return outcome

    def close(self) -> None:
        """Drop the model and lift the cap."""
        self._drop_step()
        self._drop_model()
        self._device.limit(None)

    def _run_steps(self, request: ProbeRequest, timing: Timing) -> None:
        if request.mode is Mode.GENERATE:
            if self._model is None or request.prompt_tokens is None or request.new_tokens is None:
                raise SpaceError("mode: generate needs prompt_tokens and new_tokens.")
            generation(
                self._model,
                request.step,
                self._device,
                timing,
                prompt_tokens=request.prompt_tokens,
                new_tokens=request.new_tokens,
                place=self._place,
                pace=self._pace,
            )
            return
        step = self._step = TrainingStep(self._adapted(), request.step, observer=self._place)
        if request.length_tokens is None:
            data_lengths(
                step,
                self._device,
                timing,
                item_tokens=request.item_tokens,
                place=self._place,
                meter=self._meter,
                pace=self._pace,
            )
        else:
            fixed_length(step, self._device, timing, length_tokens=request.length_tokens, pace=self._pace)

    def _adapted(self) -> PeftModel:
        from peft import PeftModel

        if not isinstance(self._model, PeftModel):
            raise SpaceError("step.adapter.rank: 0 is no adapter, and without one nothing trains; expected 1 or more.")
        return self._model

    def _load(self, request: ProbeRequest) -> float | None:
        """Build the model where the loaded one cannot serve; return the seconds that it took, or None."""
        key = load_key(request.step)
        if key == self._loaded:
            return None
        self._drop_model()
        # A model that does not fit is told by what its own loading reached, not by an earlier probe's peaks.
        self._meter.restart()
        started = time.perf_counter()
        make = build if request.step.adapter.rank else build_base
        self._model = make(
            self._config,
            request.step,
            device=self._device.torch_device,
            seed=self._seed,
            checkpoint=self._checkpoint,
        )
        gc.collect()
        # After every probe garbage is collected. That takes most of a second while it looks through the libraries'
        # millions of objects; frozen ones are passed over.
        gc.freeze()
        self._device.release_caches()
        self._level = self._device.usage()
        self._free_before = _BEFORE_KERNELS, self._level.free_bytes
        self._loaded = key
        return time.perf_counter() - started

    def _limit(self) -> None:
        """Cap the allocator at the emulated card's memory less what lives outside it.

        Where nobody said how much lives outside on that card, it is as much as on this one; that grows as kernels load.
        """
        if self._cap_bytes is None:
            return
        outside_bytes = self._outside_bytes
        if outside_bytes is None:
            outside_bytes = self._device.usage().outside_allocator_bytes or 0
        if self._cap_bytes > self._device.total_bytes:
            raise MachineError(
                f"a card of {self._cap_bytes} bytes cannot be emulated on {self._device.name}, "
                f"which has {self._device.total_bytes} bytes; expected a smaller card."
            )
        self._device.limit(self._cap_bytes - outside_bytes)

    def _read_after_fault(self) -> Usage | None:
        try:
            return self._meter.read()
        except RuntimeError:  # a lost context answers nothing
            return None

    def _drop_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.close()

    def _drop_model(self) -> None:
        self._model = None
        self._loaded = None
        gc.unfreeze()
        gc.collect()
        self._device.release_caches()
        self._level = self._bare
        self._free_before = _BEFORE_LOADING, self._bare.free_bytes

    def _tidy(self, fault: Fault | None, at_end: Usage | None) -> Usage | None:
        """Drop what the probe made; return the usage afterwards, or None where the process must be replaced."""
        if at_end is None or (fault is not None and fault.reason is Reason.POISONED):
            return None
        try:
            self._drop_step()
            gc.collect()
            self._device.release_caches()
            now = self._device.usage()
            # A NaN may have reached the adapter; memory that does not come back may go with the model.
            spoilt = self._loaded is None or (fault is not None and fault.reason is Reason.NAN)
            if spoilt or not is_clean(now, level=self._level, at_end=at_end):
                self._drop_model()
                now = self._device.usage()
        except RuntimeError:  # a lost context cannot be tidied
            return None
        if fault is None and self._loaded is not None:
            self._free_before = _AFTER_COMPLETED, now.free_bytes
        return now if is_clean(now, level=self._level, at_end=at_end) else None

    def _outcome(self, timing: Timing, fault: Fault | None, usage: Usage | None, after: Usage | None) -> Outcome:
        if fault is None:
            measurement = self._measurement(timing, usage) if usage is not None else None
            return Outcome(state=ProbeState.COMPLETED, measurement=measurement, probe_seconds=0.0)
        if fault.reason is not Reason.OOM:
            return Outcome(state=ProbeState.FAILED, reason=fault.reason.value, detail=fault.detail, probe_seconds=0.0)
        phase, item = self._place.current, self._place.item
        return Outcome(
            state=ProbeState.PRUNED,
            reason=fault.reason.value,
            detail=fault.detail + self._came_back(after),
            prune=Prune(phase=phase.value, requested_bytes=fault.requested_bytes, item=item),
            measurement=self._measurement(Timing(), usage) if usage is not None else None,
            probe_seconds=0.0,
        )

    def _came_back(self, after: Usage | None) -> str:
        if after is None:
            return " Its memory did not come back."
        when, before_bytes = self._free_before
        if after.free_bytes is None or before_bytes is None:
            return ""
        return f" Afterwards {after.free_bytes:,} bytes of the device were free, {before_bytes:,} {when}."

    def _measurement(self, timing: Timing, usage: Usage) -> Measurement:
        seen = rate(timing)
        return Measurement(
            peak_allocated_bytes=usage.peak_allocated_bytes,
            peak_reserved_bytes=usage.peak_reserved_bytes,
            outside_allocator_bytes=usage.outside_allocator_bytes,
            allocation_retries=usage.retries,
            host_bytes=peak_resident_bytes(),
            pinned_host_bytes=usage.peak_pinned_bytes,
            first_step_seconds=tuple(timing.first_step_seconds),
            step_seconds=tuple(timing.step_seconds),
            micro_step_seconds=tuple(timing.micro_step_seconds),
            tokens_per_second=seen.median if seen else None,
            tokens_per_second_low=seen.low if seen else None,
            tokens_per_second_high=seen.high if seen else None,
            loaded_bytes=self._level.allocated_bytes if self._place.current is not Phase.LOAD else None,
        )


def _weights_version(config: PretrainedConfig, checkpoint: Checkpoint | None) -> dict[str, str]:
    if checkpoint is None:
        return {"weights_from": WeightsFrom.RANDOM.value}
    # transformers keeps the commit from which it read a config of the Hub.
    commit = getattr(config, "_commit_hash", None)
    revision = {"weights_revision": str(commit)} if commit else {}
    return {"weights_from": WeightsFrom.PRETRAINED.value, **revision}
