"""Micro-steps in which items are padded: the model is given a mask, and what is made of it is forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import LlamaConfig

from raysweep.memory.program import MICRO_SEGMENTS, Piece, Program, Role, Segment, SegmentName, flatten
from raysweep.memory.replay import Replayer
from raysweep.memory.table import programs_of, table_of
from raysweep.setting import AdapterSetting, Attention, Checkpointing, Loss, StepSetting, Weights
from raysweep.trace import build
from raysweep.trace.build import model_program

LAYERS, ITEMS = 2, 3
SHORTEST, LONGEST = 16, 1200
SQUARE = 3
"""Place of the term of length squared."""
RANK_8 = AdapterSetting(rank=8)


def setting_of(**changes: Any) -> StepSetting:
    return StepSetting(**{"adapter": RANK_8, "micro_batch": ITEMS, "accumulation": 2, **changes})


SETTINGS = {
    "full-gpu": setting_of(),
    "full-none": setting_of(checkpointing=Checkpointing.NONE),
    "chunked-cpu": setting_of(checkpointing=Checkpointing.CPU, loss=Loss.CHUNKED, loss_chunk_tokens=256),
    "eager": setting_of(attention=Attention.EAGER),
    "fp32": setting_of(weights=Weights.FP32),
}

Tiny = Callable[..., LlamaConfig]


@pytest.fixture(scope="module", params=SETTINGS, ids=SETTINGS)
def traced(request: pytest.FixtureRequest, tiny: Tiny) -> Program:
    return model_program("tiny", tiny(), SETTINGS[request.param], [SHORTEST, LONGEST], padded=True)


def program(tiny: Tiny, **changes: Any) -> Program:
    return model_program("tiny", tiny(), setting_of(**changes), [SHORTEST, LONGEST], padded=True)


def squares(program: Program) -> list[float]:
    """Bytes an item and a pair of its tokens of each padded allocation that grows with the length squared."""
    (part,) = program.piece(LONGEST, padded=True).segments[SegmentName.MICRO].parts
    return [size / ITEMS for size in part.size[:, SQUARE] if size >= ITEMS]


def events(program: Program, name: SegmentName, length: int, *, padded: bool) -> tuple[list[int], list[int]]:
    segment = program.segment(name, length, padded=padded)
    flat = flatten(segment, program.chunks(length)[0] if segment.is_cut else 1)
    return flat.op.tolist(), np.rint(flat.size @ program.features(length)).astype(int).tolist()


def columns(segment: Segment) -> list[list[Any]]:
    return [
        [getattr(part, name).tolist() for name in ("op", "owner", "index", "size", "label", "work")]
        for part in segment.parts
    ]


def same(one: Piece, other: Piece) -> bool:
    return one.segments.keys() == other.segments.keys() and all(
        columns(one.segments[name]) == columns(other.segments[name]) for name in one.segments
    )


# --- what a mask takes


def test_the_mask_lives_until_the_backward_pass_runs_the_layers_again(tiny: Tiny) -> None:
    found = program(tiny)
    length = 1000
    replayer = Replayer(found)
    plain, masked = (replayer.run([length] * 4, accumulation=2, padded=[p] * 4) for p in (False, True))
    mask_bytes = ITEMS * length**2
    assert plain.peak_moment == masked.peak_moment
    # Beside the mask, labels that are not the tokens and the mask's own tokens.
    tokens_bytes = ITEMS * length * 8
    more = masked.peak_allocated_bytes - plain.peak_allocated_bytes
    assert mask_bytes <= more <= mask_bytes + 3 * tokens_bytes


@pytest.mark.parametrize(("weights", "bias_bytes"), [(Weights.BF16, 2), (Weights.FP32, 4)])
def test_each_layer_makes_a_bias_in_the_weights_dtype(tiny: Tiny, weights: Weights, bias_bytes: int) -> None:
    found = squares(program(tiny, weights=weights, checkpointing=Checkpointing.NONE))
    assert found.count(bias_bytes) == LAYERS
    again = squares(program(tiny, weights=weights, checkpointing=Checkpointing.GPU))
    assert again.count(bias_bytes) == 2 * LAYERS


def test_without_checkpoints_every_layer_keeps_its_bias(tiny: Tiny) -> None:
    found = program(tiny, checkpointing=Checkpointing.NONE)
    replayer = Replayer(found)
    plain, masked = (replayer.run([1100] * 4, accumulation=2, padded=[p] * 4) for p in (False, True))
    assert masked.peak_allocated_bytes - plain.peak_allocated_bytes > LAYERS * 2 * ITEMS * 1100**2


def test_with_a_mask_grouped_heads_in_fp32_take_a_fused_kernel(tiny: Tiny) -> None:
    kernels = program(tiny, weights=Weights.FP32).kernels
    assert kernels["attention"] == "sdpa: math path"
    assert kernels["padded attention"] == "sdpa: fused kernel with a bias"


# --- a program of both


def test_every_padded_event_is_that_of_a_trace_of_the_length_itself(traced: Program, tiny: Tiny) -> None:
    for length in (77, 640, 1199):
        direct = model_program("tiny", tiny(), traced.step, [length], padded=True)
        for name in MICRO_SEGMENTS:
            found = events(traced, name, length, padded=True)
            assert found == events(direct, name, length, padded=True), (length, name)


def test_plain_micro_steps_are_those_of_a_program_without_padded_ones(traced: Program, tiny: Tiny) -> None:
    alone = model_program("tiny", tiny(), traced.step, [SHORTEST, LONGEST])
    assert not alone.padded_pieces
    assert traced.labels[: len(alone.labels)] == alone.labels
    assert len(traced.pieces) == len(alone.pieces)
    assert all(same(*pair) for pair in zip(traced.pieces, alone.pieces, strict=True))
    for name in ("setup", "first_step", "step_segment"):
        assert columns(getattr(traced, name)) == columns(getattr(alone, name))


def test_padded_and_plain_micro_steps_are_played_side_by_side(traced: Program) -> None:
    replayer, lengths = Replayer(traced), [300, 1100, 700, 900, 1000]
    mixed = replayer.run(lengths, accumulation=2, padded=[False, True, True, False, False])
    assert mixed.runs
    assert sum(mixed.components_bytes.values()) == mixed.peak_allocated_bytes
    plain, masked = (replayer.run(lengths, accumulation=2, padded=[p] * 5) for p in (False, True))
    ends = sorted((plain.peak_allocated_bytes, masked.peak_allocated_bytes))
    assert ends[0] <= mixed.peak_allocated_bytes <= ends[1]


def test_none_padded_is_the_default(traced: Program) -> None:
    replayer, lengths = Replayer(traced), [300, 1100]
    assert replayer.run(lengths, accumulation=2) == replayer.run(lengths, accumulation=2, padded=[False, False])


def test_a_program_read_back_replays_padded_micro_steps_the_same(traced: Program, tmp_path) -> None:
    path = tmp_path / "programs.parquet"
    pq.write_table(table_of([traced]), path)
    (after,) = programs_of(pq.read_table(path))
    padded = [True, False, True]
    for lengths in ([300, 1100, 700], [1100, 40, 1200]):
        found = Replayer(after).run(lengths, accumulation=2, padded=padded)
        assert found == Replayer(traced).run(lengths, accumulation=2, padded=padded)


def test_a_table_written_before_padded_micro_steps_is_read(traced: Program) -> None:
    (after,) = programs_of(table_of([traced]).drop_columns(["padded_pieces"]))
    assert after.padded_pieces == ()
    assert len(after.pieces) == len(traced.pieces)


# --- where there are none


def test_a_micro_batch_of_one_item_has_no_padding(tiny: Tiny) -> None:
    found = program(tiny, micro_batch=1)
    assert found.padded_pieces == ()
    assert found.notes == ()


def test_flash_attn_packs_its_items_and_a_note_says_what_is_left_out(tiny: Tiny) -> None:
    found = program(tiny, attention=Attention.FLASH)
    assert found.padded_pieces == ()
    assert "flash-attn packs" in found.notes[0]
    replayer = Replayer(found)
    assert replayer.run([900], accumulation=2, padded=[True]) == replayer.run([900], accumulation=2)


def test_a_model_that_asks_its_mask_for_values_is_forecast_without_it_and_a_note_says_so(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace(*args: Any, padded: bool = False, **values: Any) -> Any:
        if padded:
            raise RuntimeError("no values here")
        return traced(*args, **values)

    traced = build.trace
    monkeypatch.setattr(build, "trace", trace)
    found = program(tiny)
    assert found.padded_pieces == ()
    assert "RuntimeError: no values here" in found.notes[0]
    assert "0.004 GB at 1,200 tokens" in found.notes[0]


def test_every_role_of_a_chunked_loss_is_there(tiny: Tiny) -> None:
    found = program(tiny, loss=Loss.CHUNKED, loss_chunk_tokens=256)
    assert len(found.piece(LONGEST, padded=True).segments[SegmentName.MICRO].parts) == len(Role)
