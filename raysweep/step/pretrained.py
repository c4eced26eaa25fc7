"""A checkpoint: where a model's real weights lie, and the base model that holds them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from raysweep.errors import MachineError, SpaceError
from raysweep.paths import exists, expanded, is_file
from raysweep.setting import Weights
from raysweep.step.config import shape_names
from raysweep.step.quantised import DTYPE, bitsandbytes_config, require_quantisation

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""What transformers looks for, in its order; an index names the files over which the weights are spread."""

_KEY = "weights_from: pretrained"
_OTHERWISE = "or write weights_from: random."


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights in floats, as transformers saves them."""

    source: str
    """A folder, or an id of the Hugging Face Hub."""
    trust_remote_code: bool = False


def find_checkpoint(model: str, config: PretrainedConfig, *, trust_remote_code: bool = False) -> Checkpoint:
    """Return where the weights of a model lie; nothing is downloaded.

    Args:
        model: as ``raysweep.step.config.load_config`` takes it.
        config: what that returned.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        SpaceError: the model names no weights, not all of them, or weights that are quantised already.
        MachineError: the Hub did not say whether it has them.
    """
    if model in shape_names():
        raise SpaceError(
            f"{_KEY}: expected a model with weights; {model!r} is a shipped shape, which is a config alone. "
            f"Under model: write its Hub id (owner/name) or a folder with its weights, {_OTHERWISE}"
        )
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is not None:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation.quant_method
        raise SpaceError(
            f"{_KEY}: expected weights in floats, which step.weights then quantises; those of {model!r} are quantised "
            f"already ({method}). Under model: name the checkpoint that they were made from, {_OTHERWISE}"
        )
    path = expanded(model)
    if exists(path):
        folder = path.parent if is_file(path) else path
        _check_folder(folder, alone=is_file(path) and path.name != "config.json", model=model)
        return Checkpoint(source=str(folder), trust_remote_code=trust_remote_code)
    _check_hub(model)
    return Checkpoint(source=model, trust_remote_code=trust_remote_code)


def _check_folder(folder: Path, *, alone: bool, model: str) -> None:
    found = next((folder / name for name in WEIGHT_FILES if is_file(folder / name)), None)
    if alone or found is None:
        where = f"{model!r} is a config alone" if alone else f"the folder {str(folder)!r} has none of these"
        raise SpaceError(
            f"{_KEY}: expected {' or '.join(WEIGHT_FILES)} beside config.json; {where}. "
            f"Save the weights there (model.save_pretrained), name a folder or a Hub id that has them, {_OTHERWISE}"
        )
    if found.suffix == ".json":
        missing = [name for name in _parts(found) if not is_file(folder / name)]
        if missing:
            raise SpaceError(
                f"{_KEY}: expected every file that {found} names; {missing[0]} is missing"
                f"{f', and {len(missing) - 1} more' if missing[1:] else ''}. Copy or download it again, {_OTHERWISE}"
            )


def _parts(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpaceError(f"{_KEY}: expected an index with a weight_map; {index} is none ({error}).") from error


def _check_hub(model: str) -> None:
    import httpx
    from huggingface_hub import HfApi, try_to_load_from_cache

    if any(isinstance(try_to_load_from_cache(model, name), str) for name in WEIGHT_FILES):
        return
    try:
        files = HfApi().list_repo_files(model)
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().splitlines()
        raise MachineError(
            f"{_KEY}: the Hugging Face Hub did not say whether it has weights of {model!r} "
            f"({reason[0] if reason else type(error).__name__}). Check the network, or name a folder with the weights."
        ) from error
    if not set(WEIGHT_FILES) & set(files):
        raise SpaceError(
            f"{_KEY}: expected {' or '.join(WEIGHT_FILES)}; {model!r} on the Hugging Face Hub has none of these. "
            f"Name a model that has them, {_OTHERWISE}"
        )


def load_pretrained(
    config: PretrainedConfig,
    checkpoint: Checkpoint,
    weights: Weights,
    *,
    dtype: torch.dtype | None,
    attention: str,
    device: torch.device,
) -> PreTrainedModel:
    """Return the base model with a checkpoint's weights.

    Modules that transformers keeps in fp32 for a model stay so.

    Args:
        config: of the checkpoint.
        checkpoint: where the weights lie.
        weights: how they are stored on the device.
        dtype: of weights that are not quantised; None where they are.
        attention: transformers' name of the implementation.
        device: where they go.

    Raises:
        SpaceError: the checkpoint lacks weights of this model.
        MissingKernelError: bitsandbytes or accelerate is not installed, and the weights are to be quantised.
    """
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype}
    if dtype is None:
        require_quantisation(weights)
        options = {
            "dtype": DTYPE,
            "quantization_config": bitsandbytes_config(weights),
            "device_map": {"": device},
        }
    loader: Any = AutoModelForCausalLM  # its annotations know nothing of output_loading_info
    model, info = loader.from_pretrained(
        checkpoint.source,
        config=config,
        attn_implementation=attention,
        trust_remote_code=checkpoint.trust_remote_code,
        output_loading_info=True,
        **options,
    )
    missing = sorted(info["missing_keys"])
    if missing:
        # transformers would draw them at random, with no more than a warning.
        raise SpaceError(
            f"{_KEY}: expected every weight of this {config.model_type!r} model in {checkpoint.source!r}; "
            f"{len(missing)} are missing, such as {missing[0]}. Name a checkpoint of this very model, {_OTHERWISE}"
        )
    # Without a device map transformers loads on the host. Moved from there each weight is an allocation of its own, as
    # a random one is; with a map transformers first reserves one block as large as the whole model.
    return cast("PreTrainedModel", model if dtype is None else model.to(device))
