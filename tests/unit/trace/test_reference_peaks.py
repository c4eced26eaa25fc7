"""Traced steps against reference cells of kinds that the golden rows lack: fp32 weights, layers with a bias, nf4."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from raysweep.memory.blocks import MIB
from raysweep.memory.replay import Replayer
from raysweep.records import ProbeRecord, ProbeState
from raysweep.setting import Attention, Weights
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.trace.build import model_program

FAMILIES = Path(__file__).parents[3] / "artifacts" / "reference" / "families"
ALLOCATED_BYTES, RESERVED_BYTES = 2**15, 2 * MIB
"""What the likeliest forecast may be off."""


@cache
def cells(name: str) -> tuple[ProbeRecord, ...]:
    records = Artifact.open(FAMILIES / name).records()
    return tuple(record for record in records if record.state is ProbeState.COMPLETED)


FP32 = [
    one for one in cells("llama-3.2-1b") if one.step.weights is Weights.FP32 and one.step.attention is Attention.SDPA
]
BIASED = [one for one in cells("qwen2.5-7b") if one.step.weights is Weights.NF4 or one.length_tokens in {700, 2048}]


def name_of(record: ProbeRecord) -> str:
    step = record.step
    return f"{record.model}-{step.weights}-{step.checkpointing}-{step.loss}-{record.length_tokens}"


@pytest.mark.parametrize("record", [*FP32, *BIASED], ids=name_of)
def test_the_likeliest_forecast_is_what_was_measured(record: ProbeRecord) -> None:
    assert record.length_tokens is not None
    assert record.measurement is not None
    program = model_program(record.model, load_config(record.model), record.step, [record.length_tokens])
    found = Replayer(program).steady(record.length_tokens, accumulation=record.step.accumulation)
    measured = record.measurement
    assert measured.peak_allocated_bytes is not None
    assert measured.peak_reserved_bytes is not None
    assert abs(found.peak_allocated_bytes - measured.peak_allocated_bytes) <= ALLOCATED_BYTES
    assert abs(found.peak_reserved_bytes - measured.peak_reserved_bytes) <= RESERVED_BYTES


def test_there_are_cells_of_each_kind() -> None:
    assert len(FP32) == 3
    assert len(BIASED) == 3
