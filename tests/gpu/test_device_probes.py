"""Probes on a real card. Sizes adapt to it: the largest needs 6 GB, whatever the card has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import Measurement, Mode, ProbeState
from raysweep.search.runner import Outcome, ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss, Optimizer, StepSetting, Weights
from raysweep.step.model import build, load_config
from raysweep.step.pretrained import Checkpoint
from raysweep.step.training import TrainingStep

pytestmark = pytest.mark.gpu

STEP = StepSetting(adapter=AdapterSetting(rank=16), accumulation=1)
QUICK = Pace(measured_seconds=0)
SLACK_BYTES = 64 * 2**20


def train(step: StepSetting, length_tokens: int) -> ProbeRequest:
    return ProbeRequest(probe_id="p", flavour="this card", step=step, length_tokens=length_tokens)


def measured(outcome: Outcome) -> Measurement:
    assert outcome.state is ProbeState.COMPLETED, outcome
    assert outcome.measurement is not None
    return outcome.measurement


def test_a_probe_measures_the_card(runner: DeviceRunner) -> None:
    seen = measured(runner.run(train(STEP, 512)))
    assert runner.device_name == torch.cuda.get_device_name()
    assert runner.device_memory_bytes == torch.cuda.get_device_properties(0).total_memory
    assert seen.loaded_bytes is not None
    assert seen.loaded_bytes < seen.peak_allocated_bytes <= seen.peak_reserved_bytes
    assert seen.outside_allocator_bytes is not None
    assert 50_000_000 < seen.outside_allocator_bytes < runner.device_memory_bytes // 2
    assert (len(seen.first_step_seconds), len(seen.step_seconds)) == (2, 3)


def test_the_same_probe_twice_has_the_same_peaks(runner: DeviceRunner) -> None:
    first = measured(runner.run(train(STEP, 1024)))
    measured(runner.run(train(STEP, 2048)))
    again = measured(runner.run(train(STEP, 1024)))
    assert again.peak_allocated_bytes == first.peak_allocated_bytes
    assert again.peak_reserved_bytes == pytest.approx(first.peak_reserved_bytes, rel=0.02)  # hangs on addresses


def test_memory_is_back_at_the_level_after_loading(runner: DeviceRunner) -> None:
    seen = measured(runner.run(train(STEP, 1024)))
    assert seen.loaded_bytes is not None
    assert torch.cuda.memory_allocated() <= seen.loaded_bytes + SLACK_BYTES


CAP_BYTES = 6_000_000_000


@pytest.fixture
def capped(small: LlamaConfig) -> DeviceRunner:
    if torch.cuda.mem_get_info()[0] < CAP_BYTES:
        pytest.skip("needs 6 GB of free device memory")
    return DeviceRunner(small, memory_cap_bytes=CAP_BYTES, outside_allocator_bytes=500_000_000, pace=QUICK)


@pytest.mark.parametrize(
    ("step", "length_tokens", "phases"),
    [
        # no checkpointing: 8 layers keep some 60 KB a token each, 12 GB in all
        (replace(STEP, checkpointing=Checkpointing.NONE, loss=Loss.CHUNKED), 25_000, {"forward"}),
        # logits of 32,000 words: 128 KB a token in fp32
        (STEP, 30_000, {"loss", "backward"}),
        # ranks wider than the model: adapter, gradients and two states of 1.8 GB each
        (replace(STEP, adapter=AdapterSetting(rank=4096)), 32, {"optimizer"}),
    ],
)
def test_a_real_out_of_memory_is_pruned_and_leaves_the_card_clean(
    capped: DeviceRunner, step: StepSetting, length_tokens: int, phases: set[str]
) -> None:
    before = measured(capped.run(train(STEP, 512)))
    free_before_bytes = torch.cuda.mem_get_info()[0]
    outcome = capped.run(train(step, length_tokens))
    assert (outcome.state, outcome.reason) == (ProbeState.PRUNED, "oom"), outcome
    assert outcome.prune is not None
    assert outcome.prune.phase in phases
    assert outcome.prune.requested_bytes is not None
    assert outcome.measurement is not None
    assert outcome.measurement.peak_reserved_bytes <= CAP_BYTES - 500_000_000
    after = measured(capped.run(train(STEP, 512)))
    assert after.peak_allocated_bytes == before.peak_allocated_bytes
    assert torch.cuda.mem_get_info()[0] >= free_before_bytes - 2 * SLACK_BYTES
    capped.close()


def test_a_data_probe_dies_at_its_long_item(capped: DeviceRunner) -> None:
    request = ProbeRequest(probe_id="p", flavour="this card", step=STEP, item_tokens=(300, 900, 30_000, 200))
    outcome = capped.run(request)
    assert outcome.prune is not None
    assert outcome.prune.item == 2
    fits = replace(request, item_tokens=(300, 900, 700, 200))
    seen = measured(capped.run(fits))
    assert len(seen.micro_step_seconds) == 4
    capped.close()


def test_a_model_that_does_not_fit_is_pruned_while_loading() -> None:
    config = load_config("llama-3.2-1b")  # 2.5 GB in bf16
    runner = DeviceRunner(config, memory_cap_bytes=2_000_000_000, outside_allocator_bytes=500_000_000, pace=QUICK)
    outcome = runner.run(train(STEP, 32))
    assert outcome.state is ProbeState.PRUNED
    assert outcome.prune is not None
    assert outcome.prune.phase == "load"
    assert torch.cuda.memory_allocated() < SLACK_BYTES
    runner.close()


def test_host_checkpoints_save_device_memory_and_change_no_number(small: LlamaConfig) -> None:
    losses, peaks = [], []
    for checkpointing in (Checkpointing.GPU, Checkpointing.CPU):
        setting = replace(STEP, checkpointing=checkpointing, loss=Loss.CHUNKED, loss_chunk_tokens=1024)
        step = TrainingStep(build(small, setting, device="cuda", seed=1), setting)
        ids = torch.randint(0, 1000, (1, 8192), generator=torch.Generator().manual_seed(2)).cuda()
        torch.cuda.reset_peak_memory_stats()
        losses.append(float(step.micro_step(ids, ids)))
        peaks.append(torch.cuda.max_memory_allocated())
        step.close()
        del step
    assert losses[0] == losses[1]
    layer_input_bytes = 8192 * small.hidden_size * 2
    assert peaks[0] - peaks[1] >= (small.num_hidden_layers - 3) * layer_input_bytes


@pytest.mark.parametrize("weights", [Weights.BF16, Weights.NF4])
def test_real_weights_take_the_memory_of_random_ones(
    runner: DeviceRunner, small: LlamaConfig, tmp_path: Path, weights: Weights
) -> None:
    if weights is Weights.NF4:
        pytest.importorskip("bitsandbytes")
    step = replace(STEP, weights=weights)
    random = measured(runner.run(train(step, 512)))
    runner.close()
    AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16).save_pretrained(tmp_path)
    real_runner = DeviceRunner(small, checkpoint=Checkpoint(source=str(tmp_path)), pace=QUICK)
    real = measured(real_runner.run(train(step, 512)))
    real_runner.close()
    assert real.loaded_bytes == pytest.approx(random.loaded_bytes, rel=1e-3)
    assert real.peak_allocated_bytes == pytest.approx(random.peak_allocated_bytes, rel=1e-3)


def test_pinned_memory_of_host_checkpoints_is_part_of_the_processs_own(
    runner: DeviceRunner, small: LlamaConfig
) -> None:
    on_device = measured(runner.run(train(STEP, 8192)))
    on_host = measured(runner.run(train(replace(STEP, checkpointing=Checkpointing.CPU), 8192)))
    assert on_device.pinned_host_bytes is not None and on_host.pinned_host_bytes is not None
    assert on_host.host_bytes is not None
    checkpoints_bytes = small.num_hidden_layers * 8192 * small.hidden_size * 2
    assert on_host.pinned_host_bytes - on_device.pinned_host_bytes >= checkpoints_bytes
    assert on_host.host_bytes >= on_host.pinned_host_bytes


def test_the_known_peak_of_a_1b_model_comes_out_again() -> None:
    """Measured on an H200 with torch 2.11 and transformers 5.17; chips differ by cuBLAS's workspaces, some 50 MB."""
    if torch.cuda.mem_get_info()[0] < 9_000_000_000:
        pytest.skip("needs 9 GB of free device memory")
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    setting = StepSetting(checkpointing=Checkpointing.NONE, adapter=AdapterSetting(rank=16, targets=targets))
    runner = DeviceRunner(load_config("llama-3.2-1b"), pace=QUICK)
    seen = measured(runner.run(train(setting, 1024)))
    assert seen.peak_allocated_bytes == pytest.approx(6_849_854_464, rel=0.02)
    runner.close()


@pytest.mark.parametrize("rank", [0, 16])
def test_generation_fills_its_cache(runner: DeviceRunner, rank: int) -> None:
    request = ProbeRequest(
        probe_id="p",
        flavour="this card",
        step=replace(STEP, adapter=AdapterSetting(rank=rank)),
        mode=Mode.GENERATE,
        prompt_tokens=512,
        new_tokens=16,
    )
    seen = measured(runner.run(request))
    assert seen.loaded_bytes is not None
    cache_bytes = 2 * 8 * 4 * 64 * (512 + 16) * 2  # keys and values, layers, heads, width, tokens, bf16
    assert seen.peak_allocated_bytes >= seen.loaded_bytes + cache_bytes // 2


@pytest.mark.parametrize("weights", [Weights.NF4, Weights.INT8])
def test_quantised_weights_train_in_less_memory(runner: DeviceRunner, weights: Weights) -> None:
    pytest.importorskip("bitsandbytes")
    plain = measured(runner.run(train(STEP, 256)))
    small = measured(runner.run(train(replace(STEP, weights=weights), 256)))
    assert plain.loaded_bytes is not None
    assert small.loaded_bytes is not None
    assert small.loaded_bytes < 0.85 * plain.loaded_bytes


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT])
def test_eight_bit_optimizers_step(runner: DeviceRunner, optimizer: Optimizer) -> None:
    pytest.importorskip("bitsandbytes")
    adapter = AdapterSetting(rank=64)
    full = measured(runner.run(train(replace(STEP, adapter=adapter), 64)))
    eight = measured(runner.run(train(replace(STEP, adapter=adapter, optimizer=optimizer), 64)))
    assert eight.peak_allocated_bytes < full.peak_allocated_bytes


def test_ligers_fused_loss_is_the_full_loss(small: LlamaConfig) -> None:
    pytest.importorskip("liger_kernel")
    ids = torch.randint(0, 1000, (1, 700), generator=torch.Generator().manual_seed(2)).cuda()
    losses = []
    for loss in (Loss.FULL, Loss.LIGER):
        setting = replace(STEP, loss=loss)
        losses.append(float(TrainingStep(build(small, setting, device="cuda", seed=1), setting).micro_step(ids, ids)))
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)  # bf16 logits


ASSERTING = """
import torch
from transformers import LlamaConfig
from raysweep.probe.device_runner import DeviceRunner
from raysweep.search.runner import PoisonedDevice, ProbeRequest
from raysweep.setting import StepSetting
import raysweep.probe.steps as steps

config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
real = steps.make_batch
steps.make_batch = lambda lengths, *, vocabulary, device: real(lengths, vocabulary=vocabulary + 10**6, device=device)
try:
    DeviceRunner(config).run(ProbeRequest(probe_id="p", flavour="f", step=StepSetting(), length_tokens=64))
except PoisonedDevice as poisoned:
    print("REASON", poisoned.outcome.reason)
"""


def test_a_device_side_assert_gives_the_process_up() -> None:
    ran = subprocess.run([sys.executable, "-c", ASSERTING], capture_output=True, text=True, check=False, timeout=240)
    assert "REASON poisoned" in ran.stdout, ran.stderr[-2000:]
