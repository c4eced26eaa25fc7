"""How long a step would take by the roofline: its operations against the device's dense peak and bandwidth.

The times are rough: they serve to simulate a sweep and to bound what was never probed. Every place that shows one says
so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cost.domain import Device
from raysweep.memory.program import Program, SegmentName, Work, work_features

# Fitted to the medians of 17 LoRA steps of two models measured on one NVIDIA H200 (torch 2.11, transformers 5.17; the
# same cells as tests/golden): within 15 % on 15 of them, within 26 % on all. Other chips are taken to reach the same
# shares.
MATRIX_EFFICIENCY = 0.75
"""Share of the dense bf16 peak that matrix products reach, and of the fp32 peak that fp32 ones do."""
ATTENTION_EFFICIENCY = 0.50
"""The same of attention's fused kernels."""
BANDWIDTH_EFFICIENCY = 0.62
"""Share of the memory bandwidth that all other kernels reach."""
LAUNCH_SECONDS = 33e-6
"""The least time from one operation to the next, Python included."""


def optimizer_step_seconds(program: Program, device: Device, length_tokens: int) -> float | None:
    """Return the seconds of one optimizer step of ``accumulation`` micro-steps at one length.

    None where the device's peak or bandwidth is not known.
    """
    micro_step = micro_step_seconds(program, device, length_tokens)
    step = _seconds(segment_work(program, SegmentName.STEP, length_tokens), device)
    if micro_step is None or step is None:
        return None
    return program.step.accumulation * micro_step + step


def micro_step_seconds(program: Program, device: Device, length_tokens: int) -> float | None:
    """Return the seconds of one micro-step; None where the device's peak or bandwidth is not known."""
    return _seconds(segment_work(program, SegmentName.MICRO, length_tokens), device)


def run_micro_step_seconds(program: Program, device: Device, lengths: Sequence[int]) -> list[float] | None:
    """Return the seconds of a run's micro-steps; None where the device's peak or bandwidth is not known."""
    by_length = {n: micro_step_seconds(program, device, n) for n in set(lengths)}
    found = [by_length[n] for n in lengths]
    return None if any(s is None for s in found) else [s for s in found if s is not None]


def segment_work(program: Program, name: SegmentName, length_tokens: int) -> NDArray[np.float64]:
    """Return the amounts of one segment at one length, by ``Work``: operations, bytes moved, kernels launched."""
    segment = program.segment(name, length_tokens)
    chunks = program.chunks(length_tokens)[0] if segment.is_cut else 1
    work: NDArray[np.float64] = work_features(segment, chunks) @ program.features(length_tokens)
    return work


def _seconds(work: NDArray[np.float64], device: Device) -> float | None:
    peak, fp32 = device.dense_bf16_flops_per_second, device.fp32_flops_per_second
    bandwidth = device.memory_bandwidth_bytes_per_second
    if bandwidth is None or (peak is None and fp32 is None):
        return None
    # A chip without bf16 units runs bf16 products no faster than fp32 ones.
    matrix = work[Work.FLOPS] / (MATRIX_EFFICIENCY * (peak or fp32 or 1.0))
    matrix += work[Work.FP32_FLOPS] / (MATRIX_EFFICIENCY * (fp32 or peak or 1.0))
    attention = work[Work.ATTENTION_FLOPS] / (ATTENTION_EFFICIENCY * (peak or fp32 or 1.0))
    moved = work[Work.BYTES] / (BANDWIDTH_EFFICIENCY * bandwidth)
    return float(max(matrix + attention + moved, work[Work.LAUNCHES] * LAUNCH_SECONDS))
