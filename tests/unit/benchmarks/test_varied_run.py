from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import varied_child, varied_run
from benchmarks.lengths import lengths_of
from benchmarks.segments import order_of
from raysweep.probe.device import CpuDevice
from raysweep.setting import AllocatorSetting, StepSetting
from raysweep.step.training import TrainingStep

PLANS = sorted((Path(__file__).parents[3] / "benchmarks/plans").glob("*.json"))
OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 24 GiB.")


def run_of(lengths: list[int], **step: Any) -> dict[str, Any]:
    setting = {"weights": "fp32", "adapter": {"rank": 2}, "accumulation": 2, "loss": "chunked", **step}
    return {"name": "r", "model": "llama-3.2-1b", "step": setting, "lengths": lengths, "cap_bytes": None}


def play(run: dict[str, Any], seconds: float = 60.0) -> dict[str, Any]:
    return varied_child.play(run, device=CpuDevice(), seconds=seconds, dry=True)


def test_every_item_and_every_optimizer_step_is_timed() -> None:
    result = play(run_of([5, 9, 7, 3, 8]))
    assert result["ended"] == "finished"
    assert result["micro_step_tokens"] == [5, 9, 7, 3, 8]
    assert len(result["micro_step_seconds"]) == 5
    assert len(result["optimizer_step_seconds"]) == 3  # two of two micro-steps, and a last one of one
    assert len(result["reserved_bytes_after_micro_steps"]) == 5
    assert result["losses_finite"]


def test_items_of_a_micro_batch_are_padded_to_their_longest() -> None:
    result = play(run_of([5, 9, 7], micro_batch=2))
    assert result["micro_step_tokens"] == [18, 7]


def test_out_of_memory_names_the_item_the_phase_and_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = TrainingStep.micro_step, []

    def micro_step(self: TrainingStep, *args: Any) -> torch.Tensor:
        calls.append(1)
        loss = original(self, *args)
        if len(calls) == 3:
            raise OOM
        return loss

    monkeypatch.setattr(TrainingStep, "micro_step", micro_step)
    result = play(run_of([5, 9, 7, 3]))
    assert result["ended"] == "out of memory"
    assert result["died"] == {"item": 2, "phase": "backward", "requested_bytes": 3 * 2**30}
    assert len(result["micro_step_seconds"]) == 2


def test_a_run_stops_when_its_time_is_over() -> None:
    assert play(run_of([5, 9]), seconds=-1.0)["ended"] == "stopped: out of time"


def test_lengths_drawn_from_a_seed_are_the_same_each_time_and_within_their_ends() -> None:
    draw = {"items": 50, "seed": 3, "log_mean": 6.0, "log_deviation": 1.0, "least": 32, "most": 900}
    lengths = lengths_of({"lengths": draw})
    assert lengths == lengths_of({"lengths": draw})
    assert len(lengths) == 50
    assert min(lengths) >= 32
    assert max(lengths) <= 900


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_every_plan_names_steps_and_lengths_that_read(plan: Path) -> None:
    runs = json.loads(plan.read_text())
    assert len({run["name"] for run in runs}) == len(runs)
    for run in runs:
        StepSetting.from_dict(run["step"])
        AllocatorSetting(**run["allocator"])
        assert len(lengths_of(run)) >= 20


def test_the_allocators_setting_is_written_as_torch_reads_it() -> None:
    setting = AllocatorSetting(expandable_segments=True, garbage_collection_threshold=0.8, max_split_size_mb=64)
    assert AllocatorSetting().conf == ""
    assert setting.conf == ("expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:64")


def test_a_run_has_a_process_of_its_own_and_a_second_call_skips_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    monkeypatch.setitem(os.environ, "PYTORCH_ALLOC_CONF", "max_split_size_mb:99")
    plan, out = tmp_path / "plan.json", tmp_path / "runs.jsonl"
    plan.write_text(json.dumps([{**run_of([5, 9]), "allocator": {"expandable_segments": True}}]))
    for _ in range(2):
        assert varied_run.main(["--plan", str(plan), "--out", str(out), "--cpu-dry-run"]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["ended"] for line in lines] == ["finished"]
    assert lines[0]["versions"]["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_a_process_that_dies_without_a_result_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    plan, out = tmp_path / "plan.json", tmp_path / "runs.jsonl"
    plan.write_text(json.dumps([{**run_of([5]), "model": "no-such-model", "allocator": {}}]))
    varied_run.main(["--plan", str(plan), "--out", str(out), "--cpu-dry-run"])
    assert json.loads(out.read_text())["ended"] == "lost"


def test_the_order_of_segments_is_told_from_their_addresses() -> None:
    def entry(action: str, addr: int, size: int = 10) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size}

    down = [entry("segment_alloc", a) for a in (130, 120, 110)] + [entry("segment_free", 110)]
    found = order_of(down)
    assert (found["segments"], found["freed"]) == (3, 1)
    assert found["share_with_lower_address_than_before"] == 1.0
    assert found["share_right_below_the_one_before"] == 1.0
    assert found["first"] == [[20, 10], [10, 10], [0, 10]]
    assert order_of([])["segments"] == 0
