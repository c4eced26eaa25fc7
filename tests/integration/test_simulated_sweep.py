"""A sweep on simulated cards, from a model's folder to an artifact: real traces, real replays, a real Ray."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from transformers import LlamaConfig

from cost.catalogue import Catalogue
from raysweep.memory.replay import Replayer
from raysweep.memory.table import programs_of, table_of
from raysweep.records import Mode, ProbeState, Source
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.search.runner import ProbeRequest
from raysweep.setting import Checkpointing, StepSetting
from raysweep.space import parse_space, resolve
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.sweep import SweepOptions, SweepSummary, run_sweep
from raysweep.sweep.simulated import SimulatedRunner, simulated_factory
from raysweep.trace.build import model_program

SPACE = """
model: tiny-llama
step:
  adapter: {rank: 8}
  accumulation: 2
  checkpointing: {search: [gpu, cpu]}
lengths: [256, 2048]
flavours:
  - {name: lab/small, memory_bytes: 200000000, outside_allocator_bytes: 10000000}
  - {name: lab/large, memory_bytes: 2000000000, outside_allocator_bytes: 10000000, gpu_id: h200}
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    folder = tmp_path_factory.mktemp("space")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=6000,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    config.save_pretrained(folder / "tiny-llama")
    text = SPACE.replace("tiny-llama", str(folder / "tiny-llama"))
    return parse_space(text, "space.yaml", folder=folder)


@pytest.fixture(scope="module")
def flavours(space):
    return tuple(resolve(choice, Catalogue.load()) for choice in space.flavours)


@pytest.fixture(scope="module")
def programs(space):
    config = load_config(space.model)
    return tuple(model_program(space.model, config, step, space.lengths) for step in space.steps)


@pytest.fixture(scope="module")
def swept(space, flavours, programs, tmp_path_factory, ray_folder: Path) -> tuple[Artifact, SweepSummary]:
    artifact = Artifact.create(str(tmp_path_factory.mktemp("out") / "artifact"), space.source_text)
    artifact.write_programs(table_of(programs))
    names = [flavour.name for flavour in flavours]
    summary = run_sweep(
        space,
        artifact,
        flavours=flavours,
        runners=lambda flavour: simulated_factory(space, flavour, programs),
        policy=Grid(training_cells(names, space.steps, space.lengths)),
        options=SweepOptions.simulated(),
    )
    return artifact, summary


def records_of(swept, flavour: str) -> dict:
    artifact, _ = swept
    return {(r.step.checkpointing, r.length_tokens): r for r in artifact.records() if r.flavour == flavour}


def test_every_probe_of_the_grid_is_recorded_and_simulated(swept):
    artifact, summary = swept
    assert len(artifact.records()) == len(summary.records) == 8
    assert {record.source for record in artifact.records()} == {Source.SIMULATED}
    assert summary.stopped == {}
    assert summary.spent_usd == 0


def test_what_does_not_fit_the_small_card_is_pruned_with_its_phase(swept):
    small = records_of(swept, "lab/small")
    assert small[Checkpointing.GPU, 256].state is ProbeState.COMPLETED
    for checkpointing in (Checkpointing.GPU, Checkpointing.CPU):
        record = small[checkpointing, 2048]
        assert (record.state, record.reason) == (ProbeState.PRUNED, "oom")
        assert record.prune.phase in {"forward", "loss", "backward"}
        assert record.prune.requested_bytes > 0
        assert record.prune.item is None
        assert record.detail.startswith("simulated: ")
        assert record.measurement.peak_reserved_bytes <= 200_000_000 - 10_000_000
        assert record.measurement.step_seconds == ()


def test_all_fits_the_large_card_at_the_forecasts_own_peaks(swept, programs):
    large = records_of(swept, "lab/large")
    assert {record.state for record in large.values()} == {ProbeState.COMPLETED}
    for program in programs:
        forecast = Replayer(program).steady(2048, accumulation=2)
        found = large[program.step.checkpointing, 2048].measurement
        assert found.peak_allocated_bytes == forecast.peak_allocated_bytes
        assert found.peak_reserved_bytes == forecast.peak_reserved_bytes
        assert found.outside_allocator_bytes == 10_000_000


def test_times_are_given_where_the_device_is_known(swept):
    (large, small) = (records_of(swept, name)[Checkpointing.GPU, 256] for name in ("lab/large", "lab/small"))
    assert large.measurement.tokens_per_second == pytest.approx(2 * 256 / large.measurement.step_seconds[0])
    assert small.measurement.step_seconds == ()
    assert small.measurement.tokens_per_second is None


def test_checkpoints_in_host_memory_are_counted(swept):
    large = records_of(swept, "lab/large")
    assert large[Checkpointing.GPU, 2048].measurement.host_bytes is None
    assert large[Checkpointing.CPU, 2048].measurement.host_bytes == 2 * 2048 * 256 * 2


def test_the_artifact_has_the_programs(swept, programs):
    artifact, _ = swept
    kept = programs_of(artifact.programs_table())
    assert [program.step for program in kept] == [program.step for program in programs]


# --- the runner by itself


@pytest.fixture
def runner(space, flavours, programs) -> SimulatedRunner:
    return SimulatedRunner(flavours[0], programs, space.allocator)


def over_items(step: StepSetting, *items: int) -> ProbeRequest:
    return ProbeRequest(probe_id="p", flavour="lab/small", step=step, item_tokens=items)


def test_a_run_over_items_dies_at_the_item_that_does_not_fit(runner, space):
    outcome = runner.run(over_items(space.steps[0], 256, 300, 2048, 256))
    assert (outcome.state, outcome.prune.item) == (ProbeState.PRUNED, 2)


def test_a_run_over_items_that_fits_ends(runner, space):
    outcome = runner.run(over_items(space.steps[0], 256, 300, 260))
    assert (outcome.state, outcome.prune) == (ProbeState.COMPLETED, None)


def test_a_card_too_small_for_the_model_fails_at_no_item(space, flavours, programs):
    tiny = dataclasses.replace(flavours[0], memory_bytes=14_000_000)
    outcome = SimulatedRunner(tiny, programs, space.allocator).run(over_items(space.steps[0], 256, 256))
    assert (outcome.state, outcome.prune.phase, outcome.prune.item) == (ProbeState.PRUNED, "load", None)


def test_a_length_that_no_program_covers_is_a_failed_probe(runner, space):
    outcome = runner.run(ProbeRequest(probe_id="p", flavour="lab/small", step=space.steps[0], length_tokens=5000))
    assert (outcome.state, outcome.reason) == (ProbeState.FAILED, "unsupported")


def test_a_generation_is_a_failed_probe(runner, space):
    request = ProbeRequest(
        probe_id="p", flavour="lab/small", step=space.steps[0], mode=Mode.GENERATE, prompt_tokens=9, new_tokens=9
    )
    outcome = runner.run(request)
    assert (outcome.state, outcome.reason) == (ProbeState.FAILED, "unsupported")
