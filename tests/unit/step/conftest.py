from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig


@pytest.fixture
def tiny() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 97, (2, 21), generator=torch.Generator().manual_seed(7))
