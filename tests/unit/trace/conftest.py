from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import LlamaConfig


@pytest.fixture(scope="session")
def tiny() -> Callable[..., LlamaConfig]:
    """Makes a Llama of two layers; its tensors pass a megabyte at some tens of tokens, so that both pools are used."""

    def make(**changes) -> LlamaConfig:
        return LlamaConfig(
            **{
                "vocab_size": 3000,
                "hidden_size": 256,
                "intermediate_size": 768,
                "num_hidden_layers": 2,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "max_position_embeddings": 4096,
                "tie_word_embeddings": False,
                **changes,
            }
        )

    return make
