"""Stand-ins of two narrow layers, with which the scripts are tried on a CPU."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 128,
    "pad_token_id": 0,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def shrunk(config: PretrainedConfig) -> PretrainedConfig:
    """Return a config of two narrow layers of the same family: its first kind of layer and its last."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for name, value in _SIZES.items():
        if hasattr(text, name):
            setattr(text, name, value)
    layer_types = getattr(text, "layer_types", None)
    if layer_types:
        text.layer_types = [layer_types[0], layer_types[-1]]
    return config
