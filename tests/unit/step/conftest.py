from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, which cost much where tests share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
