from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from raysweep.errors import SpaceError
from raysweep.setting import AdapterDtype, AdapterSetting, Attention, StepSetting, Weights
from raysweep.step.model import build

BF16 = StepSetting(weights=Weights.BF16, adapter=AdapterSetting(rank=4))


def adapter_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_meta_has_the_shapes_of_the_real_model_and_no_data(tiny: LlamaConfig) -> None:
    real = build(tiny, BF16, device="cpu")
    shapes = build(tiny, BF16, device="meta")
    assert {n: (p.shape, p.dtype) for n, p in shapes.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in real.named_parameters()
    }
    assert all(tensor.is_meta for tensor in (*shapes.parameters(), *shapes.buffers()))


@pytest.mark.parametrize("weights", [Weights.FP32, Weights.BF16])
@pytest.mark.parametrize("dtype", list(AdapterDtype))
def test_base_and_adapter_have_the_dtypes_that_the_setting_names(
    tiny: LlamaConfig, weights: Weights, dtype: AdapterDtype
) -> None:
    setting = replace(BF16, weights=weights, adapter=AdapterSetting(rank=4, dtype=dtype))
    model = build(tiny, setting, device="cpu")
    names = {"fp32": torch.float32, "bf16": torch.bfloat16}
    trained = adapter_parameters(model)
    assert {p.dtype for p in trained.values()} == {names[dtype]}
    assert {p.dtype for n, p in model.named_parameters() if n not in trained} == {names[weights]}


def test_the_same_seed_gives_the_same_weights(tiny: LlamaConfig) -> None:
    one, same, other = (build(tiny, BF16, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_config_that_was_given_is_not_changed(tiny: LlamaConfig) -> None:
    before = tiny.to_dict()
    build(tiny, BF16, device="meta")
    assert tiny.to_dict() == before


def test_all_linear_is_every_linear_layer_but_the_head(tiny: LlamaConfig) -> None:
    model = build(tiny, BF16, device="meta")
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in adapter_parameters(model)}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_named_targets_alone_are_adapted(tiny: LlamaConfig) -> None:
    setting = replace(BF16, adapter=AdapterSetting(rank=4, targets=("q_proj", "v_proj")))
    trained = adapter_parameters(build(tiny, setting, device="meta"))
    assert len(trained) == 2 * 2 * tiny.num_hidden_layers
    assert all("q_proj" in name or "v_proj" in name for name in trained)


def test_rank_and_alpha_reach_the_adapter(tiny: LlamaConfig) -> None:
    setting = replace(BF16, adapter=AdapterSetting(rank=6, alpha=9, dropout=0.25))
    layer = build(tiny, setting, device="meta").get_base_model().model.layers[0].self_attn.q_proj
    assert layer.lora_A["default"].weight.shape == (6, 32)
    assert layer.scaling["default"] == 9 / 6
    assert layer.lora_dropout["default"].p == 0.25


@pytest.mark.parametrize(
    ("targets", "parts"),
    [
        (("q_prj",), ("'q_prj'", "Did you mean 'q_proj'?", "down_proj")),
        (("embed_tokens",), ("'embed_tokens'", "no linear layer")),
        (("self_attn",), ("'self_attn'", "no linear layer")),
        (("all-linear", "q_proj"), ("stands alone",)),
        ((), ("no target is given",)),
    ],
)
def test_a_target_that_is_no_linear_layer_is_named(
    tiny: LlamaConfig, targets: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    setting = replace(BF16, adapter=AdapterSetting(rank=4, targets=targets))
    with pytest.raises(SpaceError) as raised:
        build(tiny, setting, device="meta")
    for part in ("step.adapter.targets", *parts):
        assert part in str(raised.value)


@pytest.mark.parametrize("copies", [1, 2])
def test_resident_copies_hold_the_adapter_again(tiny: LlamaConfig, copies: int) -> None:
    setting = replace(BF16, adapter=AdapterSetting(rank=4, resident_copies=copies))
    model = build(tiny, setting, device="cpu")
    trained = adapter_parameters(model)
    held = [buffer for name, buffer in model.named_buffers() if name.startswith("resident_copies.")]
    assert sum(b.nbytes for b in held) == copies * sum(p.nbytes for p in trained.values())
    own = {p.data_ptr() for p in trained.values()}
    assert not own & {b.data_ptr() for b in held}


def test_flash_attention_on_the_cpu_is_refused(tiny: LlamaConfig) -> None:
    with pytest.raises(SpaceError, match="CUDA alone"):
        build(tiny, replace(BF16, attention=Attention.FLASH), device="cpu")
