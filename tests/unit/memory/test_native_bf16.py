"""A chip without native bf16 is warned of, where a step computes in bf16."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.catalogue import Catalogue
from cost.domain import Device, Flavour
from raysweep.memory.native_bf16 import bf16_notes
from raysweep.setting import AdapterDtype, AdapterSetting, Attention, StepSetting, Weights

CATALOGUE = Catalogue.load()
T4 = CATALOGUE.flavour("hf/t4-small")
FP32 = StepSetting(weights=Weights.FP32)


@pytest.mark.parametrize(
    "step",
    [
        StepSetting(weights=Weights.BF16),
        StepSetting(weights=Weights.NF4),
        StepSetting(weights=Weights.INT8),
        replace(FP32, autocast=True),
        replace(FP32, adapter=AdapterSetting(dtype=AdapterDtype.BF16)),
    ],
)
def test_a_step_in_bf16_on_a_t4_is_warned_of(step: StepSetting) -> None:
    (note,) = bf16_notes([T4], [step])
    assert note.startswith("hf/t4-small: T4 has no native bf16.")


def test_a_step_in_fp32_alone_is_not() -> None:
    assert bf16_notes([T4], [FP32]) == ()


def test_one_chip_is_named_once_with_all_its_flavours() -> None:
    (note,) = bf16_notes([T4, CATALOGUE.flavour("hf/t4-medium")], [StepSetting()])
    assert note.startswith("hf/t4-small, hf/t4-medium: T4")


def test_no_other_chip_of_the_catalogue_lacks_native_bf16() -> None:
    others = [flavour for flavour in CATALOGUE.flavours if flavour.gpu_id != "t4"]
    assert bf16_notes(others, [StepSetting()]) == ()


def test_a_chip_of_unknown_capability_is_not_accused() -> None:
    unknown = Flavour(name="lab/x", provider="lab", device=Device(gpu_id="x", name="X"))
    assert bf16_notes([unknown, Flavour(name="lab/y", provider="lab")], [StepSetting()]) == ()


def test_what_attention_does_there_is_said_of_the_attention_that_is_used() -> None:
    notes = {a: bf16_notes([T4], [StepSetting(attention=a)])[0] for a in Attention}
    assert "more memory than is forecast" in notes[Attention.SDPA]
    assert "attention: flash" in notes[Attention.FLASH]
    assert "attention" not in notes[Attention.EAGER]
