from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from raysweep.errors import SpaceError
from raysweep.setting import AdapterSetting, Checkpointing, Loss, Optimizer, StepSetting, Weights
from raysweep.step import packages
from raysweep.step.model import build
from raysweep.step.packages import MissingKernelError
from raysweep.step.training import TrainingStep

pytest.importorskip("bitsandbytes")

NF4 = StepSetting(weights=Weights.NF4, loss=Loss.CHUNKED, loss_chunk_tokens=16, adapter=AdapterSetting(rank=4))
INT8 = replace(NF4, weights=Weights.INT8)


@pytest.fixture
def wide() -> Qwen2Config:
    """Wide enough for bitsandbytes' blocks of 64; with biases and tied embeddings."""
    return Qwen2Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


@pytest.mark.parametrize("setting", [NF4, INT8])
@pytest.mark.parametrize("checkpointing", list(Checkpointing))
def test_a_quantised_model_trains(
    wide: Qwen2Config, tokens: torch.Tensor, setting: StepSetting, checkpointing: Checkpointing
) -> None:
    setting = replace(setting, checkpointing=checkpointing)
    step = TrainingStep(build(wide, setting, device="cpu"), setting)
    losses = []
    for _ in range(4):
        losses.append(float(step.micro_step(tokens, tokens)))
        step.optimizer_step()
    assert losses[-1] < losses[0]


def test_nf4_packs_two_weights_a_byte_with_nested_scales(wide: Qwen2Config) -> None:
    layer = build(wide, NF4, device="cpu").get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.dtype is torch.uint8
    assert layer.weight.numel() == 64 * 128 // 2
    assert layer.weight.quant_state.nested
    assert layer.weight.quant_state.absmax.numel() == 64 * 128 // 64
    assert layer.compute_dtype is torch.bfloat16


def test_int8_keeps_a_byte_a_weight(wide: Qwen2Config) -> None:
    layer = build(wide, INT8, device="cpu").get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert layer.weight.dtype is torch.int8
    assert layer.weight.shape == (128, 64)


@pytest.mark.parametrize("setting", [NF4, INT8])
def test_what_is_not_quantised_stays_bf16_and_initialised(wide: Qwen2Config, setting: StepSetting) -> None:
    base = build(wide, setting, device="cpu").get_base_model()
    assert base.lm_head.weight is base.model.embed_tokens.weight
    assert base.model.embed_tokens.weight.dtype is torch.bfloat16
    assert base.model.embed_tokens.weight.float().std() == pytest.approx(0.02, rel=0.1)
    assert torch.all(base.model.norm.weight == 1)
    bias = base.model.layers[0].self_attn.q_proj.base_layer.bias
    assert bias.dtype is torch.bfloat16
    assert torch.all(bias == 0)
    head = wide.hidden_size // wide.num_attention_heads
    frequencies = 1 / wide.rope_parameters["rope_theta"] ** (torch.arange(0, head, 2) / head)
    torch.testing.assert_close(base.model.rotary_emb.inv_freq, frequencies)


def test_dequantised_weights_have_the_deviation_they_were_drawn_with(wide: Qwen2Config) -> None:
    import bitsandbytes

    layer = build(wide, NF4, device="cpu").get_base_model().model.layers[0].mlp.up_proj.base_layer
    weights = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    assert weights.float().std() == pytest.approx(wide.initializer_range, rel=0.1)


@pytest.mark.parametrize("setting", [NF4, INT8])
def test_meta_gives_unpacked_shapes(wide: Qwen2Config, setting: StepSetting) -> None:
    model = build(wide, setting, device="meta")
    layer = model.get_base_model().model.layers[0].mlp.up_proj.base_layer
    assert (layer.weight.shape, layer.weight.dtype) == ((128, 64), torch.bfloat16)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.get_default_dtype() is torch.float32


def test_eight_bit_adam_keeps_bytes_for_large_parameters(tokens: torch.Tensor) -> None:
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    adapter = AdapterSetting(rank=64, targets=("up_proj",))
    setting = StepSetting(weights=Weights.FP32, optimizer=Optimizer.ADAMW_8BIT, adapter=adapter)
    step = TrainingStep(build(config, setting, device="cpu"), setting)
    losses = []
    for _ in range(3):
        losses.append(float(step.micro_step(tokens, tokens)))
        step.optimizer_step()
    assert losses[-1] < losses[0]
    assert {state["state1"].dtype for state in step.optimizer.state.values()} == {torch.uint8}


def test_paged_adam_needs_cuda(tiny: LlamaConfig) -> None:
    setting = StepSetting(optimizer=Optimizer.PAGED_ADAMW_8BIT, adapter=AdapterSetting(rank=4))
    with pytest.raises(SpaceError, match="paged-adamw-8bit"):
        TrainingStep(build(tiny, setting, device="cpu"), setting)


@pytest.mark.parametrize(
    ("setting", "package"),
    [
        (NF4, "bitsandbytes"),
        (INT8, "bitsandbytes"),
        (StepSetting(loss=Loss.LIGER), "triton"),
        (StepSetting(optimizer=Optimizer.ADAMW_8BIT), "bitsandbytes"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, tiny: LlamaConfig, setting: StepSetting, package: str
) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingKernelError, match=f"pip install {package}"):
        TrainingStep(build(tiny, setting, device="cpu"), setting)


def test_the_fused_loss_is_told_hidden_states_and_targets(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    """The kernel itself needs a GPU; here one of plain torch stands in its place."""

    def kernel(weight: torch.Tensor, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(hidden @ weight.T, targets)

    full = StepSetting(weights=Weights.FP32, adapter=AdapterSetting(rank=4), loss=Loss.FULL)
    fused = replace(full, loss=Loss.LIGER)
    expected = TrainingStep(build(tiny, full, device="cpu"), full).micro_step(tokens, tokens)
    got = TrainingStep(build(tiny, fused, device="cpu"), fused, fused_kernel=kernel).micro_step(tokens, tokens)
    torch.testing.assert_close(got, expected)


def test_the_fused_loss_refuses_an_adapted_head(tiny: LlamaConfig) -> None:
    setting = StepSetting(loss=Loss.LIGER, adapter=AdapterSetting(rank=4, targets=("q_proj", "lm_head")))
    with pytest.raises(SpaceError, match="output head"):
        TrainingStep(build(tiny, setting, device="meta"), setting)
