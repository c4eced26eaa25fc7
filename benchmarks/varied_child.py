"""One varied run in its own process: the run comes on standard input, the result leaves as the last line of output."""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.lengths import lengths_of
from benchmarks.segments import SegmentOrder
from benchmarks.tiny import shrunk
from raysweep.probe.batches import make_batch, micro_batches
from raysweep.probe.device import CpuDevice, CudaDevice, Device
from raysweep.probe.fault import Reason, classify
from raysweep.probe.steps import Place
from raysweep.probe.versions import installed_versions
from raysweep.setting import StepSetting
from raysweep.step.adapter import base_of
from raysweep.step.model import build, load_config
from raysweep.step.training import TrainingStep

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("varied_run")

DRY_TOKENS = 16


@dataclass(slots=True, kw_only=True)
class Track:
    """What is seen along the way; one entry a micro-step, or an optimizer step."""

    micro_step_tokens: list[int] = field(default_factory=list)
    """Of the padded micro-batch: its items times its longest."""
    micro_step_seconds: list[float] = field(default_factory=list)
    optimizer_step_seconds: list[float] = field(default_factory=list)
    reserved_bytes: list[int] = field(default_factory=list)
    """After each micro-step."""
    allocated_peak_bytes: list[int] = field(default_factory=list)
    """Since the run began, after each micro-step."""
    retried_at: list[int] = field(default_factory=list)
    """Index of a micro-step's first item, once for each retry in it or in the optimizer step before it."""
    item: int = 0
    """The item in hand: the first of its micro-batch."""
    finite: bool = True


def play(run: dict[str, Any], *, device: Device, seconds: float, dry: bool) -> dict[str, Any]:
    """Play one run from a fresh process and return its result.

    Args:
        run: as the plan has it.
        device: where.
        seconds: after which the run stops at the next micro-step.
        dry: whether a two-layer model and short items stand in.
    """
    until = time.monotonic() + seconds
    setting = StepSetting.from_dict(run["step"])
    cuda = device.torch_device.type == "cuda"
    lengths = [min(tokens, DRY_TOKENS) if dry else max(tokens, 2) for tokens in lengths_of(run)]
    cap_bytes = run.get("cap_bytes")
    order = SegmentOrder(enabled=cuda and run.get("record_segments", True))
    config = load_config(run["model"])
    place, track = Place(), Track()
    result: dict[str, Any] = {
        "model": run["model"],
        "step": setting.to_dict(),
        "cap_bytes": cap_bytes,
        "dry": dry,
        "device_name": device.name,
        "device_memory_bytes": device.total_bytes,
        "versions": installed_versions(),
    }
    step: TrainingStep | None = None
    start = time.perf_counter()
    loaded = device.usage()
    try:
        if cap_bytes is not None and cuda:
            device.limit(cap_bytes)
        model = build(shrunk(config) if dry else config, setting, device=device.torch_device, seed=run.get("seed", 0))
        gc.collect()
        device.release_caches()
        device.synchronize()
        result["load_seconds"] = time.perf_counter() - start
        loaded = device.usage()
        device.reset_peaks()
        step = TrainingStep(model, setting, observer=place)
        start = time.perf_counter()
        result["ended"] = _run_items(step, device, lengths, track, order, until=until)
    except Exception as error:
        fault = classify(error)
        if fault.reason is not Reason.OOM:
            log.exception("the run failed")
        result["ended"] = "out of memory" if fault.reason is Reason.OOM else f"failed: {fault.reason}"
        result["detail"] = fault.detail
        result["died"] = {"item": track.item, "phase": str(place.current), "requested_bytes": fault.requested_bytes}
    result["run_seconds"] = time.perf_counter() - start
    try:
        usage = device.usage()
    except RuntimeError:  # a lost context answers nothing
        return {**result, "micro_step_seconds": track.micro_step_seconds}
    return {
        **result,
        "loaded_bytes": loaded.allocated_bytes,
        "loaded_reserved_bytes": loaded.reserved_bytes,
        "peak_allocated_bytes": usage.peak_allocated_bytes,
        "peak_reserved_bytes": usage.peak_reserved_bytes,
        "retries": usage.retries - loaded.retries,
        "outside_allocator_bytes": usage.outside_allocator_bytes,
        "items": len(lengths),
        "micro_step_tokens": track.micro_step_tokens,
        "micro_step_seconds": [round(s, 5) for s in track.micro_step_seconds],
        "optimizer_step_seconds": [round(s, 5) for s in track.optimizer_step_seconds],
        "reserved_bytes_after_micro_steps": track.reserved_bytes,
        "allocated_peak_bytes_after_micro_steps": track.allocated_peak_bytes,
        "retried_at_items": track.retried_at,
        "losses_finite": track.finite,
        "segments": order.summary(),
        "pinned_host_bytes": _pinned_host_bytes() if cuda else None,
    }


def _run_items(
    step: TrainingStep, device: Device, lengths: Sequence[int], track: Track, order: SegmentOrder, *, until: float
) -> str:
    """Run every item once, in order; a last incomplete accumulation still steps. Nothing is warmed up before."""
    setting = step.setting
    batches = micro_batches(tuple(lengths), setting.micro_batch)
    retries = device.usage().retries
    for index, batch in enumerate(batches):
        if time.monotonic() > until:
            return "stopped: out of time"
        track.finite &= _micro_step(step, device, batch, track)
        now = device.usage()
        track.retried_at.extend([track.item] * (now.retries - retries))
        retries = now.retries
        track.reserved_bytes.append(now.reserved_bytes)
        track.allocated_peak_bytes.append(now.peak_allocated_bytes)
        if (index + 1) % setting.accumulation == 0 or index + 1 == len(batches):
            start = time.perf_counter()
            step.optimizer_step()
            device.synchronize()
            track.optimizer_step_seconds.append(time.perf_counter() - start)
            order.settle()
        track.item += len(batch)
    return "finished"


def _micro_step(step: TrainingStep, device: Device, lengths: tuple[int, ...], track: Track) -> bool:
    """Run one micro-batch, wait for the device, and return whether its loss is finite; nothing of it stays alive."""
    vocabulary = base_of(step.model).config.get_text_config().vocab_size
    start = time.perf_counter()
    batch = make_batch(lengths, vocabulary=vocabulary, device=device.torch_device)
    loss = step.micro_step(batch.input_ids, batch.labels, batch.attention_mask)
    device.synchronize()
    track.micro_step_seconds.append(time.perf_counter() - start)
    track.micro_step_tokens.append(len(lengths) * max(lengths))
    return math.isfinite(float(loss))  # on the host: nothing more is allocated on the device


def _pinned_host_bytes() -> dict[str, int] | None:
    try:
        stats = torch.cuda.host_memory_stats()
    except (AttributeError, RuntimeError):  # older torch, or a lost context
        return None
    return {name: stats[name] for name in ("allocated_bytes.peak", "active_bytes.peak") if name in stats}


def main() -> int:
    """Play the run on standard input."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    seconds, where = float(sys.argv[1]), sys.argv[2]
    run = json.loads(sys.stdin.read())
    dry = where == "dry"
    result = play(run, device=CpuDevice() if dry else CudaDevice(), seconds=seconds, dry=dry)
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
