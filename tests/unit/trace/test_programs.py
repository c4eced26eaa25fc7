"""A program made from a few traces, held to a trace of each very length."""

from __future__ import annotations

import numpy as np
import pytest

from raysweep.memory.program import Program, SegmentName, flatten
from raysweep.memory.replay import Replayer
from raysweep.setting import AdapterSetting, Attention, Checkpointing, Loss, StepSetting, Weights
from raysweep.trace.build import _spread, model_program

SHORTEST, LONGEST = 3, 1500
CHUNK_TOKENS = 256
PLAIN = {"adapter": AdapterSetting(rank=8), "loss_chunk_tokens": CHUNK_TOKENS}

SETTINGS = {
    "chunked-gpu": StepSetting(**PLAIN, loss=Loss.CHUNKED, checkpointing=Checkpointing.GPU),
    "chunked-none": StepSetting(**PLAIN, loss=Loss.CHUNKED, checkpointing=Checkpointing.NONE),
    "chunked-cpu-3-items": StepSetting(**PLAIN, loss=Loss.CHUNKED, checkpointing=Checkpointing.CPU, micro_batch=3),
    "chunked-accumulated": StepSetting(**PLAIN, loss=Loss.CHUNKED, checkpointing=Checkpointing.GPU, accumulation=4),
    "full-none": StepSetting(**PLAIN, loss=Loss.FULL, checkpointing=Checkpointing.NONE),
    "full-gpu-2-items-accumulated": StepSetting(
        **PLAIN, loss=Loss.FULL, checkpointing=Checkpointing.GPU, micro_batch=2, accumulation=2
    ),
    "full-dropout-clipped": StepSetting(
        adapter=AdapterSetting(rank=8, dropout=0.1), checkpointing=Checkpointing.NONE, max_grad_norm=1.0
    ),
    "full-eager": StepSetting(**PLAIN, checkpointing=Checkpointing.GPU, attention=Attention.EAGER),
    "chunked-eager-none": StepSetting(
        **PLAIN, loss=Loss.CHUNKED, checkpointing=Checkpointing.NONE, attention=Attention.EAGER
    ),
    "full-fp32": StepSetting(**PLAIN, checkpointing=Checkpointing.GPU, weights=Weights.FP32),
}
LENGTHS = (5, 258, 777, 1499)
"""Odd ones, and such as have from one loss chunk to six, or 18 where there are three items."""


@pytest.fixture(scope="module", params=SETTINGS, ids=SETTINGS)
def case(request, tiny):
    setting = SETTINGS[request.param]
    program = model_program("tiny", tiny(), setting, [SHORTEST, LONGEST])
    return setting, program, {n: model_program("tiny", tiny(), setting, [n]) for n in LENGTHS}


def events(program: Program, name: SegmentName, length: int) -> tuple[list[int], list[int]]:
    """Each event's kind, and its bytes where it is an allocation."""
    segment = program.segment(name, length)
    flat = flatten(segment, program.chunks(length)[0] if segment.is_cut else 1)
    return flat.op.tolist(), np.rint(flat.size @ program.features(length)).astype(int).tolist()


def test_every_event_is_that_of_a_trace_of_the_length_itself(case):
    _, program, traced = case
    for length, direct in traced.items():
        for name in direct.piece(length).segments:
            assert events(program, name, length) == events(direct, name, length), (length, name)


def test_replays_equal_a_trace_of_the_length_itself(case):
    setting, program, traced = case
    replayer = Replayer(program)
    for length, direct in traced.items():
        expected = Replayer(direct).steady(length, accumulation=setting.accumulation)
        found = replayer.steady(length, accumulation=setting.accumulation)
        assert found.peak_allocated_bytes == expected.peak_allocated_bytes, length
        assert found.peak_reserved_bytes == expected.peak_reserved_bytes, length
        assert found.components_bytes == expected.components_bytes, length


def test_components_add_up_to_the_peak(case):
    setting, program, _ = case
    replayer = Replayer(program)
    for length in range(SHORTEST, LONGEST, 249):
        replay = replayer.steady(length, accumulation=setting.accumulation)
        assert sum(replay.components_bytes.values()) == replay.peak_allocated_bytes


def test_micro_steps_after_the_second_change_nothing(case):
    _, program, _ = case
    if SegmentName.LATER_MICRO not in program.pieces[0].segments:
        return
    replayer = Replayer(program)
    lengths = [1001] * 8
    four, two = replayer.run(lengths, accumulation=4), replayer.run(lengths[:4], accumulation=2)
    assert four.peak_allocated_bytes == two.peak_allocated_bytes
    assert four.peak_reserved_bytes == two.peak_reserved_bytes
    assert four.components_bytes == two.components_bytes


def test_a_square_term_is_told_within_a_short_range() -> None:
    for first, last in ((64, 256), (64, 80), (100, 163)):
        for between in (1, 2):
            lengths = _spread(first, last, between)
            assert len(lengths) == between + 2
            assert (lengths[0], lengths[-1]) == (first, last)
