"""A sweep of real probes on the CPU, through a real Ray, from a saved checkpoint to a decision and its report."""

from __future__ import annotations

import json
from functools import partial

import pytest
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, LlamaConfig

from cost.catalogue import Catalogue
from raysweep.cli.app import app
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import Mode, ProbeState
from raysweep.search.strategy import make_policy
from raysweep.space import parse_space, resolve
from raysweep.step.config import load_config
from raysweep.step.pretrained import find_checkpoint
from raysweep.store import Artifact
from raysweep.sweep import SweepOptions, run_sweep

SPACE = """
model: tiny-llama
weights_from: pretrained
mode: generate
prompt_tokens: 12
new_tokens: 5
step: {weights: fp32, adapter: {rank: {search: [0, 4]}}}
flavours: [{name: lab/mine, memory_bytes: 64000000000, price_usd_per_hour: 2}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu-sweep")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "tiny-llama")
    return folder


@pytest.fixture(scope="module")
def artifact(folder):
    text = SPACE.replace("tiny-llama", str(folder / "tiny-llama"))
    space = parse_space(text, "space.yaml", folder=folder)
    flavours = tuple(resolve(choice, Catalogue.load()) for choice in space.flavours)
    config = load_config(space.model)
    factory = partial(
        DeviceRunner,
        config,
        device="cpu",
        checkpoint=find_checkpoint(space.model, config),
        pace=Pace(measured_seconds=0),
    )
    artifact = Artifact.create(str(folder / "artifact"), space.source_text)
    run_sweep(
        space,
        artifact,
        flavours=flavours,
        runners=lambda flavour: factory,
        policy=make_policy("grid", space),
        options=SweepOptions(gpus_per_session=0, cpus_per_session=0.5, charges_usd_per_hour={}),
    )
    return Artifact.open(str(folder / "artifact"))


def test_generation_is_measured_without_and_with_an_adapter(artifact):
    records = artifact.records()
    assert [(r.state, r.mode) for r in records] == [(ProbeState.COMPLETED, Mode.GENERATE)] * 2
    assert {r.step.adapter.rank for r in records} == {0, 4}
    assert all(r.measurement.tokens_per_second > 0 for r in records)


def test_every_record_says_that_the_weights_were_the_checkpoints(artifact):
    assert {r.versions["weights_from"] for r in artifact.records()} == {"pretrained"}


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_decision_compares_the_model_without_an_adapter(artifact):
    assert "no adapter" in _said("choose", artifact.uri)
    cells = json.loads(_said("choose", artifact.uri, "--json"))
    steps = [cells["chosen"]["step"], *(one["step"] for one in cells["rejected"])]
    assert {step["adapter"]["rank"] for step in steps} == {0, 4}


def test_the_report_shows_both_and_where_the_weights_came_from(artifact):
    page = _said("report", artifact.uri)
    assert "no adapter" in page
    assert "pretrained" in page
