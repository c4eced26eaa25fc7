"""The LoRA adapter: its targets checked against the model, its parameters in the dtype that the setting names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from raysweep.errors import SpaceError, nearest
from raysweep.setting import ALL_LINEAR, AdapterDtype, AdapterSetting

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


class ResidentCopies(nn.Module):
    """Further copies of the trained parameters that stay on the device: a snapshot, a second adapter."""

    def __init__(self, parameters: list[nn.Parameter], count: int) -> None:
        """Copy every one of ``parameters`` ``count`` times, as buffers that are neither trained nor saved."""
        super().__init__()
        for copy in range(count):
            for index, parameter in enumerate(parameters):
                self.register_buffer(f"copy{copy}_{index}", parameter.detach().clone(), persistent=False)


def base_of(model: PeftModel) -> PreTrainedModel:
    """Return the causal language model inside peft's wrapper."""
    return cast("PreTrainedModel", model.get_base_model())


def head_of(base: PreTrainedModel) -> nn.Linear:
    """Return the output head; an adapter may stand around it."""
    head = base.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    return cast("nn.Linear", head)


def linear_names(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the dotted names of the model's linear layers, the output head included."""
    from transformers.pytorch_utils import Conv1D

    return tuple(name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D)))


def check_targets(targets: tuple[str, ...], model: PreTrainedModel) -> None:
    """Refuse targets that are not linear layers of the model.

    Raises:
        SpaceError: names the target, the nearest valid name and all valid names.
    """
    names = linear_names(model)
    short = sorted({name.rsplit(".", 1)[-1] for name in names})
    if not targets:
        raise SpaceError(
            f"step.adapter.targets: no target is given; expected {ALL_LINEAR} or some of {', '.join(short)}."
        )
    if ALL_LINEAR in targets:
        if len(targets) > 1:
            raise SpaceError(f"step.adapter.targets: {ALL_LINEAR} stands alone; it came with {len(targets) - 1} more.")
        return
    for target in targets:
        # The rule by which peft matches a list of names.
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise SpaceError(
                f"step.adapter.targets: {target!r} is no linear layer of this model.{nearest(target, short)} "
                f"Expected {ALL_LINEAR} or some of {', '.join(short)}."
            )


def attach(model: PreTrainedModel, setting: AdapterSetting) -> PeftModel:
    """Freeze the model and put the adapter on it; trained parameters are the adapter's alone.

    Raises:
        SpaceError: a target is not a linear layer of the model.
    """
    from peft import LoraConfig, get_peft_model

    check_targets(setting.targets, model)
    model.requires_grad_(False)
    lora = LoraConfig(
        r=setting.rank,
        lora_alpha=cast("int", setting.alpha),  # peft declares an integer and divides by the rank
        lora_dropout=setting.dropout,
        target_modules=ALL_LINEAR if ALL_LINEAR in setting.targets else list(setting.targets),
        task_type="CAUSAL_LM",
    )
    # peft makes the adapter in the base weights' dtype and then, by default, casts half precision to fp32.
    adapted = get_peft_model(model, lora, autocast_adapter_dtype=setting.dtype is AdapterDtype.FP32)
    dtype = {AdapterDtype.FP32: torch.float32, AdapterDtype.BF16: torch.bfloat16}[setting.dtype]
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    for parameter in trained:
        if parameter.dtype is not dtype:
            parameter.data = parameter.data.to(dtype)
    if setting.resident_copies:
        adapted.add_module("resident_copies", ResidentCopies(trained, setting.resident_copies))
    return adapted
