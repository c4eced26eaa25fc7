"""Single changes of a step: which there are, in what order, and that each differs in one thing alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysweep.memory.one_change import single_changes
from raysweep.setting import AdapterSetting, Attention, Checkpointing, Loss, StepSetting, Weights

LARGE = StepSetting(
    weights=Weights.FP32,
    adapter=AdapterSetting(rank=16, resident_copies=1),
    micro_batch=4,
    checkpointing=Checkpointing.NONE,
    loss=Loss.FULL,
    attention=Attention.EAGER,
)


def test_a_large_step_can_change_in_many_ways() -> None:
    assert list(single_changes(LARGE).values()) == [
        "attention: sdpa",
        "checkpointing: gpu",
        "checkpointing: cpu",
        "loss: chunked",
        "micro_batch: 2",
        "weights: bf16",
        "adapter.resident_copies: 0",
        "adapter.rank: 8",
    ]


def test_each_change_differs_in_one_thing() -> None:
    for changed in single_changes(LARGE):
        assert len(changed.differing((LARGE,))) == 1


def test_a_step_that_holds_little_has_nothing_left_to_change() -> None:
    least = StepSetting(
        weights=Weights.FP32, adapter=AdapterSetting(rank=1), checkpointing=Checkpointing.CPU, loss=Loss.CHUNKED
    )
    assert list(single_changes(least).values()) == ["weights: bf16"]


@pytest.mark.parametrize("kind", list(Checkpointing))
def test_checkpointing_is_only_ever_made_to_keep_less(kind: Checkpointing) -> None:
    order = list(Checkpointing)
    for changed in single_changes(replace(LARGE, checkpointing=kind)):
        assert order.index(changed.checkpointing) >= order.index(kind)
