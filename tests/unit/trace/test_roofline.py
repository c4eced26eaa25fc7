"""The time of a step by its operations and the device's peaks."""

from __future__ import annotations

import dataclasses

import pytest

from cost.catalogue import Catalogue
from raysweep.memory.roofline import micro_step_seconds, optimizer_step_seconds, run_micro_step_seconds
from raysweep.setting import AdapterSetting, Loss, StepSetting
from raysweep.trace.build import model_program

STEP = StepSetting(adapter=AdapterSetting(rank=8), loss=Loss.CHUNKED, loss_chunk_tokens=256, accumulation=3)


@pytest.fixture(scope="module")
def program(tiny):
    return model_program("tiny", tiny(hidden_size=1024, intermediate_size=4096), STEP, [3, 60_000])


@pytest.fixture(scope="module")
def h200():
    return Catalogue.load().device("h200")


def test_an_optimizer_step_is_its_micro_steps_and_a_little_more(program, h200):
    micro, step = (seconds(program, h200, 5000) for seconds in (micro_step_seconds, optimizer_step_seconds))
    assert 3 * micro < step < 3.5 * micro


def test_longer_items_take_longer(program, h200):
    seconds = [micro_step_seconds(program, h200, n) for n in (20_000, 40_000, 60_000)]
    assert seconds[0] < seconds[1] < seconds[2]
    # Attention's share grows with the square of the length.
    assert seconds[2] - seconds[1] > seconds[1] - seconds[0]


def test_a_tiny_step_is_bound_by_its_launches(program, h200):
    faster = dataclasses.replace(h200, dense_bf16_flops_per_second=h200.dense_bf16_flops_per_second * 2)
    assert micro_step_seconds(program, h200, 3) == micro_step_seconds(program, faster, 3)


@pytest.mark.parametrize("length", [200, 1001, 30_001])
def test_a_program_counts_the_work_of_a_trace_of_the_length(program, h200, tiny, length):
    direct = model_program("tiny", tiny(hidden_size=1024, intermediate_size=4096), STEP, [length])
    expected = micro_step_seconds(direct, h200, length)
    assert micro_step_seconds(program, h200, length) == pytest.approx(expected, rel=0.01)


def test_a_run_is_its_micro_steps(program, h200):
    lengths = [300, 5000, 300]
    assert run_micro_step_seconds(program, h200, lengths) == [micro_step_seconds(program, h200, n) for n in lengths]


@pytest.mark.parametrize(
    "unknown",
    [
        {"memory_bandwidth_bytes_per_second": None},
        {"dense_bf16_flops_per_second": None, "fp32_flops_per_second": None},
    ],
)
def test_without_the_devices_peaks_there_is_no_time(program, h200, unknown):
    device = dataclasses.replace(h200, **unknown)
    assert micro_step_seconds(program, device, 300) is None
    assert optimizer_step_seconds(program, device, 300) is None
    assert run_micro_step_seconds(program, device, [300]) is None
