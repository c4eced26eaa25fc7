from __future__ import annotations

import pytest

from raysweep.errors import InputError, SpaceError
from raysweep.records import Mode, ProbeState
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest, load_key
from raysweep.search.strategy import make_policy
from raysweep.setting import Checkpointing, Loss, Optimizer, StepSetting, Weights
from raysweep.space import parse_space

SPACE = """
model: qwen2.5-7b
step: {loss: {search: [full, chunked]}}
lengths: [1024, 2048]
flavours: [hf/h200, hf/a100-large]
"""


def test_a_grid_holds_the_whole_space():
    policy = make_policy("grid", parse_space(SPACE, "space"))
    assert [policy.remaining(name) for name in ("hf/h200", "hf/a100-large", "hf/t4-small")] == [4, 4, 0]


def test_only_the_flavours_asked_for_are_probed():
    policy = make_policy("bisect", parse_space(SPACE, "space"), flavours=["hf/h200"])
    assert policy.remaining("hf/h200") > 0
    assert policy.remaining("hf/a100-large") == 0


def test_a_misspelt_strategy_gets_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'bisect'"):
        make_policy("bisekt", parse_space(SPACE, "space"))


def test_a_space_without_lengths_has_nothing_to_probe():
    with pytest.raises(SpaceError, match="lengths"):
        make_policy("grid", parse_space("model: qwen2.5-7b\nflavours: [hf/h200]\n", "space"))


def test_generations_have_no_length_to_bisect():
    space = parse_space(
        "model: qwen2.5-7b\nflavours: [hf/h200]\nmode: generate\nprompt_tokens: 10\nnew_tokens: 20\n", "space"
    )
    with pytest.raises(SpaceError, match="grid"):
        make_policy("bisect", space)
    request = make_policy("grid", space).ask("hf/h200", None)
    assert isinstance(request, ProbeRequest)
    assert request.mode is Mode.GENERATE


def test_one_loaded_model_serves_every_setting_that_does_not_change_it():
    step = StepSetting()
    for other in (
        StepSetting(loss=Loss.CHUNKED),
        StepSetting(checkpointing=Checkpointing.CPU),
        StepSetting(optimizer=Optimizer.ADAMW_8BIT),
        StepSetting(micro_batch=4, accumulation=2),
    ):
        assert load_key(other) == load_key(step)
    assert load_key(StepSetting(weights=Weights.NF4)) != load_key(step)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"length_tokens": 5, "item_tokens": (5,)},
        {"mode": Mode.GENERATE, "prompt_tokens": 3},
        {"mode": Mode.GENERATE, "prompt_tokens": 3, "new_tokens": 3, "item_tokens": (5,)},
    ],
)
def test_a_request_that_contradicts_itself_is_refused(fields):
    with pytest.raises(ValueError, match="probe has"):
        ProbeRequest(probe_id="p", flavour="a", step=StepSetting(), **fields)


def test_a_poisoned_device_says_how_the_probe_ended():
    outcome = Outcome(state=ProbeState.FAILED, reason="error", detail="illegal address", probe_seconds=1.0)
    assert "illegal address" in str(PoisonedDevice(outcome))
