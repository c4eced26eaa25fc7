"""Base models in 4 or 8 bits, as transformers and bitsandbytes lay them out, with random weights.

The model is made on ``meta``; then, layer by layer, a weight is drawn on the device and quantised, as transformers does
with a weight that it reads. So at most one layer stands in bf16 on the device at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from raysweep.setting import Weights
from raysweep.step.packages import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

DTYPE = torch.bfloat16
"""Of what is not quantised, and of the arithmetic."""


def bitsandbytes_config(weights: Weights) -> BitsAndBytesConfig:
    """Return transformers' quantisation config: nf4 with double quantisation, or LLM.int8()."""
    from transformers import BitsAndBytesConfig

    if weights is Weights.NF4:
        return BitsAndBytesConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPE,
        )
    return BitsAndBytesConfig(load_in_8bit=True)  # type: ignore[no-untyped-call]  # likewise


def require_quantisation(weights: Weights) -> None:
    """Import what quantised weights need.

    Raises:
        MissingKernelError: bitsandbytes or accelerate is not installed.
    """
    for package in ("bitsandbytes", "accelerate"):
        require(package, f"step.weights: {weights.value!r}")


def build_quantised(
    config: PretrainedConfig, weights: Weights, *, attention: str, device: torch.device
) -> PreTrainedModel:
    """Return the base model with its linear layers but the output head quantised.

    Args:
        config: of a causal language model.
        weights: ``nf4`` or ``int8``.
        attention: transformers' name of the implementation.
        device: where the weights are made. ``meta`` gives bitsandbytes' layers with their unpacked weights' shapes.

    Raises:
        MissingKernelError: bitsandbytes or accelerate is not installed.
    """
    from transformers import AutoModelForCausalLM
    from transformers.quantizers.auto import AutoHfQuantizer

    require_quantisation(weights)
    quantiser: Any = AutoHfQuantizer.from_config(bitsandbytes_config(weights), pre_quantized=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
            config, dtype=DTYPE, attn_implementation=attention
        )
    with _default_dtype(DTYPE):  # of the biases: bitsandbytes' layers are made anew
        quantiser.preprocess_model(model=model, device_map={"": device})
    if device.type != "meta":
        _materialise(model, quantiser, device)
    model.hf_quantizer = quantiser
    quantiser.postprocess_model(model)
    return cast("PreTrainedModel", model)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def _materialise(model: PreTrainedModel, quantiser: Any, device: torch.device) -> None:
    """Give every parameter and buffer of a model on ``meta`` its place and its random value, in the modules' order."""
    deviation = getattr(model.config.get_text_config(), "initializer_range", None) or 0.02  # transformers' own default
    quantise = quantiser.get_quantize_ops()
    placed: dict[int, nn.Parameter] = {}  # by the id of the parameter on meta: tied ones stay one
    for prefix, module in list(model.named_modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            path = f"{prefix}.{name}"
            if quantiser.param_needs_quantization(model, path):
                value = torch.empty(parameter.shape, dtype=DTYPE, device=device).normal_(std=deviation)
                module._parameters[name] = quantise.convert({path: value}, model=model, full_layer_name=path)[path]
                del value
                # transformers' initialisation would write floats over the packed weight.
                module._is_hf_initialized = True
                continue
            if id(parameter) not in placed:
                empty = torch.empty_like(parameter, device=device)
                placed[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            module._parameters[name] = placed[id(parameter)]
            if getattr(module, "_is_hf_initialized", False):  # the bias of a layer that is quantised
                module._parameters[name].zero_()
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty_like(buffer, device=device)
    model.initialize_weights()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
