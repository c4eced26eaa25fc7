"""Steady states close to what a card has: where the cache is given back, a step that ran can fail later."""

from __future__ import annotations

import pytest

from raysweep.memory.conditions import Conditions
from raysweep.memory.replay import Replayer
from raysweep.setting import AdapterSetting, Checkpointing, StepSetting
from raysweep.trace.build import model_program

TOKENS = 1500
MANY_STEPS = 30


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_steady_state_ends_as_many_steps_do(tiny, accumulation: int) -> None:
    step = StepSetting(adapter=AdapterSetting(rank=256), checkpointing=Checkpointing.GPU, accumulation=accumulation)
    replayer = Replayer(model_program("tiny", tiny(), step, [TOKENS]))

    def runs(steps: int, micro_steps: int, capacity: int) -> bool:
        conditions = Conditions(capacity_bytes=capacity)
        return replayer.run([TOKENS] * (steps * micro_steps), accumulation=micro_steps, conditions=conditions).runs

    free = replayer.steady(TOKENS, accumulation=accumulation)
    spread = free.peak_reserved_bytes - free.peak_allocated_bytes
    capacities = [free.peak_allocated_bytes + spread * share // 60 for share in range(61)]
    many = [runs(MANY_STEPS, accumulation, capacity) for capacity in capacities]
    steady = [
        replayer.steady(TOKENS, accumulation=accumulation, conditions=Conditions(capacity_bytes=capacity)).runs
        for capacity in capacities
    ]
    assert steady == many
    # Two steps of two micro-steps at most cannot tell: at some capacities they run, and what comes after does not.
    assert any(
        runs(2, min(accumulation, 2), capacity) and not later for capacity, later in zip(capacities, many, strict=True)
    )
