"""Slips in a model's config.json, said where they stand: transformers takes some silently, and names no file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from raysweep.errors import SpaceError, nearest

if TYPE_CHECKING:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import PretrainedConfig

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
"""What a model's shape is made of, by the names that transformers gives them."""
_NEAR = 0.85
"""``difflib``'s ratio from which a key is a slip of the pen: other models' own keys are less alike."""
_OWN_ROPE_TYPES = ("mrope", "xdrope")
"""Of single models, which transformers handles in their own code."""


def check_written(data: dict[str, Any], place: str) -> None:
    """Refuse sizes that are no numbers, in a config.json or in the text part of one.

    Args:
        data: the file's object.
        place: what errors call the file.

    Raises:
        SpaceError: names the key.
    """
    for key in _SIZES:
        value = data.get(key)
        # Some models have a list, one number a layer.
        if value is None or isinstance(value, list):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpaceError(f"{place}: {key}: expected a whole number of 1 or more; {value!r} came.")
    if isinstance(data.get("text_config"), dict):
        check_written(data["text_config"], f"{place}: text_config")


def check_spelling(data: dict[str, Any], kind: type[PretrainedConfig], place: str) -> None:
    """Refuse a key that the model does not have and that is nearly one it has and misses: a default would stand for it.

    Raises:
        SpaceError: names both.
    """
    known = set(getattr(kind, "__dataclass_fields__", ()))
    aliases = dict(kind.attribute_map or {})
    missing = [key for key in _SIZES if key in known and key not in data and not (_aliases(key, aliases) & set(data))]
    for key in data:
        if key not in known and key not in aliases and (hint := nearest(key, missing, least=_NEAR)):
            raise SpaceError(f"{place}: {key}: unknown key of a model of type {kind.model_type!r}.{hint}")


def _aliases(key: str, aliases: dict[str, str]) -> set[str]:
    return {name for name, own in aliases.items() if own == key}


def check_config(config: PretrainedConfig, place: str) -> None:
    """Refuse a shape that no model can have, though transformers makes a config of it.

    Raises:
        SpaceError: names the key.
    """
    text = config.get_text_config()
    heads, groups = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise SpaceError(
            f"{place}: num_key_value_heads: expected a divisor of num_attention_heads, which is {heads}; {groups} came."
        )
    _check_rope(text, place)
    _check_activation(text, place)


def _check_rope(text: PretrainedConfig, place: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = getattr(text, "rope_parameters", None) or {}
    known = ("default", *ROPE_INIT_FUNCTIONS)
    # One for all layers, or one a kind of layer.
    for one in (parameters, *parameters.values()):
        kind = one.get("rope_type") if isinstance(one, dict) else None
        if kind is None or kind in known or kind in _OWN_ROPE_TYPES:
            continue
        if getattr(text, f"_validate_{kind}_rope_parameters", None) is None:
            raise SpaceError(
                f"{place}: rope_type: expected one of {', '.join(known)}; {kind!r} came.{nearest(kind, known)}"
            )


def _check_activation(text: PretrainedConfig, place: str) -> None:
    from transformers.activations import ACT2FN

    for key in ("hidden_act", "hidden_activation"):
        name = getattr(text, key, None)
        if isinstance(name, str) and name not in ACT2FN:
            hint = nearest(name, ACT2FN) or f" Known: {', '.join(ACT2FN)}."
            raise SpaceError(f"{place}: {key}: expected an activation of transformers; {name!r} came.{hint}")


def explained(error: StrictDataclassError, place: str) -> SpaceError:
    """Return what transformers refuses of a config's values, in one line, with the key where it names one."""
    cause = str(error.__cause__ or error).strip()
    field = re.search(r"for field '([^']+)'", str(error))
    if field is None:
        return SpaceError(f"{place}: {cause}")
    wanted = re.fullmatch(r"Field '[^']+' expected (.+), got (\w+) \(value: (.+)\)", cause, flags=re.DOTALL)
    text = cause
    if wanted:
        came = "null came." if wanted[2] == "NoneType" else f"{wanted[3]} came, which is {wanted[2]}."
        text = f"expected {wanted[1]}; {came}"
    return SpaceError(f"{place}: {field[1]}: {' '.join(text.split())}")


def quantisation_notes(config: PretrainedConfig, weights: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sentence that the weights are the step's and not the config's, where that one says how to quantise.

    Args:
        config: of the model.
        weights: what ``step.weights`` says, each once.
    """
    given = getattr(config, "quantization_config", None)
    if given is None:
        return ()
    said: dict[str, Any] = given if isinstance(given, dict) else given.to_dict()
    bits = next((f", {n} bits" for n in (4, 8) if said.get(f"load_in_{n}bit")), "")
    if not bits and isinstance(said.get("bits"), int):
        bits = f", {said['bits']} bits"
    method = getattr(said.get("quant_method"), "value", said.get("quant_method")) or "no method named"
    return (
        f"The model's config has a quantization_config ({method}{bits}), which is not followed: step.weights decides, "
        f"and is {' or '.join(weights)} here.",
    )
