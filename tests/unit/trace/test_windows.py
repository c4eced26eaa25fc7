"""Attention within a window: from the window's length on transformers makes a mask, though no item is padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
)

from raysweep.errors import NotForecastError
from raysweep.memory.program import Program, SegmentName, flatten
from raysweep.setting import AdapterSetting, Attention, Checkpointing, Loss, StepSetting, Weights
from raysweep.step.model import build
from raysweep.step.training import TrainingStep
from raysweep.trace import cuda
from raysweep.trace.build import model_program
from raysweep.trace.tracing import trace

WINDOW, SHORTEST, LONGEST = 64, 16, 400
ITEMS, LAYERS = 2, 2
SQUARE = 3
"""Place of the term of length squared."""
SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": WINDOW,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "mistral": lambda: MistralConfig(**SIZES),
    "phi3": lambda: Phi3Config(**SIZES),
    "gemma2-mixed": lambda: Gemma2Config(**SIZES),
    "gemma3-mixed": lambda: Gemma3TextConfig(**SIZES, layer_types=["sliding_attention", "full_attention"]),
    "qwen2-mixed": lambda: Qwen2Config(**SIZES, use_sliding_window=True, max_window_layers=1),
    "qwen2-unused": lambda: Qwen2Config(**SIZES, use_sliding_window=False),
}
WINDOWED = [name for name in CONFIGS if name != "qwen2-unused"]
RANK_4 = AdapterSetting(rank=4)


def setting_of(**changes: Any) -> StepSetting:
    return StepSetting(
        **{"adapter": RANK_4, "micro_batch": ITEMS, "accumulation": 2, "checkpointing": Checkpointing.NONE, **changes}
    )


def program(name: str, *lengths: int, padded: bool = False, **changes: Any) -> Program:
    ends = lengths or (SHORTEST, LONGEST)
    return model_program(name, CONFIGS[name](), setting_of(**changes), ends, padded=padded)


def events(found: Program, name: SegmentName, length: int, *, padded: bool) -> tuple[list[int], list[int]]:
    segment = found.segment(name, length, padded=padded)
    flat = flatten(segment, found.chunks(length)[0] if segment.is_cut else 1)
    return flat.op.tolist(), np.rint(flat.size @ found.features(length)).astype(int).tolist()


def ends(found: Program) -> list[tuple[int, int]]:
    return [(p.first_tokens, p.last_tokens) for p in found.pieces]


def squares(found: Program, length: int) -> list[float]:
    """Bytes for each pair of tokens of every allocation that grows with the length squared."""
    (part,) = found.piece(length).segments[SegmentName.MICRO].parts
    return [size for size in part.size[:, SQUARE] if size > 0.5]


Seen = list[tuple[torch.Size, torch.Size | None]]
"""Of every layer's attention: the shape of its keys and that of its mask."""


def seen_by_a_real_step(config: PretrainedConfig, length: int, monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen: Seen = []
    sdpa = functional.scaled_dot_product_attention

    def spy(query: torch.Tensor, key: torch.Tensor, *args: Any, attn_mask: torch.Tensor | None, **named: Any) -> Any:
        seen.append((key.shape, None if attn_mask is None else attn_mask.shape))
        return sdpa(query, key, *args, attn_mask=attn_mask, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    step = TrainingStep(build(config, setting_of(), device="cpu"), setting_of())
    ids = torch.ones((ITEMS, length), dtype=torch.int64)
    step.micro_step(ids, ids)
    return seen


def seen_by_a_trace(config: PretrainedConfig, length: int, monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen: Seen = []
    attention = cuda._FusedAttention

    class Spy:
        @staticmethod
        def apply(query: Any, key: torch.Tensor, value: Any, bias: torch.Tensor | None, recorder: Any) -> Any:
            seen.append((key.shape, None if bias is None else bias.shape))
            return attention.apply(query, key, value, bias, recorder)

    monkeypatch.setattr(cuda, "_FusedAttention", Spy)
    trace(config, setting_of(accumulation=1), length, whole=False)
    return seen


# --- when there is a mask


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_layer_of_a_trace_has_the_mask_that_it_has_in_a_real_step(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = seen_by_a_real_step(CONFIGS[name](), length, monkeypatch)
    assert len(real) == LAYERS
    assert any(mask is not None for _, mask in real) == (name in WINDOWED and length >= WINDOW)
    assert seen_by_a_trace(CONFIGS[name](), length, monkeypatch) == real


@pytest.mark.parametrize(("name", "windowed_layers"), [("mistral", 2), ("gemma2-mixed", 1), ("qwen2-mixed", 1)])
def test_from_the_window_on_one_mask_serves_all_items_and_each_windowed_layer_keeps_a_bias(
    name: str, windowed_layers: int
) -> None:
    found = program(name)
    assert squares(found, WINDOW - 1) == []
    bias_bytes = 2 * ITEMS
    assert squares(found, WINDOW).count(bias_bytes) == windowed_layers
    assert 1 in squares(found, WINDOW)


# --- a program of both sides


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss": Loss.CHUNKED, "loss_chunk_tokens": 32, "checkpointing": Checkpointing.GPU},
        {"weights": Weights.FP32},
    ],
    ids=["full", "chunked", "fp32"],
)
@pytest.mark.parametrize("name", ["mistral", "gemma3-mixed"])
def test_every_event_on_both_sides_is_that_of_a_trace_of_the_length_itself(name: str, changes: dict[str, Any]) -> None:
    found = program(name, padded=True, **changes)
    for length in (SHORTEST + 1, WINDOW - 1, WINDOW, WINDOW + 1, 333):
        direct = program(name, length, padded=True, **changes)
        for segment in direct.piece(length).segments:
            for padded in (False, True):
                one, other = (events(p, segment, length, padded=padded) for p in (found, direct))
                assert one == other, (length, segment, padded)


def test_a_program_is_split_at_the_window_alone() -> None:
    assert ends(program("mistral")) == [(SHORTEST, WINDOW - 1), (WINDOW, LONGEST)]
    assert ends(program("mistral", SHORTEST, WINDOW - 1)) == [(SHORTEST, WINDOW - 1)]
    assert ends(program("mistral", WINDOW, LONGEST)) == [(WINDOW, LONGEST)]


@pytest.mark.parametrize("attention", [Attention.FLASH, Attention.EAGER])
def test_only_sdpa_does_other_things_from_the_window_on(attention: Attention) -> None:
    found = program("mistral", attention=attention)
    assert ends(found) == [(SHORTEST, LONGEST)]
    assert "masked attention" not in found.kernels


def test_grouped_heads_in_fp32_take_a_fused_kernel_where_a_layer_has_a_mask() -> None:
    kernels = program("gemma2-mixed", weights=Weights.FP32).kernels
    assert kernels == {"attention": "sdpa: math path", "masked attention": "sdpa: fused kernel with a bias"}


def test_a_window_that_the_config_does_not_use_splits_nothing() -> None:
    found = program("qwen2-unused")
    assert ends(found) == [(SHORTEST, LONGEST)]
    assert found.kernels == {"attention": "sdpa: fused kernel"}


def test_a_window_that_the_config_does_not_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "windows", lambda *_: ())
    with pytest.raises(NotForecastError, match="has one of 64 tokens"):
        program("mistral", 32)
