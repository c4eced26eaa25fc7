"""Chips without native bf16, and what a forecast cannot promise of a step in bf16 on them."""

from __future__ import annotations

from collections.abc import Iterable

from cost.domain import Flavour
from raysweep.setting import AdapterDtype, Attention, StepSetting, Weights


def bf16_notes(flavours: Iterable[Flavour], steps: Iterable[StepSetting]) -> tuple[str, ...]:
    """Return a warning for each chip without native bf16 on which a step computes in bf16.

    Sources: torch.cuda.is_bf16_supported, whose bf16 is emulated on such a chip; aten/src/ATen/native/transformers/
    cuda/sdp_utils.cpp, whose fused kernels take bf16 from compute capability 8.0 on; flash-attn's README for the same.
    """
    attentions = {step.attention for step in steps if _computes_in_bf16(step)}
    if not attentions:
        return ()
    chips: dict[str, list[str]] = {}
    for flavour in flavours:
        if flavour.device is not None and flavour.device.has_native_bf16 is False:
            chips.setdefault(flavour.device.name, []).append(flavour.name)
    more = "".join(text for attention, text in _MORE.items() if attention in attentions)
    return tuple(
        f"{', '.join(names)}: {chip} has no native bf16. Expect bf16 to be emulated there, no faster than fp32{more}. "
        "Probe the card itself before you rely on it."
        for chip, names in chips.items()
    )


_MORE = {
    Attention.SDPA: "; and more memory than is forecast, since PyTorch's fused attention takes no bf16 there and what "
    "stands in for it holds whole attention matrices",
    Attention.FLASH: "; and attention: flash not to run at all",
}


def _computes_in_bf16(step: StepSetting) -> bool:
    return step.weights is not Weights.FP32 or step.adapter.dtype is AdapterDtype.BF16 or step.autocast
