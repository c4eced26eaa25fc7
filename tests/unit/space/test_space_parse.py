"""What a search space may say, and what it means."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.records import Mode
from raysweep.setting import AdapterDtype, Checkpointing, Loss, StepSetting, WeightsFrom
from raysweep.space import load_space, parse_space
from raysweep.space.labels import step_labels

FULL = """
model: qwen2.5-7b
weights_from: random
step:
  weights: bf16
  adapter: {rank: {search: [16, 64]}, alpha: 32, dropout: 0.0, targets: all-linear, dtype: fp32, resident_copies: 1}
  micro_batch: 1
  accumulation: 8
  checkpointing: {search: [gpu, cpu]}
  loss: chunked
  loss_chunk_tokens: 4096
  attention: sdpa
  optimizer: adamw
  autocast: false
  max_grad_norm: null
lengths: [8192, 4096, 16384, 4096]
flavours: [hf/h200, {name: lab/a100, gpu_id: a100-pcie-40gb, memory_bytes: 42430000000,
  outside_allocator_bytes: 550000000, price_usd_per_hour: 0.8}]
margin: 8%
data: {items: tokens.jsonl, epochs: 3}
budget: {usd: 5, hours: 1}
mode: train
allocator: {expandable_segments: true}
seed: 3
trust_remote_code: false
"""


def test_a_full_space_reads_back_as_written() -> None:
    space = parse_space(FULL, "space.yaml", folder=Path("/spaces"))
    assert space.model == "qwen2.5-7b"
    assert space.lengths == (4096, 8192, 16384)
    assert space.margin_share == 0.08
    assert space.mode is Mode.TRAIN
    assert space.seed == 3
    assert space.budget.usd == 5 and space.budget.hours == 1
    assert space.allocator.expandable_segments
    assert space.source_text == FULL
    assert [s.items for s in space.stages()] == [Path("/spaces/tokens.jsonl")]
    own = space.flavours[1]
    assert (own.gpu_id, own.memory_bytes, own.outside_allocator_bytes) == ("a100-pcie-40gb", 42430000000, 550000000)


def test_steps_are_the_product_in_the_files_order() -> None:
    space = parse_space(FULL, "space.yaml")
    assert space.searched == ("adapter.rank", "checkpointing")
    assert [(s.adapter.rank, s.checkpointing) for s in space.steps] == [
        (16, Checkpointing.GPU),
        (16, Checkpointing.CPU),
        (64, Checkpointing.GPU),
        (64, Checkpointing.CPU),
    ]
    assert all(s.loss is Loss.CHUNKED and s.adapter.dtype is AdapterDtype.FP32 for s in space.steps)


def test_a_plain_list_is_a_value_and_a_searched_list_is_a_choice_of_values() -> None:
    plain = parse_space("model: m\nstep: {adapter: {targets: [q_proj, v_proj]}}", "s")
    assert plain.steps[0].adapter.targets == ("q_proj", "v_proj")
    assert plain.searched == ()
    searched = parse_space("model: m\nstep: {adapter: {targets: {search: [all-linear, [q_proj, v_proj]]}}}", "s")
    assert [s.adapter.targets for s in searched.steps] == [("all-linear",), ("q_proj", "v_proj")]


def test_what_is_left_out_takes_its_default() -> None:
    space = parse_space("model: m", "s")
    assert space.steps == (StepSetting(),)
    assert (space.lengths, space.flavours, space.data) == ((), (), None)
    assert (space.margin_share, space.budget.usd, space.trust_remote_code) == (0.08, None, False)


@pytest.mark.parametrize(("written", "share"), [("8%", 0.08), ("0%", 0), ("12.5 %", 0.125), ("0.1", 0.1)])
def test_a_margin_is_a_percentage_or_a_share(written: str, share: float) -> None:
    assert parse_space(f"model: m\nmargin: {written}", "s").margin_share == pytest.approx(share)


@settings(deadline=None)
@given(first=st.integers(1, 5000), steps=st.integers(0, 50), by=st.integers(1, 999))
def test_a_range_of_lengths_holds_both_ends_and_equal_strides(first: int, steps: int, by: int) -> None:
    last = first + steps * by
    lengths = parse_space(f"model: m\nlengths: {{from: {first}, to: {last}, by: {by}}}", "s").lengths
    assert lengths[0] == first and lengths[-1] == last
    assert all(b - a == by for a, b in itertools.pairwise(lengths))


def test_stages_carry_epochs_or_a_share_of_the_loss() -> None:
    text = (
        "model: m\ndata: {stages: [{name: a, items: a.jsonl, loss_share: 40%}, {name: b, items: b.jsonl, epochs: 3}]}"
    )
    stages = tuple(parse_space(text, "s").stages())
    assert [(s.name, s.epochs, s.loss_share) for s in stages] == [("a", None, 0.4), ("b", 3, None)]


def test_mode_generate_takes_prompt_and_new_tokens() -> None:
    space = parse_space("model: m\nmode: generate\nprompt_tokens: 1024\nnew_tokens: 256", "s")
    assert (space.mode, space.prompt_tokens, space.new_tokens) == (Mode.GENERATE, 1024, 256)


def test_weights_are_random_unless_the_checkpoints_own_are_asked_for() -> None:
    assert parse_space("model: m", "s").weights_from is WeightsFrom.RANDOM
    assert parse_space("model: m\nweights_from: pretrained", "s").weights_from is WeightsFrom.PRETRAINED


def test_mode_generate_takes_rank_0_as_no_adapter() -> None:
    text = "model: m\nmode: generate\nprompt_tokens: 8\nnew_tokens: 4\nstep: {adapter: {rank: {search: [0, 16]}}}"
    space = parse_space(text, "s")
    assert [step.adapter.rank for step in space.steps] == [0, 16]
    assert list(step_labels(space.steps).values()) == ["no adapter", "rank 16"]


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "shape").mkdir()
    (tmp_path / "shape" / "config.json").write_text("{}")
    file = tmp_path / "s.yaml"
    file.write_text("model: ./shape\ndata: {items: t.jsonl, epochs: 1}")
    space = load_space(file)
    assert space.model == str(tmp_path / "shape")
    assert next(space.stages()).items == tmp_path / "t.jsonl"


def test_words_that_yaml_1_1_would_turn_into_numbers_and_booleans_stay_words() -> None:
    assert parse_space("model: no", "s").model == "no"
    assert parse_space("model: 1:30", "s").model == "1:30"


def test_the_run_says_how_data_become_steps_and_what_else_takes_time() -> None:
    text = """
model: m
run:
  over_length: split
  pad_to_multiple: 64
  packing: best-fit
  start_up: {image_seconds: 60, model_bytes: 15000000000, download_bytes_per_second: 200000000, load_seconds: 30}
  evaluation: {seconds: 120, every_optimizer_steps: 100}
  checkpoint: {seconds: 5}
  billing: {step: minute, minimum_seconds: 60}
  spot: {interruptions_per_hour: 0.1, checkpoint_every_seconds: 900}
  slurm_time_margin: 30%
"""
    run = parse_space(text, "s").run
    assert (run.over_length, run.pad_to_multiple_tokens, run.packing) == ("split", 64, "best-fit")
    assert run.start_up.seconds == 60 + 75 + 30
    assert [(p.name, p.every_optimizer_steps, p.at_stage_end) for p in run.pauses] == [
        ("evaluation", 100, False),
        ("checkpoint", None, True),
    ]
    assert run.billing.minimum_seconds == 60
    assert run.spot is not None and run.spot.interruptions_per_hour == 0.1
    assert run.slurm_time_margin_share == 0.3
