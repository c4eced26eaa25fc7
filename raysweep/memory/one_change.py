"""Which one change of a step frees most memory: the changes, and what each was forecast to leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from raysweep.memory.program import Category, Program
from raysweep.memory.study import Study
from raysweep.setting import AdapterDtype, AllocatorSetting, Attention, Checkpointing, Loss, StepSetting, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChange:
    """A step with one thing changed, forecast."""

    what: str
    """The field and its new value, for people."""
    step: StepSetting
    peak_reserved_bytes: int
    freed_bytes: int
    """Of the reserved peak; negative where the change takes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatFrees:
    """The largest peak of a forecast: what dominates it, and what single changes would leave of it."""

    step: StepSetting
    length_tokens: int
    peak_reserved_bytes: int
    dominant: str
    """The component that takes most of the allocated peak."""
    dominant_bytes: int
    changes: tuple[OneChange, ...]
    """The one that frees most first."""


def single_changes(step: StepSetting) -> dict[StepSetting, str]:
    """Return the settings that differ from a step in one thing that may free memory, with that thing in words.

    What trains is kept as it is where that can be: changes of the adapter come last.
    """
    found: dict[StepSetting, str] = {}
    if step.attention is Attention.EAGER:
        found[replace(step, attention=Attention.SDPA)] = "attention: sdpa"
    for kind in (Checkpointing.GPU, Checkpointing.CPU):
        # Each keeps less on the device than the one before it.
        if list(Checkpointing).index(kind) > list(Checkpointing).index(step.checkpointing):
            found[replace(step, checkpointing=kind)] = f"checkpointing: {kind.value}"
    if step.loss is Loss.FULL:
        found[replace(step, loss=Loss.CHUNKED)] = "loss: chunked"
    if step.micro_batch > 1:
        half = step.micro_batch // 2
        found[replace(step, micro_batch=half)] = f"micro_batch: {half}"
    if step.weights is Weights.FP32:
        found[replace(step, weights=Weights.BF16)] = "weights: bf16"
    if step.adapter.resident_copies:
        found[replace(step, adapter=replace(step.adapter, resident_copies=0))] = "adapter.resident_copies: 0"
    if step.adapter.dtype is AdapterDtype.FP32 and step.weights is not Weights.FP32:
        found[replace(step, adapter=replace(step.adapter, dtype=AdapterDtype.BF16))] = "adapter.dtype: bf16"
    if step.adapter.rank > 1:
        half = step.adapter.rank // 2
        found[replace(step, adapter=replace(step.adapter, rank=half))] = f"adapter.rank: {half}"
    return found


def what_frees(
    study: Study,
    length_tokens: int,
    changed: Mapping[StepSetting, Program],
    allocator: AllocatorSetting,
    *,
    workspace_bytes: int,
) -> WhatFrees:
    """Forecast every changed step at a length.

    Args:
        study: of the step as it is.
        length_tokens: tokens of one item.
        changed: programs of ``single_changes``, as far as they can be forecast; each must cover the length.
        allocator: the allocator's setting.
        workspace_bytes: of one cuBLAS workspace on the chip that is forecast.
    """
    before = study.steady(length_tokens, workspace_bytes=workspace_bytes)
    words = single_changes(study.step)
    changes = []
    for step, program in changed.items():
        after = Study(program, allocator).steady(length_tokens, workspace_bytes=workspace_bytes)
        changes.append(
            OneChange(
                what=words[step],
                step=step,
                peak_reserved_bytes=after.peak_reserved_bytes,
                freed_bytes=before.peak_reserved_bytes - after.peak_reserved_bytes,
            )
        )
    dominant = max(Category, key=lambda category: before.components_bytes[category])
    return WhatFrees(
        step=study.step,
        length_tokens=length_tokens,
        peak_reserved_bytes=before.peak_reserved_bytes,
        dominant=dominant.name.lower(),
        dominant_bytes=before.components_bytes[dominant],
        changes=tuple(sorted(changes, key=lambda change: -change.freed_bytes)),
    )
