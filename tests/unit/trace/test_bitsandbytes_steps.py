"""Steps that run bitsandbytes: weights in nf4, and 8-bit AdamW with its states on the device or in managed memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen2Config

from raysweep.errors import NotForecastError
from raysweep.memory.program import Category, Op, Program, SegmentName, Work
from raysweep.memory.replay import Replayer
from raysweep.setting import AdapterDtype, AdapterSetting, Checkpointing, Loss, Optimizer, StepSetting, Weights
from raysweep.step import packages
from raysweep.step.model import build, build_base
from raysweep.step.training import TrainingStep
from raysweep.trace.build import model_program
from raysweep.trace.recorder import freed
from raysweep.trace.tracing import Recording, trace

kernels = pytest.importorskip("bitsandbytes").functional

NF4 = StepSetting(weights=Weights.NF4, adapter=AdapterSetting(rank=8), checkpointing=Checkpointing.GPU, loss=Loss.FULL)
WIDE = {"hidden_size": 512, "intermediate_size": 2048}
TABLE_BYTES = 4 * 256
"""Of a table of a float for each byte."""


@pytest.fixture(scope="module", params=["llama", "qwen2, with biases"])
def config(request: pytest.FixtureRequest, tiny: Callable[..., LlamaConfig]) -> LlamaConfig | Qwen2Config:
    made = tiny(**WIDE)
    return made if request.param == "llama" else Qwen2Config(**{**made.to_dict(), "model_type": "qwen2"})


def left_by(recording: Recording, name: SegmentName, category: Category | None = None) -> list[int]:
    """Return the bytes of what a segment leaves alive, ascending."""
    events = recording.segments[name].events
    alive = {e for e in events if e >= 0} - {freed(e) for e in events if e < -1}
    labels = recording.labels
    return sorted(
        int(recording.nbytes[n]) for n in alive if category is None or labels[recording.label[n]].category is category
    )


def bytes_of(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Return the bytes of each storage once, ascending."""
    return sorted({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def peaks(program: Program, length: int) -> tuple[int, int]:
    found = Replayer(program).steady(length, accumulation=1)
    return found.peak_allocated_bytes, found.peak_reserved_bytes


# --- weights


def test_loading_leaves_what_bitsandbytes_leaves(config: LlamaConfig) -> None:
    """Against the same model quantised by the library's own code for the CPU."""
    tensors: list[torch.Tensor] = []
    for module in build_base(config, NF4, device="cpu").modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                tensors.append(parameter.data)
                state = getattr(parameter, "quant_state", None)
                if state is not None:
                    tensors += [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
        tensors += [b for b in module._buffers.values() if b is not None]
    found = left_by(trace(config, NF4, 32), SegmentName.SETUP, Category.WEIGHTS)
    # The table by which scales are quantised is the process's own, and the layers have copies of it.
    assert found == sorted([*bytes_of(tensors), TABLE_BYTES])


def test_a_weight_is_quantised_with_its_scales_before_its_bytes(config: LlamaConfig) -> None:
    recording = trace(config, NF4, 32)
    sizes = [int(recording.nbytes[e]) for e in recording.segments[SegmentName.SETUP].events if e >= 0]
    n = 512 * 512
    start = sizes.index(2 * n)
    # bf16 weight; scales, packed weight; table of 16 and what scales it; mean and shifted scales; the process's table;
    # scales of scales, a byte a scale; the layer's own table.
    assert sizes[start : start + 12] == [
        *(2 * n, 4 * n // 64, n // 2),
        *(64, 64, 4),
        *(4, 4 * n // 64, TABLE_BYTES),
        *(4 * n // 64 // 256, n // 64, TABLE_BYTES),
    ]


@pytest.mark.parametrize(("dtype", "width"), [(AdapterDtype.FP32, 4), (AdapterDtype.BF16, 2)])
def test_the_adapter_of_packed_weights_is_made_in_fp32(config: LlamaConfig, dtype: AdapterDtype, width: int) -> None:
    recording = trace(config, replace(NF4, adapter=AdapterSetting(rank=8, dtype=dtype)), 32)
    expected = [width * p.numel() for p in build(config, NF4, device="meta").parameters() if p.requires_grad]
    assert left_by(recording, SegmentName.SETUP, Category.ADAPTER) == sorted(expected)
    made = [
        int(recording.nbytes[e])
        for e in recording.segments[SegmentName.SETUP].events
        if e >= 0 and recording.labels[recording.label[e]].category is Category.ADAPTER
    ]
    assert sum(made) == sum(expected) + (0 if dtype is AdapterDtype.FP32 else 2 * sum(expected))


def test_a_dequantised_weight_dies_with_its_product(config: LlamaConfig) -> None:
    recording = trace(config, replace(NF4, checkpointing=Checkpointing.NONE), 32)
    whole = 2 * 512 * 2048
    events = recording.segments[SegmentName.MICRO].events
    weights = {e for e in events if e >= 0 and recording.nbytes[e] == whole}
    # Three projections of two layers, forward and backward.
    assert len(weights) == 3 * 2 * 2
    alive = 0
    for event in events:
        alive += (event in weights) - (event < -1 and freed(event) in weights)
        assert alive <= 1


def test_peft_clones_what_a_packed_layer_returns(config: LlamaConfig) -> None:
    recording = trace(config, NF4, 32)
    clones = [
        n for n in recording.label if recording.labels[n].op == "clone" and recording.labels[n].phase == "forward"
    ]
    assert len(clones) >= 7 * 2


def test_its_matrix_products_are_those_of_weights_in_bf16(config: LlamaConfig) -> None:
    def flops(weights: Weights) -> float:
        recording = trace(config, replace(NF4, weights=weights), 32)
        return sum(work[Work.FLOPS] for work in recording.segments[SegmentName.MICRO].work.values())

    assert flops(Weights.NF4) == flops(Weights.BF16) > 0


@pytest.mark.parametrize("checkpointing", list(Checkpointing))
@pytest.mark.parametrize("loss", [Loss.FULL, Loss.CHUNKED])
def test_a_program_of_packed_weights_holds_between_its_traces(
    config: LlamaConfig, checkpointing: Checkpointing, loss: Loss
) -> None:
    setting = replace(NF4, checkpointing=checkpointing, loss=loss, loss_chunk_tokens=512)
    program = model_program("tiny", config, setting, [3, 3000])
    for length in (77, 1234):
        assert peaks(program, length) == peaks(model_program("tiny", config, setting, [length]), length)


# --- optimizers


def states_of(setting: StepSetting, config: LlamaConfig) -> list[dict[str, Any]]:
    """Return what bitsandbytes' optimizer keeps of each parameter after a step on the CPU."""
    step = TrainingStep(build(config, setting, device="cpu"), setting)
    tokens = torch.arange(8)[None]
    step.micro_step(tokens, tokens)
    step.optimizer_step()
    return list(step.optimizer.state.values())


@pytest.mark.parametrize("rank", [1, 64])
def test_eight_bit_adam_keeps_what_bitsandbytes_keeps(tiny: Callable[..., LlamaConfig], rank: int) -> None:
    """Rank 1: plain floats, of parameters below 4,096 elements; rank 64: bytes, and a float a block of 256."""
    config = tiny(**WIDE)
    setting = StepSetting(adapter=AdapterSetting(rank=rank), optimizer=Optimizer.ADAMW_8BIT, loss=Loss.FULL)
    found = left_by(trace(config, setting, 32), SegmentName.FIRST_STEP)
    states = states_of(replace(setting, weights=Weights.FP32), config)
    tensors = [t for state in states for t in state.values() if isinstance(t, torch.Tensor)]
    assert found == bytes_of(tensors)


def test_paged_states_leave_the_allocator_from_100_000_elements_on(tiny: Callable[..., LlamaConfig]) -> None:
    config = tiny(**WIDE)
    plain = StepSetting(adapter=AdapterSetting(rank=64), optimizer=Optimizer.ADAMW_8BIT, loss=Loss.FULL)
    paged = replace(plain, optimizer=Optimizer.PAGED_ADAMW_8BIT)
    parameters = [p.numel() for p in build(config, plain, device="meta").parameters() if p.requires_grad]
    out = [n for n in parameters if n >= 100_000 for _ in range(2)]
    assert 0 < len(out) < 2 * len(parameters)
    on_device, managed = (left_by(trace(config, s, 32), SegmentName.FIRST_STEP) for s in (plain, paged))
    assert sorted([*managed, *out]) == on_device


def test_an_eight_bit_step_takes_nothing_for_a_while(tiny: Callable[..., LlamaConfig]) -> None:
    setting = StepSetting(adapter=AdapterSetting(rank=8), optimizer=Optimizer.ADAMW_8BIT)
    (part,) = model_program("tiny", tiny(), setting, [32]).step_segment.parts
    assert set(part.op) == {Op.FREE}


# --- what a trace leaves as it was


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_trace_leaves_bitsandbytes_as_it_was(config: LlamaConfig, optimizer: Optimizer) -> None:
    pages = kernels.GlobalPageManager.get_instance().paged_tensors
    names = ("name2qmap", "get_paged", "fill", "prefetch_tensor", "get_4bit_type")
    before = [getattr(kernels, name) for name in names], len(pages)
    trace(config, replace(NF4, optimizer=optimizer, adapter=AdapterSetting(rank=64)), 32)
    assert ([getattr(kernels, name) for name in names], len(pages)) == before
    assert all(table.device.type != "meta" for table in kernels.name2qmap.values())


# --- without the package


@pytest.mark.parametrize("setting", [NF4, StepSetting(optimizer=Optimizer.PAGED_ADAMW_8BIT)])
def test_a_step_is_refused_where_its_code_is_not_installed(
    tiny: Callable[..., LlamaConfig], monkeypatch: pytest.MonkeyPatch, setting: StepSetting
) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotForecastError, match="pip install bitsandbytes"):
        model_program("tiny", tiny(), setting, [32])
