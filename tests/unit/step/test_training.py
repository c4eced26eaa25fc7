from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from raysweep.errors import SpaceError
from raysweep.setting import AdapterSetting, Attention, Checkpointing, Loss, StepSetting, Weights
from raysweep.step.model import build
from raysweep.step.observer import Phase
from raysweep.step.training import TrainingStep

PLAIN = StepSetting(
    weights=Weights.FP32, checkpointing=Checkpointing.NONE, loss_chunk_tokens=7, adapter=AdapterSetting(rank=4)
)


def one_pass(
    config: LlamaConfig, setting: StepSetting, ids: torch.Tensor, labels: torch.Tensor | None = None, **more: object
) -> tuple[float, list[torch.Tensor]]:
    """Loss and adapter gradients of one micro-step; B is made non-zero, so that A gets a gradient too."""
    model = build(config, setting, device="cpu", seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=generator)
    step = TrainingStep(model, setting, **more)  # type: ignore[arg-type]
    torch.manual_seed(11)
    loss = step.micro_step(ids, ids if labels is None else labels)
    gradients = [parameter.grad.clone() for parameter in step.trained if parameter.grad is not None]
    assert len(gradients) == len(step.trained) > 0
    assert any(gradient.abs().sum() > 0 for gradient in gradients)
    return float(loss), gradients


def assert_same(one: tuple[float, list[torch.Tensor]], other: tuple[float, list[torch.Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 20, 40, 1000])
def test_chunked_loss_gives_the_full_loss_and_its_gradients(
    tiny: LlamaConfig, tokens: torch.Tensor, chunk_tokens: int
) -> None:
    chunked = replace(PLAIN, loss=Loss.CHUNKED, loss_chunk_tokens=chunk_tokens)
    assert_same(one_pass(tiny, chunked, tokens), one_pass(tiny, PLAIN, tokens))


def test_a_label_of_minus_100_counts_in_neither_loss(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    labels = tokens.clone()
    labels[0, :9] = labels[1, 15:] = -100
    full = one_pass(tiny, PLAIN, tokens, labels)
    assert_same(one_pass(tiny, replace(PLAIN, loss=Loss.CHUNKED), tokens, labels), full)
    assert full[0] != pytest.approx(one_pass(tiny, PLAIN, tokens)[0], rel=1e-5)


@pytest.mark.parametrize("loss", [Loss.FULL, Loss.CHUNKED])
@pytest.mark.parametrize("checkpointing", [Checkpointing.GPU, Checkpointing.CPU])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_changes_neither_loss_nor_gradients(
    tiny: LlamaConfig, tokens: torch.Tensor, checkpointing: Checkpointing, loss: Loss, dropout: float
) -> None:
    plain = replace(PLAIN, loss=loss, adapter=AdapterSetting(rank=4, dropout=dropout))
    assert_same(
        one_pass(tiny, replace(plain, checkpointing=checkpointing), tokens),
        one_pass(tiny, plain, tokens),
    )


@pytest.mark.parametrize("loss", [Loss.FULL, Loss.CHUNKED])
def test_accumulation_equals_one_larger_batch(tiny: LlamaConfig, tokens: torch.Tensor, loss: Loss) -> None:
    setting = replace(PLAIN, loss=loss)
    large = one_pass(tiny, setting, tokens)[1]
    model = build(tiny, setting, device="cpu", seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=generator)
    step = TrainingStep(model, replace(setting, accumulation=2))
    for item in tokens:
        step.micro_step(item[None], item[None])
    for parameter, gradient in zip(step.trained, large, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("attention", [Attention.SDPA, Attention.EAGER])
def test_a_few_steps_lower_the_loss(
    tiny: LlamaConfig, tokens: torch.Tensor, autocast: bool, attention: Attention
) -> None:
    setting = replace(PLAIN, autocast=autocast, attention=attention, max_grad_norm=1.0)
    step = TrainingStep(build(tiny, setting, device="cpu"), setting)
    losses = []
    for _ in range(4):
        losses.append(float(step.micro_step(tokens, tokens)))
        step.optimizer_step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_autocast_computes_in_bf16(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    exact, _ = one_pass(tiny, PLAIN, tokens)
    rounded, _ = one_pass(tiny, replace(PLAIN, autocast=True), tokens)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=1e-2)


def test_the_seed_decides_dropout(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    setting = replace(PLAIN, adapter=AdapterSetting(rank=4, dropout=0.5))
    step = TrainingStep(build(tiny, setting, device="cpu"), setting)
    with torch.no_grad():
        for parameter in step.trained:
            parameter.fill_(0.05)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return float(step.micro_step(tokens, tokens))

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)


def test_clipping_bounds_the_gradient_norm(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    setting = replace(PLAIN, max_grad_norm=1e-3)
    step = TrainingStep(build(tiny, setting, device="cpu"), setting)
    seen: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            seen.append(float(torch.stack([p.grad.norm() for p in step.trained if p.grad is not None]).norm()))

    step.optimizer = Watched(step.trained, lr=0.0)
    step.micro_step(tokens, tokens)
    step.optimizer_step()
    assert seen == [pytest.approx(1e-3, rel=1e-3)]


def test_nothing_but_the_adapter_is_trained(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    step = TrainingStep(build(tiny, PLAIN, device="cpu"), PLAIN)
    before = {name: parameter.clone() for name, parameter in step.model.named_parameters()}
    for _ in range(2):  # the first step moves B alone, since B starts from zero
        step.micro_step(tokens, tokens)
        step.optimizer_step()
    changed = {name for name, parameter in step.model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if "lora_" in name}


def test_a_step_leaves_no_gradient_behind(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    step = TrainingStep(build(tiny, PLAIN, device="cpu"), PLAIN)
    step.micro_step(tokens, tokens)
    assert all(parameter.grad is not None for parameter in step.trained)
    step.optimizer_step()
    assert all(parameter.grad is None for parameter in step.trained)


class Watch:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def phase(self, name: Phase) -> None:
        self.seen.append(name)

    def loss_chunk(self, index: int, count: int) -> None:
        self.seen.append((index, count))


def test_the_observer_hears_of_phases_in_their_order(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    watch = Watch()
    step = TrainingStep(build(tiny, PLAIN, device="cpu"), PLAIN, observer=watch)
    step.micro_step(tokens, tokens)
    step.optimizer_step()
    assert watch.seen == [Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER]


def test_the_observer_hears_of_chunks_forward_and_again_as_they_are_recomputed(
    tiny: LlamaConfig, tokens: torch.Tensor
) -> None:
    watch = Watch()
    setting = replace(PLAIN, loss=Loss.CHUNKED, loss_chunk_tokens=16)
    TrainingStep(build(tiny, setting, device="cpu"), setting, observer=watch).micro_step(tokens, tokens)
    forward = [(0, 3), (1, 3), (2, 3)]  # 2 items of 20 predicted tokens, 16 at a time
    assert watch.seen == [Phase.FORWARD, Phase.LOSS, *forward, Phase.BACKWARD, *reversed(forward)]


class CountingStore:
    def __init__(self) -> None:
        self.stored: list[tuple[int, ...]] = []

    def store(self, tensor: torch.Tensor) -> torch.Tensor:
        self.stored.append(tuple(tensor.shape))
        return tensor.clone()

    def load(self, handle: torch.Tensor) -> torch.Tensor:
        return handle


@pytest.mark.parametrize("loss", [Loss.FULL, Loss.CHUNKED])
def test_only_layer_inputs_go_to_the_host(tiny: LlamaConfig, tokens: torch.Tensor, loss: Loss) -> None:
    store = CountingStore()
    setting = replace(PLAIN, loss=loss, checkpointing=Checkpointing.CPU)
    one_pass(tiny, setting, tokens, host_store=store)
    assert store.stored == [(2, 21, 32)] * tiny.num_hidden_layers


def test_closing_leaves_the_model_as_it_was(tiny: LlamaConfig, tokens: torch.Tensor) -> None:
    model = build(tiny, PLAIN, device="cpu")
    plain = TrainingStep(model, PLAIN)
    before = float(plain.micro_step(tokens, tokens))
    plain.close()
    for checkpointing in (Checkpointing.GPU, Checkpointing.CPU):
        TrainingStep(model, replace(PLAIN, checkpointing=checkpointing)).close()
    base = model.get_base_model()
    assert not any(getattr(module, "gradient_checkpointing", False) for module in base.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert float(TrainingStep(model, PLAIN).micro_step(tokens, tokens)) == before


def test_a_model_that_transforms_its_logits_refuses_other_losses_by_name(tokens: torch.Tensor) -> None:
    from transformers import Gemma2Config

    config = Gemma2Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    setting = replace(PLAIN, attention=Attention.EAGER)
    model = build(config, setting, device="cpu")
    with pytest.raises(SpaceError, match="final_logit_softcapping"):
        TrainingStep(model, replace(setting, loss=Loss.CHUNKED))
    assert TrainingStep(model, setting).micro_step(tokens, tokens).isfinite()


def test_flash_attention_refuses_fp32(tiny: LlamaConfig) -> None:
    setting = replace(PLAIN, attention=Attention.FLASH)
    with pytest.raises(SpaceError, match="fp32"):
        TrainingStep(build(tiny, setting, device="meta"), setting)
