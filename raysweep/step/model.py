"""The adapted model that a step trains, on its device: with random weights, or with a checkpoint's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, cast

import torch

from raysweep.errors import SpaceError
from raysweep.setting import Attention, StepSetting, Weights
from raysweep.step.adapter import attach
from raysweep.step.config import load_config
from raysweep.step.packages import has_linear_attention, require
from raysweep.step.pretrained import Checkpoint, load_pretrained
from raysweep.step.quantised import build_quantised

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["build", "build_base", "load_config"]

_DTYPES = {Weights.FP32: torch.float32, Weights.BF16: torch.bfloat16}

_ATTENTION_NAMES = {Attention.SDPA: "sdpa", Attention.EAGER: "eager", Attention.FLASH: "flash_attention_2"}
"""transformers' names."""


def build(
    config: PretrainedConfig,
    setting: StepSetting,
    *,
    device: str | torch.device,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
) -> PeftModel:
    """Return the model with its adapter, frozen but for the adapter.

    Args:
        config: of a causal language model; it is not changed.
        setting: the step whose weights, adapter and attention are built.
        device: where the weights are made; ``meta`` gives shapes only.
        seed: of the random weights, and of what is drawn after them (dropout).
        checkpoint: whose weights the base model has; None draws them at random. The adapter is a new one either way.

    Raises:
        SpaceError: the setting names what this model or this step does not have.
        MissingKernelError: a package that the setting needs is not installed.
    """
    device = torch.device(device)
    base = build_base(config, setting, device=device, seed=seed, checkpoint=checkpoint)
    if device.type == "meta":
        with device:
            return attach(base, setting.adapter)
    # peft makes each adapter on the host and moves it, as it does for whoever loads a model and then adapts it.
    return attach(base, setting.adapter)


def build_base(
    config: PretrainedConfig,
    setting: StepSetting,
    *,
    device: str | torch.device,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
) -> PreTrainedModel:
    """Return the model without an adapter, for generation without one. Arguments and errors are ``build``'s."""
    from transformers import AutoModelForCausalLM

    device = torch.device(device)
    torch.manual_seed(seed)
    config = copy.deepcopy(config)
    config.use_cache = False
    attention = _attention(setting, device)
    if device.type == "cuda" and has_linear_attention(config):
        # Without it transformers would fall back on plain torch: another program, with other memory and time.
        require("fla", "this model's linear attention")
    try:
        if checkpoint is not None:
            dtype = _DTYPES.get(setting.weights)
            return load_pretrained(config, checkpoint, setting.weights, dtype=dtype, attention=attention, device=device)
        if setting.weights not in _DTYPES:
            return build_quantised(config, setting.weights, attention=attention, device=device)
        with device:
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
                config, dtype=_DTYPES[setting.weights], attn_implementation=attention
            )
    except (ValueError, ImportError) as error:
        if "attention" not in str(error).lower():
            raise
        raise SpaceError(
            f"step.attention: {setting.attention.value!r} cannot be used with {config.model_type!r}: {error}"
        ) from error
    return cast("PreTrainedModel", model)


def _attention(setting: StepSetting, device: torch.device) -> str:
    if setting.attention is Attention.FLASH:
        if device.type == "meta":
            # Shapes do not depend on the kernel, and flash-attn need not be installed where nothing runs.
            return _ATTENTION_NAMES[Attention.SDPA]
        if device.type != "cuda":
            raise SpaceError(f"step.attention: 'flash' runs on CUDA alone, not on {device.type!r}; expected 'sdpa'.")
        require("flash_attn", "step.attention: 'flash'")
    return _ATTENTION_NAMES[setting.attention]
