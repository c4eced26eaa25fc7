"""Time and operations that a step's program forecasts, for flavours that were never probed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from cost.domain import Flavour
from cost.plan import Stage
from cost.throughput import Timing, Work
from raysweep.memory.program import Program, SegmentName
from raysweep.memory.program import Work as Operations
from raysweep.memory.roofline import optimizer_step_seconds, segment_work

_SAMPLES_TOKENS = (1024, 4096, 8192)
"""Any three lengths give the three coefficients: operations are a polynomial of the length."""
_QUANTILES = (0.1, 0.5, 0.9)


def run_flops(program: Program, work: Work) -> float | None:
    """Return the floating-point operations of a run: two a multiply-add, attention's quadratic part included.

    None where the program does not cover the lengths from which they are computed.
    """
    if not all(program.covers(length) for length in _SAMPLES_TOKENS):
        return None
    constant, linear, quadratic = _coefficients(program)
    return float(constant * work.micro_steps + linear * work.tokens + quadratic * work.squared_tokens)


@cache
def _coefficients(program: Program) -> tuple[float, float, float]:
    lengths = np.array(_SAMPLES_TOKENS, dtype=float)
    flops = np.array([micro_step_flops(program, length) for length in _SAMPLES_TOKENS])
    constant, linear, quadratic = np.linalg.solve(np.vander(lengths, 3, increasing=True), flops)
    return float(constant), float(linear), float(quadratic)


def micro_step_flops(program: Program, length_tokens: int) -> float:
    """Return the floating-point operations of one micro-step at one length."""
    amounts = segment_work(program, SegmentName.MICRO, length_tokens)
    counted = (Operations.FLOPS, Operations.FP32_FLOPS, Operations.ATTENTION_FLOPS)
    return float(sum(amounts[kind] for kind in counted))


def lengths_to_time(stages: Sequence[Stage], limits_tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths at which a roofline is to be known: the limits; short, usual and long items of the data."""
    most = max(limits_tokens)
    found = set(limits_tokens)
    for stage in stages:
        reached = accumulate(stage.items.items)
        shares = [(n, count / stage.items.count) for n, count in zip(stage.items.lengths_tokens, reached, strict=True)]
        for quantile in _QUANTILES:
            found.add(min(next((n for n, share in shares if share >= quantile), most), most))
    return tuple(sorted(found))


def roofline_timings(program: Program | None, flavour: Flavour, lengths: Sequence[int]) -> tuple[Timing, ...]:
    """Return an optimizer step's seconds at each length by the roofline; none where program or device data lack."""
    if program is None or flavour.device is None:
        return ()
    timings: list[Timing] = []
    for length in lengths:
        seconds = optimizer_step_seconds(program, flavour.device, length) if program.covers(length) else None
        if seconds is not None:
            work = Work.of([length] * program.step.accumulation, optimizer_steps=1)
            timings.append(Timing(work=work, seconds=seconds))
    return tuple(timings)
