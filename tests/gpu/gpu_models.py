"""Models of some 100 million parameters, of four families: a second's work on any card."""

from __future__ import annotations

from typing import Any

from transformers import GemmaConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config

_COMMON: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2_048,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131_072,
}


def llama() -> LlamaConfig:
    """Grouped heads of width 64."""
    return LlamaConfig(architectures=["LlamaForCausalLM"], **_COMMON)


def family(name: str) -> PretrainedConfig:
    """Return a family's small model, with what tells it from the others: biases, one wide key head, a tied head."""
    if name == "llama":
        return llama()
    if name == "qwen2":
        return Qwen2Config(**{**_COMMON, "vocab_size": 48_000, "intermediate_size": 3_072, "num_key_value_heads": 2})
    if name == "mistral":
        heads = {"hidden_size": 1_024, "num_attention_heads": 16, "head_dim": 64}
        return MistralConfig(**{**_COMMON, **heads, "sliding_window": None})
    if name == "gemma":
        heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
        return GemmaConfig(
            **{**_COMMON, **heads, "vocab_size": 64_000, "num_hidden_layers": 6, "tie_word_embeddings": True}
        )
    raise ValueError(f"{name!r} is no family; expected llama, qwen2, mistral or gemma")
