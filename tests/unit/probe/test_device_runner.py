from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig

from raysweep.errors import MachineError
from raysweep.probe import device_runner
from raysweep.probe.device import CpuDevice, Usage
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.meter import SLACK_BYTES
from raysweep.probe.steps import Pace
from raysweep.records import Mode, ProbeState, Source
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest, Runner, load_key
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting, Weights
from raysweep.step.adapter import base_of, head_of
from raysweep.step.pretrained import Checkpoint

STEP = StepSetting(
    weights=Weights.FP32, adapter=AdapterSetting(rank=2), accumulation=2, loss=Loss.CHUNKED, loss_chunk_tokens=8
)
QUICK = Pace(measured_seconds=0)
OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 24 GiB.")


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )


@pytest.fixture
def runner(config: LlamaConfig) -> DeviceRunner:
    return DeviceRunner(config, device="cpu", pace=QUICK)


def train(step: StepSetting = STEP, length_tokens: int = 12) -> ProbeRequest:
    return ProbeRequest(probe_id="p", flavour="cpu", step=step, length_tokens=length_tokens)


def sample(*item_tokens: int, step: StepSetting = STEP) -> ProbeRequest:
    return ProbeRequest(probe_id="p", flavour="cpu", step=step, item_tokens=item_tokens)


def generate(step: StepSetting = STEP, new_tokens: int = 5) -> ProbeRequest:
    return ProbeRequest(
        probe_id="p", flavour="cpu", step=step, mode=Mode.GENERATE, prompt_tokens=7, new_tokens=new_tokens
    )


def failing(error: Exception) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


class FakeCard(CpuDevice):
    """A CPU that keeps the books of a card: ``leak_bytes`` stay after each release."""

    def __init__(self) -> None:
        self.leak_bytes = 0
        self.limits: list[int | None] = []

    def usage(self) -> Usage:
        return Usage(
            allocated_bytes=1000 + self.leak_bytes,
            reserved_bytes=2000 + self.leak_bytes,
            peak_allocated_bytes=7_000,
            peak_reserved_bytes=9_000,
            outside_allocator_bytes=500_000_000,
            free_bytes=20_000_000_000 - self.leak_bytes,
            retries=0,
        )

    @property
    def total_bytes(self) -> int:
        return 24_000_000_000

    def limit(self, allocator_bytes: int | None) -> None:
        self.limits.append(allocator_bytes)


def test_it_is_a_runner(runner: DeviceRunner) -> None:
    same: Runner = runner
    assert same.source is Source.MEASURED
    assert "CPU" in same.device_name
    assert same.device_memory_bytes > 0
    assert same.memory_cap_bytes is None
    assert same.versions["torch"] == torch.__version__
    assert same.loaded_key() is None


def test_its_versions_say_that_weights_are_random(runner: DeviceRunner) -> None:
    assert runner.versions["weights_from"] == "random"


def test_with_a_checkpoint_its_model_holds_the_saved_weights(
    config: LlamaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    saved = transformers.LlamaForCausalLM(config)
    saved.save_pretrained(tmp_path)
    monkeypatch.setattr(config, "_commit_hash", "abc123", raising=False)
    runner = DeviceRunner(config, device="cpu", checkpoint=Checkpoint(source=str(tmp_path)), pace=QUICK)
    heads: list[torch.Tensor] = []
    monkeypatch.setattr(
        device_runner, "fixed_length", lambda step, *a, **k: heads.append(head_of(base_of(step.model)).weight)
    )
    outcome = runner.run(train())
    assert outcome.load_seconds is not None
    assert torch.equal(heads[0], saved.lm_head.weight)
    assert (runner.versions["weights_from"], runner.versions["weights_revision"]) == ("pretrained", "abc123")


def test_a_checkpoint_of_another_model_fails_the_probe_with_the_reason(config: LlamaConfig, tmp_path: Path) -> None:
    transformers.LlamaModel(config).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    runner = DeviceRunner(config, device="cpu", checkpoint=Checkpoint(source=str(tmp_path)), pace=QUICK)
    outcome = runner.run(train())
    assert (outcome.state, outcome.reason) == (ProbeState.FAILED, "unsupported")
    assert "are missing, such as" in (outcome.detail or "")


def test_a_training_probe_tells_warm_up_from_measured_steps(config: LlamaConfig) -> None:
    pace = Pace(warm_up_steps=2, measured_steps=4, measured_seconds=0)
    outcome = DeviceRunner(config, device="cpu", pace=pace).run(train())
    seen = outcome.measurement
    assert outcome.state is ProbeState.COMPLETED
    assert seen is not None
    assert (len(seen.first_step_seconds), len(seen.step_seconds), seen.micro_step_seconds) == (2, 4, ())
    rates = sorted(2 * 12 / seconds for seconds in seen.step_seconds)
    assert seen.tokens_per_second == pytest.approx((rates[1] + rates[2]) / 2)
    assert seen.tokens_per_second_low == pytest.approx(rates[0])
    assert seen.tokens_per_second_high == pytest.approx(rates[-1])
    assert outcome.load_seconds is not None
    assert outcome.probe_seconds >= outcome.load_seconds + sum(seen.step_seconds) + sum(seen.first_step_seconds)
    assert seen.host_bytes is not None
    assert seen.pinned_host_bytes is None
    assert seen.peak_allocated_bytes > 0


def test_a_data_probe_times_every_micro_batch_in_its_order(runner: DeviceRunner) -> None:
    outcome = runner.run(sample(5, 1, 30, 9, 12))
    seen = outcome.measurement
    assert seen is not None
    assert len(seen.micro_step_seconds) == 5
    assert len(seen.step_seconds) == 3  # two accumulations of two, and a last one of one
    assert sum(seen.micro_step_seconds) < sum(seen.step_seconds)


def test_a_data_probe_of_larger_micro_batches_has_an_entry_a_micro_batch(runner: DeviceRunner) -> None:
    seen = runner.run(sample(5, 3, 30, 9, 12, step=replace(STEP, micro_batch=2))).measurement
    assert seen is not None
    assert len(seen.micro_step_seconds) == 3
    assert sum(seen.micro_step_seconds) < sum(seen.step_seconds)
    assert len(seen.step_seconds) == 2


def test_the_model_stays_for_what_it_can_serve(runner: DeviceRunner) -> None:
    assert runner.run(train()).load_seconds is not None
    assert runner.loaded_key() == load_key(STEP)
    for request in (
        train(length_tokens=20),
        train(replace(STEP, checkpointing=Checkpointing.CPU, loss=Loss.FULL, micro_batch=2)),
        sample(4, 9),
        generate(),
    ):
        outcome = runner.run(request)
        assert outcome.state is ProbeState.COMPLETED
        assert outcome.load_seconds is None
    other = replace(STEP, adapter=AdapterSetting(rank=3))
    assert runner.run(train(other)).load_seconds is not None
    assert runner.loaded_key() == load_key(other)
    runner.close()
    assert runner.loaded_key() is None


@pytest.mark.parametrize("rank", [0, 2])
def test_generation_with_and_without_an_adapter(runner: DeviceRunner, rank: int) -> None:
    seen = runner.run(generate(replace(STEP, adapter=AdapterSetting(rank=rank)))).measurement
    assert seen is not None
    assert (len(seen.first_step_seconds), len(seen.step_seconds)) == (1, 2)
    assert seen.tokens_per_second_high == pytest.approx(5 / min(seen.step_seconds))


def test_generation_makes_as_many_tokens_as_asked_and_uses_its_cache(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.Size] = []
    read: list[int] = []
    real = transformers.GenerationMixin.generate
    forward = transformers.LlamaForCausalLM.forward

    def watched(self: object, *args: object, **kwargs: object) -> torch.Tensor:
        tokens: torch.Tensor = real(self, *args, **kwargs)
        made.append(tokens.shape)
        return tokens

    def counted(self: object, input_ids: torch.Tensor, **kwargs: object) -> object:
        read.append(input_ids.shape[1])
        return forward(self, input_ids, **kwargs)

    monkeypatch.setattr(transformers.GenerationMixin, "generate", watched)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", counted)
    runner.run(generate(new_tokens=9))
    assert made == [torch.Size([1, 7 + 9])] * 3
    assert read == [7, *[1] * 8] * 3


def test_no_adapter_cannot_be_trained(runner: DeviceRunner) -> None:
    outcome = runner.run(train(replace(STEP, adapter=AdapterSetting(rank=0))))
    assert (outcome.state, outcome.reason) == (ProbeState.FAILED, "unsupported")
    assert "rank" in (outcome.detail or "")


PLACES = {
    "load": (device_runner, "build"),
    "forward": (transformers.LlamaModel, "forward"),
    "loss": (torch.nn.functional, "cross_entropy"),
    "backward": (torch.autograd, "backward"),
    "optimizer": (torch.optim.AdamW, "step"),
}


@pytest.mark.parametrize("phase", PLACES)
@pytest.mark.parametrize("item_tokens", [(), (4, 9, 5)])
def test_out_of_memory_anywhere_in_the_step_is_pruned_and_the_next_probe_unharmed(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch, phase: str, item_tokens: tuple[int, ...]
) -> None:
    request = sample(*item_tokens) if item_tokens else train()
    with monkeypatch.context() as patch:
        patch.setattr(*PLACES[phase], failing(OOM))
        outcome = runner.run(request)
    assert (outcome.state, outcome.reason) == (ProbeState.PRUNED, "oom")
    assert outcome.prune is not None
    assert outcome.prune.phase == phase
    assert outcome.prune.requested_bytes == 3 * 2**30
    assert outcome.prune.item == (0 if item_tokens and phase != "load" else None)
    assert outcome.measurement is not None
    assert outcome.measurement.peak_reserved_bytes > 0
    assert outcome.measurement.tokens_per_second is None
    after = runner.run(request)
    assert after.state is ProbeState.COMPLETED
    assert (after.load_seconds is None) == (phase != "load")


def test_out_of_memory_in_generation_is_pruned(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.GenerationMixin, "generate", failing(OOM))
    outcome = runner.run(generate())
    assert outcome.state is ProbeState.PRUNED
    assert outcome.prune is not None
    assert outcome.prune.phase == "generate"


def test_a_data_probe_names_the_item_at_which_it_died(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.nn.functional.cross_entropy

    def limited(logits: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if logits.shape[0] > 20:
            raise OOM
        return real(logits, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", limited)
    outcome = runner.run(sample(9, 4, 12, 30, 6, step=replace(STEP, loss_chunk_tokens=100)))
    assert outcome.prune is not None
    assert outcome.prune.item == 3


def test_nothing_of_a_failed_step_stays_alive(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    error = torch.OutOfMemoryError("CUDA out of memory.")

    def fail(loss: torch.Tensor, *args: object) -> None:
        held = torch.zeros(5)
        alive.extend((weakref.ref(loss), weakref.ref(held)))
        raise error

    monkeypatch.setattr(torch.autograd, "backward", fail)
    runner.run(train())
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "host_oom"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "missing_kernel"),
        (ImportError("No module named 'fla'"), "missing_kernel"),
        (RuntimeError("shapes cannot be multiplied"), "error"),
    ],
)
def test_other_faults_fail_that_probe_alone(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", failing(error))
        outcome = runner.run(train())
    assert (outcome.state, outcome.reason, outcome.measurement) == (ProbeState.FAILED, reason, None)
    assert runner.run(train()).state is ProbeState.COMPLETED


def test_a_loss_that_is_no_number_fails_and_takes_the_model_with_it(
    runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.nn.functional.cross_entropy
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "cross_entropy", lambda *a, **k: real(*a, **k) * float("nan"))
        outcome = runner.run(train())
    assert (outcome.state, outcome.reason) == (ProbeState.FAILED, "nan")
    assert runner.loaded_key() is None
    assert runner.run(train()).state is ProbeState.COMPLETED


def test_a_lost_context_asks_for_another_process(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "backward", failing(RuntimeError("CUDA error: device-side assert triggered")))
    with pytest.raises(PoisonedDevice) as raised:
        runner.run(train())
    assert raised.value.outcome.state is ProbeState.FAILED
    assert raised.value.outcome.reason == "poisoned"


def run_with_leak(config: LlamaConfig, monkeypatch: pytest.MonkeyPatch, *, leak_goes_with_model: bool) -> Outcome:
    card = FakeCard()
    runner = DeviceRunner(config, device=card, pace=QUICK)
    runner.run(train())

    def fail(*args: object, **kwargs: object) -> None:
        card.leak_bytes = SLACK_BYTES + 1
        raise OOM

    drop_model = runner._drop_model

    def drop() -> None:
        drop_model()
        if leak_goes_with_model:
            card.leak_bytes = 0

    monkeypatch.setattr(runner, "_drop_model", drop)
    monkeypatch.setattr(torch.autograd, "backward", fail)
    return runner.run(train())


def test_memory_that_does_not_come_back_asks_for_another_process(
    config: LlamaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PoisonedDevice) as raised:
        run_with_leak(config, monkeypatch, leak_goes_with_model=False)
    outcome = raised.value.outcome
    assert (outcome.state, outcome.reason) == (ProbeState.PRUNED, "oom")
    assert "did not come back" in (outcome.detail or "")


def test_memory_that_comes_back_with_the_model_costs_a_load_alone(
    config: LlamaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_with_leak(config, monkeypatch, leak_goes_with_model=True)
    assert outcome.state is ProbeState.PRUNED
    free = "20,000,000,000"
    assert f"Afterwards {free} bytes of the device were free, {free} before a model was loaded." in (
        outcome.detail or ""
    )


@pytest.mark.parametrize(
    ("completed", "phase", "said"),
    [
        (1, "backward", "19,400,000,000 bytes of the device were free, 19,400,000,000 after the last completed probe."),
        (0, "backward", ", 20,000,000,000 with the model loaded, before its first step loaded any kernel."),
        (0, "load", ", 20,000,000,000 before a model was loaded."),
    ],
)
def test_a_pruned_probe_says_what_is_free_again_and_with_what_that_compares(
    config: LlamaConfig, monkeypatch: pytest.MonkeyPatch, completed: int, phase: str, said: str
) -> None:
    class LoadsKernels(FakeCard):
        """Its first step takes 0.6 GB outside the allocator for good."""

        kernel_bytes = 0

        def usage(self) -> Usage:
            before = super().usage()
            return replace(
                before,
                free_bytes=(before.free_bytes or 0) - self.kernel_bytes,
                outside_allocator_bytes=(before.outside_allocator_bytes or 0) + self.kernel_bytes,
            )

        def synchronize(self) -> None:
            self.kernel_bytes = 600_000_000

    runner = DeviceRunner(config, device=LoadsKernels(), pace=QUICK)
    for _ in range(completed):
        assert runner.run(train()).state is ProbeState.COMPLETED
    monkeypatch.setattr(*PLACES[phase], failing(OOM))
    detail = runner.run(train()).detail or ""
    assert said in detail


@pytest.mark.parametrize(("outside_bytes", "expected_bytes"), [(None, 15_500_000_000), (600_000_000, 15_400_000_000)])
def test_an_emulated_card_loses_what_lives_outside_the_allocator(
    config: LlamaConfig, outside_bytes: int | None, expected_bytes: int
) -> None:
    card = FakeCard()
    runner = DeviceRunner(
        config, device=card, memory_cap_bytes=16_000_000_000, outside_allocator_bytes=outside_bytes, pace=QUICK
    )
    assert runner.memory_cap_bytes == 16_000_000_000
    runner.run(train())
    assert set(card.limits) == {expected_bytes}
    runner.close()
    assert card.limits[-1] is None


def test_a_larger_card_cannot_be_emulated(config: LlamaConfig) -> None:
    with pytest.raises(MachineError, match="smaller card"):
        DeviceRunner(config, device=FakeCard(), memory_cap_bytes=80_000_000_000)


def test_a_model_that_does_not_fit_is_told_by_its_own_loadings_peaks(
    config: LlamaConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Peaking(FakeCard):
        peak_bytes = 0

        def reset_peaks(self) -> None:
            self.peak_bytes = 0

        def usage(self) -> Usage:
            return replace(super().usage(), peak_allocated_bytes=self.peak_bytes, peak_reserved_bytes=self.peak_bytes)

    card = Peaking()
    runner = DeviceRunner(config, device=card, pace=QUICK)
    assert runner.run(train()).state is ProbeState.COMPLETED
    card.peak_bytes = 20_000_000_000

    def too_large(*args: object, **kwargs: object) -> None:
        card.peak_bytes += 5_000
        raise OOM

    monkeypatch.setattr(device_runner, "build", too_large)
    seen = runner.run(train(replace(STEP, adapter=AdapterSetting(rank=4)))).measurement
    assert seen is not None
    assert seen.peak_allocated_bytes == 5_000
