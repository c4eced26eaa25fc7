"""The setting of one training step, and of the allocator it runs under: plain data, checked for form.

Names are checked against the model in ``raysweep.step``; a search space (``raysweep.space``) holds many settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self


class Weights(StrEnum):
    """How the frozen base model is stored."""

    FP32 = "fp32"
    BF16 = "bf16"
    NF4 = "nf4"
    INT8 = "int8"


class WeightsFrom(StrEnum):
    """Where the base model's weights come from when a probe loads it. A forecast needs none."""

    RANDOM = "random"
    """Drawn on the device: nothing is downloaded or read."""
    PRETRAINED = "pretrained"
    """The checkpoint's own."""


class Checkpointing(StrEnum):
    """Which activations are kept: all, layer inputs on the GPU, or layer inputs in pinned host memory."""

    NONE = "none"
    GPU = "gpu"
    CPU = "cpu"


class Loss(StrEnum):
    """How the cross entropy is computed."""

    FULL = "full"
    """All logits at once, as transformers does."""
    CHUNKED = "chunked"
    """In chunks of ``loss_chunk_tokens`` tokens, each under a checkpoint."""
    LIGER = "liger"
    """Liger's fused linear cross entropy."""


class Attention(StrEnum):
    """The attention implementation, by transformers' name (``flash`` is flash-attn)."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH = "flash"


class Optimizer(StrEnum):
    """The optimizer of the adapter's parameters."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    PAGED_ADAMW_8BIT = "paged-adamw-8bit"


class AdapterDtype(StrEnum):
    """The dtype of the trained adapter's parameters."""

    FP32 = "fp32"
    BF16 = "bf16"


ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer but the output head, as in peft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSetting:
    """A LoRA adapter."""

    rank: int = 16
    """0 is no adapter: the base model alone, which can generate but has nothing to train."""
    alpha: float = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = (ALL_LINEAR,)
    dtype: AdapterDtype = AdapterDtype.FP32
    resident_copies: int = 0
    """Further copies of the adapter kept on the device: a snapshot, a second adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetting:
    """One training step: what ``step`` builds, ``trace`` forecasts and ``probe`` measures."""

    weights: Weights = Weights.BF16
    adapter: AdapterSetting = field(default_factory=AdapterSetting)
    micro_batch: int = 1
    """Items a micro-step."""
    accumulation: int = 1
    """Micro-steps an optimizer step."""
    checkpointing: Checkpointing = Checkpointing.GPU
    loss: Loss = Loss.FULL
    loss_chunk_tokens: int = 4096
    attention: Attention = Attention.SDPA
    optimizer: Optimizer = Optimizer.ADAMW
    autocast: bool = False
    """Mixed precision as Hugging Face's Trainer does with ``bf16=True``."""
    max_grad_norm: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data, every field named."""
        data = asdict(self)
        data["adapter"]["targets"] = list(self.adapter.targets)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a setting from ``to_dict``'s data; a field an older version lacked takes its default."""
        adapter = dict(data.get("adapter", {}))
        adapter["targets"] = tuple(adapter.get("targets", (ALL_LINEAR,)))
        if "dtype" in adapter:
            adapter["dtype"] = AdapterDtype(adapter["dtype"])
        enums: dict[str, type[StrEnum]] = {
            "weights": Weights,
            "checkpointing": Checkpointing,
            "loss": Loss,
            "attention": Attention,
            "optimizer": Optimizer,
        }
        values: dict[str, Any] = {name: enums[name](v) if name in enums else v for name, v in data.items()}
        values["adapter"] = AdapterSetting(**adapter)
        return cls(**values)

    def differing(self, others: tuple[StepSetting, ...]) -> dict[str, Any]:
        """Return the fields, by dotted name, in which this setting differs from any other: a label for people."""
        mine = _flat(self.to_dict())
        return {k: v for k, v in mine.items() if any(_flat(o.to_dict())[k] != v for o in others)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSetting:
    """PyTorch's ``PYTORCH_CUDA_ALLOC_CONF``, as far as the forecast models it."""

    expandable_segments: bool = False
    garbage_collection_threshold: float | None = None
    """Share of the device's memory above which cached blocks are freed, older ones first; None is off."""
    max_split_size_mb: int | None = None
    """Blocks of this size (MiB) and above are not split; None is unlimited."""

    @property
    def conf(self) -> str:
        """The setting as the environment variable writes it; the defaults are left out, all of them empty."""
        names = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        return ",".join(f"{name}:{value}" for name, value in names.items())


ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""The environment variable that every version of torch reads."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", ALLOCATOR_VARIABLE)
"""Both names: which of them wins where both are set differs between versions (2.13 takes the older one)."""


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = tuple(value) if isinstance(value, list) else value
    return flat
