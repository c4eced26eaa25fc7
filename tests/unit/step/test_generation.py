"""Generation has the length that was asked for, whatever the model's own generation config says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig

from raysweep.setting import AdapterSetting, StepSetting, Weights
from raysweep.step.generation import generate
from raysweep.step.model import build, build_base

SETTING = StepSetting(weights=Weights.FP32, adapter=AdapterSetting(rank=2))
EVERY_TOKEN = list(range(7))


@pytest.fixture
def talkative() -> LlamaConfig:
    """A model of which every token ends a sequence."""
    return LlamaConfig(
        vocab_size=len(EVERY_TOKEN),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=EVERY_TOKEN,
        bos_token_id=0,
    )


@pytest.mark.parametrize("make", [build, build_base])
def test_no_token_of_the_model_ends_a_generation_early(talkative: LlamaConfig, make: Callable[..., Any]) -> None:
    model = make(talkative, SETTING, device="cpu")
    tokens = generate(model, SETTING, torch.zeros(2, 4, dtype=torch.long), 9)
    assert tokens.shape == (2, 4 + 9)


def test_the_models_own_sampling_does_not_apply(talkative: LlamaConfig) -> None:
    model = build_base(talkative, SETTING, device="cpu")
    prompt = torch.zeros(1, 4, dtype=torch.long)
    greedy = generate(model, SETTING, prompt, 9)
    model.generation_config = GenerationConfig(do_sample=True, temperature=9.0, repetition_penalty=3.0, top_k=2)
    assert torch.equal(generate(model, SETTING, prompt, 9), greedy)


def test_the_model_keeps_its_own_generation_config(talkative: LlamaConfig) -> None:
    model = build_base(talkative, SETTING, device="cpu")
    own = model.generation_config
    generate(model, SETTING, torch.zeros(1, 4, dtype=torch.long), 2)
    assert model.generation_config is own
    assert own.eos_token_id == EVERY_TOKEN
