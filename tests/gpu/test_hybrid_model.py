"""A model of linear and full attention: it trains where its kernels do, and is refused by their name where not."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import replace

import pytest
from transformers import PretrainedConfig

from raysweep.errors import NotForecastError
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import ProbeState
from raysweep.search.runner import ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting
from raysweep.step.config import load_config
from raysweep.trace.build import model_program

pytestmark = pytest.mark.gpu

STEP = StepSetting(adapter=AdapterSetting(rank=8), checkpointing=Checkpointing.GPU, loss=Loss.CHUNKED)
LENGTH_TOKENS = 512
ONE_STEP = Pace(warm_up_steps=1, measured_steps=1, measured_seconds=0)
"""The first step tunes Triton's kernels, which takes half a minute of a small model."""


@pytest.fixture
def hybrid() -> PretrainedConfig:
    """Qwen3.5 with four narrow layers, three of linear attention."""
    config = copy.deepcopy(load_config("qwen3.5-27b"))
    sizes = {
        "vocab_size": 4_096,
        "hidden_size": 512,
        "intermediate_size": 1_024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    }
    for name, value in sizes.items():
        assert hasattr(config, name), name
        setattr(config, name, value)
    config.layer_types = config.layer_types[:4]
    return config


def probe(config: PretrainedConfig) -> tuple[ProbeState, str, str]:
    """Return how a probe ended: state, reason and detail."""
    runner = DeviceRunner(config, pace=ONE_STEP)
    request = ProbeRequest(probe_id="p", flavour="lab/this-card", step=STEP, length_tokens=LENGTH_TOKENS)
    outcome = runner.run(request)
    runner.close()
    if outcome.state is ProbeState.COMPLETED:
        assert outcome.measurement is not None and outcome.measurement.loaded_bytes is not None
        assert outcome.measurement.loaded_bytes < outcome.measurement.peak_allocated_bytes
    return outcome.state, outcome.reason or "", outcome.detail or ""


def test_it_trains_or_the_kernels_that_refuse_are_named(hybrid: PretrainedConfig) -> None:
    state, reason, detail = probe(hybrid)
    if state is ProbeState.COMPLETED:
        return
    assert (state, reason) == (ProbeState.FAILED, "missing_kernel"), detail
    if importlib.util.find_spec("fla") is None:
        assert "flash-linear-attention" in detail
    assert detail
    pytest.skip(f"refused here, as it should be: {detail}")


def test_a_refused_probe_leaves_the_card_to_the_next_model(hybrid: PretrainedConfig, runner: DeviceRunner) -> None:
    probe(hybrid)
    dense = replace(STEP, loss=Loss.FULL)
    outcome = runner.run(ProbeRequest(probe_id="p", flavour="lab/this-card", step=dense, length_tokens=LENGTH_TOKENS))
    assert outcome.state is ProbeState.COMPLETED, outcome


def test_its_forecast_is_refused_with_the_way_to_measure_it(hybrid: PretrainedConfig) -> None:
    with pytest.raises(NotForecastError, match="linear-attention"):
        model_program("hybrid", hybrid, STEP, [LENGTH_TOKENS])
