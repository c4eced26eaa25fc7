"""Gradients that reach one tensor on several ways are added up as on a device: in place where nothing else has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, LlamaConfig, Phi3Config, PretrainedConfig, Qwen3Config

from raysweep.memory.program import SegmentName
from raysweep.setting import AdapterSetting, Attention, Checkpointing, StepSetting
from raysweep.step.model import build
from raysweep.step.observer import Phase
from raysweep.step.training import TrainingStep
from raysweep.trace.gradients import ADD, holders_of_an_unshared_gradient, is_added_in_place
from raysweep.trace.tracing import trace

TOKENS = 24
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def sums(profiler: profile) -> list[bool]:
    """Return of each sum in a profile, in order, whether it was made in place."""
    events = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
    return [event.name == "aten::add_" for event in events if event.name in {"aten::add", "aten::add_"}]


class Watching:
    """An observer that profiles the backward pass."""

    def __init__(self) -> None:
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def phase(self, name: Phase) -> None:
        if name is Phase.BACKWARD:
            self.profiler.start()

    def loss_chunk(self, index: int, count: int) -> None:
        pass


def sums_on_the_cpu(config: PretrainedConfig, setting: StepSetting) -> list[bool]:
    watching = Watching()
    step = TrainingStep(build(config, setting, device="cpu"), setting, observer=watching)
    tokens = torch.zeros((setting.micro_batch, TOKENS), dtype=torch.int64)
    step.micro_step(tokens, tokens)
    watching.profiler.stop()
    return sums(watching.profiler)


def new_sums_traced(config: PretrainedConfig, setting: StepSetting) -> int:
    recording = trace(config, setting, TOKENS, whole=False)
    made = [recording.labels[recording.label[n]] for n in recording.segments[SegmentName.FIRST_MICRO].events if n >= 0]
    return sum((label.op, label.phase) == ("add", Phase.BACKWARD.value) for label in made)


@pytest.mark.parametrize("checkpointing", [Checkpointing.NONE, Checkpointing.GPU])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config, Phi3Config, Gemma2Config])
def test_as_many_sums_take_memory_as_on_a_device(
    config: Callable[..., PretrainedConfig], checkpointing: Checkpointing
) -> None:
    adapter = AdapterSetting(rank=4)
    setting = StepSetting(adapter=adapter, checkpointing=checkpointing, attention=Attention.EAGER, micro_batch=2)
    found = sums_on_the_cpu(config(**SHAPE), setting)
    assert sum(found) > 5 * SHAPE["num_hidden_layers"]
    assert new_sums_traced(config(**SHAPE), setting) == found.count(False)


# --- single sums


class Double(torch.autograd.Function):
    """Its own backward adds: no sum of autograd's."""

    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 1 + grad


def several_uses(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos() + x.exp()


def shared(x: torch.Tensor) -> torch.Tensor:
    """Both sides of the last sum get one and the same gradient, and the first has it still when the second adds."""
    return x + x.sin()


def within_a_function(x: torch.Tensor) -> torch.Tensor:
    return Double.apply(x) + Double.apply(x)


def views(x: torch.Tensor) -> torch.Tensor:
    """The halves of one gradient share its memory."""
    return torch.cat([x.sin(), x.cos()]) * torch.cat([x, x])


class Deciding(TorchDispatchMode):
    """Keeps what is decided of every sum."""

    def __init__(self) -> None:
        super().__init__()
        self.alone = holders_of_an_unshared_gradient()
        self.decided: list[bool] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is ADD and not torch.is_grad_enabled():
            in_place = is_added_in_place(args[0], self.alone)
            self.decided.append(in_place)
            return args[0].add_(args[1]).detach() if in_place else func(*args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("use", [several_uses, shared, within_a_function, views])
def test_each_sum_is_made_as_autograd_makes_it(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    leaf = torch.ones(4, 8, requires_grad=True)
    out = use(leaf * 1).sum()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        out.backward()
    leaf = torch.ones(4, 8, device="meta", requires_grad=True)
    out = use(leaf * 1).sum()
    with Deciding() as deciding:
        out.backward()
    assert deciding.decided == sums(profiler)
    assert deciding.decided


def test_a_sum_that_the_model_makes_is_new() -> None:
    with Deciding() as deciding, torch.no_grad():
        torch.ones(2, device="meta") + torch.ones(2, device="meta")
    assert deciding.decided == [False]
