from __future__ import annotations

import json
from pathlib import Path

import httpx
import huggingface_hub.errors as hub
import pytest
import transformers

from raysweep.errors import MachineError, RaysweepError, SpaceError
from raysweep.step.config import load_config, shape_names
from raysweep.step.config_check import quantisation_notes

TINY = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize("name", shape_names())
def test_every_shipped_shape_is_a_causal_language_model(name: str) -> None:
    assert load_config(name).get_text_config().num_hidden_layers > 0


def test_four_shapes_ship() -> None:
    assert shape_names() == ("llama-3.2-1b", "qwen2.5-7b", "qwen3-8b", "qwen3.5-27b")


def test_a_folder_and_its_config_file_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    assert load_config(str(tmp_path)).hidden_size == load_config(str(file)).hidden_size == 32


def test_a_misspelt_shape_names_the_nearest() -> None:
    with pytest.raises(SpaceError, match=r"Did you mean 'qwen2\.5-7b'\?"):
        load_config("qwen2.5-7bb")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "is not JSON"),
        ("[]", "model_type"),
        ('{"hidden_size": 3}', "model_type"),
        ('{"model_type": "nosuch"}', "cannot read"),
        (json.dumps({"model_type": "t5"}), "no causal language model"),
    ],
)
def test_a_config_that_cannot_be_used_is_explained(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpaceError, match=part):
        load_config(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"hidden_size": "4096"}, r"config\.json: hidden_size: expected a whole number of 1 or more; '4096' came"),
        ({"num_hidden_layers": -1}, r"num_hidden_layers: expected a whole number of 1 or more; -1 came"),
        (
            {"hidden_size": None, "hiden_size": 32},
            r"config\.json: hiden_size: unknown key.* Did you mean 'hidden_size'",
        ),
        ({"num_attention_heads": 5}, r"config\.json: .*\(32\) .*\(5\)"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads: expected a divisor of num_attention_heads, .* 4; 3 came"),
        ({"rope_scaling": {"rope_type": "lama3"}}, r"config\.json: rope_type: .*'lama3' came\. Did you mean 'llama3'"),
        ({"hidden_act": "silly"}, r"config\.json: hidden_act: .*'silly' came\. Did you mean 'silu'"),
        ({"rms_norm_eps": None}, r"config\.json: rms_norm_eps: expected float; null came"),
        ({"attention_bias": "no"}, r"config\.json: attention_bias: expected .*bool"),
    ],
)
def test_a_slip_in_a_config_is_named_with_its_file(
    tmp_path: Path, change: dict[str, object], part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {**TINY, **change}
    if config["hidden_size"] is None:
        del config["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpaceError, match=part):
        load_config(str(tmp_path))
    assert capfd.readouterr().err == "", "transformers' own lines say nothing to whoever wrote the file"


def test_other_programs_keys_in_a_config_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "unsloth_version": "2026.1", "ffn_hidden_size": 64}))
    assert load_config(str(tmp_path)).hidden_size == 32


def test_a_config_that_tells_how_to_quantise_is_said_not_to_be_followed(tmp_path: Path) -> None:
    given = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (tmp_path / "config.json").write_text(json.dumps(TINY | given))
    (note,) = quantisation_notes(load_config(str(tmp_path)), ("bf16",))
    assert "(bitsandbytes, 4 bits)" in note
    assert "step.weights decides, and is bf16" in note
    assert quantisation_notes(load_config("llama-3.2-1b"), ("bf16",)) == ()


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"no config\.json"):
        load_config(str(tmp_path))


def test_a_models_own_code_does_not_run_unasked(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "conf.py").write_text(f"open({str(ran)!r}, 'w')\n")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "conf.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    with pytest.raises(SpaceError, match="trust_remote_code: true"):
        load_config(str(tmp_path))
    assert not ran.exists()


RESPONSE = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("cause", "expected", "part"),
    [
        (hub.RepositoryNotFoundError("no", response=RESPONSE), SpaceError, "has no config"),
        (hub.GatedRepoError("no", response=RESPONSE), SpaceError, "gated"),
        (hub.LocalEntryNotFoundError("offline"), MachineError, "did not answer"),
        (httpx.ConnectError("refused"), MachineError, "did not answer"),
    ],
)
def test_what_the_hub_says_becomes_the_right_error(
    monkeypatch: pytest.MonkeyPatch, cause: Exception, expected: type[RaysweepError], part: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("could not load") from cause

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    with pytest.raises(expected, match=part):
        load_config("someone/some-model")


@pytest.mark.parametrize("model", ["a" * 5000, "~nosuchuser/x/y", "../nowhere"])
def test_a_path_that_cannot_be_is_no_model(model: str) -> None:
    with pytest.raises(SpaceError, match="is no shipped shape, folder or file"):
        load_config(model)


def test_a_malformed_hub_id_is_bad_input_and_not_a_failed_network() -> None:
    with pytest.raises(SpaceError, match="is no id of the Hugging Face Hub"):
        load_config("a b/c d")
