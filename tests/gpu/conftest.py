from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig

from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace

QUICK = Pace(measured_seconds=0)


@pytest.fixture(autouse=True)
def needs_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def small() -> LlamaConfig:
    """Some 100 million parameters: a second's work on any card."""
    return LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2_048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )


@pytest.fixture
def runner(small: LlamaConfig) -> Iterator[DeviceRunner]:
    runner = DeviceRunner(small, pace=QUICK)
    yield runner
    runner.close()
