"""A checkpoint's real weights: found, or refused with what to write, and loaded as they were saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from raysweep.errors import MachineError, SpaceError
from raysweep.setting import AdapterSetting, Attention, StepSetting, Weights
from raysweep.step.config import load_config
from raysweep.step.model import build, build_base
from raysweep.step.pretrained import Checkpoint, find_checkpoint

BF16 = StepSetting(weights=Weights.BF16, adapter=AdapterSetting(rank=4))
FLOATS = {Weights.BF16: torch.bfloat16, Weights.FP32: torch.float32}


@pytest.fixture
def wide() -> LlamaConfig:
    """Wide enough for bitsandbytes' blocks of 64."""
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        tie_word_embeddings=False,
    )


@pytest.fixture
def saved(wide: LlamaConfig, tmp_path: Path) -> Path:
    """A folder as ``save_pretrained`` leaves it, in fp32, with biases that no random initialisation makes."""
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(wide, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def of(folder: Path) -> Checkpoint:
    return find_checkpoint(str(folder), load_config(str(folder)))


def plain_name(name: str) -> str:
    """A parameter's name without what peft puts around it."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


@pytest.mark.parametrize("weights", FLOATS)
@pytest.mark.parametrize("make", [build, build_base])
def test_loaded_weights_are_the_saved_ones(saved: Path, weights: Weights, make: Callable[..., Any]) -> None:
    model = make(load_config(str(saved)), replace(BF16, weights=weights), device="cpu", checkpoint=of(saved))
    loaded = {plain_name(n): p for n, p in model.named_parameters() if "lora_" not in n}
    expected = load_file(saved / "model.safetensors")
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value.to(FLOATS[weights])) for name, value in expected.items())


@pytest.mark.parametrize("weights", [Weights.NF4, Weights.INT8])
def test_quantised_weights_are_the_saved_ones_as_near_as_their_bits_allow(saved: Path, weights: Weights) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = build(load_config(str(saved)), replace(BF16, weights=weights), device="cpu", checkpoint=of(saved))
    expected = load_file(saved / "model.safetensors")
    attention = model.get_base_model().model.layers[1].self_attn.q_proj.base_layer
    wanted = expected["model.layers.1.self_attn.q_proj.weight"].to(torch.bfloat16)
    if weights is Weights.NF4:
        packed, state = bitsandbytes.functional.quantize_4bit(
            wanted, quant_type="nf4", compress_statistics=True, blocksize=attention.weight.quant_state.blocksize
        )
        assert torch.equal(attention.weight, packed)
        assert torch.equal(
            bitsandbytes.functional.dequantize_4bit(attention.weight.data, attention.weight.quant_state),
            bitsandbytes.functional.dequantize_4bit(packed, state),
        )
    else:
        steps = attention.weight.SCB[:, None] / 127
        assert torch.all((attention.weight.float() * steps - wanted.float()).abs() <= steps)
    assert torch.equal(attention.bias, expected["model.layers.1.self_attn.q_proj.bias"].to(torch.bfloat16))
    head = model.get_base_model().lm_head.weight
    assert torch.equal(head, expected["lm_head.weight"].to(torch.bfloat16))


@pytest.mark.parametrize("weights", [Weights.BF16, Weights.FP32, Weights.NF4, Weights.INT8])
def test_a_checkpoint_gives_the_layers_and_dtypes_of_a_random_build(saved: Path, weights: Weights) -> None:
    if weights not in FLOATS:
        pytest.importorskip("bitsandbytes")
    setting = replace(BF16, weights=weights, attention=Attention.EAGER)
    config = load_config(str(saved))
    random = build(config, setting, device="cpu")
    real = build(config, setting, device="cpu", checkpoint=of(saved))
    for tensors in ("named_parameters", "named_buffers"):
        assert {n: (p.shape, p.dtype, p.requires_grad) for n, p in getattr(real, tensors)()} == {
            n: (p.shape, p.dtype, p.requires_grad) for n, p in getattr(random, tensors)()
        }
    assert [type(module) for module in real.modules()] == [type(module) for module in random.modules()]
    for name in ("_attn_implementation", "use_cache"):
        assert getattr(real.get_base_model().config, name) == getattr(random.get_base_model().config, name)


def test_weights_spread_over_several_files_are_one_checkpoint(saved: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved)
    model.save_pretrained(tmp_path / "parts", max_shard_size="50KB")
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    base = build_base(load_config(str(saved)), BF16, device="cpu", checkpoint=of(tmp_path / "parts"))
    assert torch.equal(base.lm_head.weight, model.lm_head.weight.bfloat16())


def test_a_config_file_stands_for_its_folder(saved: Path) -> None:
    assert of(saved / "config.json") == of(saved) == Checkpoint(source=str(saved))


def test_a_shipped_shape_has_no_weights() -> None:
    with pytest.raises(SpaceError, match=r"'qwen2\.5-7b' is a shipped shape.*weights_from: random"):
        find_checkpoint("qwen2.5-7b", load_config("qwen2.5-7b"))


@pytest.mark.parametrize("name", ["", "config.json"])
def test_a_folder_of_a_config_alone_says_where_was_looked_and_what_to_type(
    wide: LlamaConfig, tmp_path: Path, name: str
) -> None:
    wide.save_pretrained(tmp_path)
    with pytest.raises(SpaceError) as raised:
        of(tmp_path / name)
    for part in ("weights_from: pretrained", "model.safetensors", str(tmp_path), "save_pretrained", "random"):
        assert part in str(raised.value)


def test_a_config_of_another_name_says_nothing_of_the_weights_beside_it(saved: Path) -> None:
    other = saved / "other.json"
    other.write_text((saved / "config.json").read_text())
    with pytest.raises(SpaceError, match="is a config alone"):
        of(other)


def test_a_missing_part_is_named(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    AutoModelForCausalLM.from_pretrained(saved).save_pretrained(folder, max_shard_size="50KB")
    gone = sorted(folder.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(SpaceError, match=rf"{gone.name} is missing\."):
        of(folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_a_damaged_index_is_named(wide: LlamaConfig, tmp_path: Path, text: str) -> None:
    wide.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(SpaceError, match=r"weight_map; .*index\.json is none"):
        of(tmp_path)


def test_weights_that_are_quantised_already_are_refused(saved: Path) -> None:
    file = saved / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(SpaceError, match=r"quantised already \(gptq\)"):
        of(saved)


def test_weights_that_the_checkpoint_lacks_are_not_drawn_in_silence(saved: Path) -> None:
    file = saved / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(SpaceError, match=r"1 are missing, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        build(load_config(str(saved)), BF16, device="cpu", checkpoint=of(saved))


def hub_with(monkeypatch: pytest.MonkeyPatch, answer: list[str] | Exception) -> None:
    def list_files(self: object, repository: str) -> list[str]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repository, name: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", list_files)


def test_a_hub_model_with_weights_is_a_checkpoint(wide: LlamaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(monkeypatch, ["config.json", "model.safetensors.index.json"])
    found = find_checkpoint("someone/some-model", wide, trust_remote_code=True)
    assert found == Checkpoint(source="someone/some-model", trust_remote_code=True)


def test_a_hub_model_without_weights_is_named(wide: LlamaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(monkeypatch, ["config.json", "model.gguf"])
    with pytest.raises(SpaceError, match=r"model\.safetensors.*'someone/some-model' on the Hugging Face Hub has none"):
        find_checkpoint("someone/some-model", wide)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), OSError("offline")])
def test_a_hub_that_does_not_answer_is_the_machines_failure(
    wide: LlamaConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    hub_with(monkeypatch, error)
    with pytest.raises(MachineError, match=r"did not say.*\((refused|offline)\)"):
        find_checkpoint("someone/some-model", wide)


def test_a_hub_model_in_the_cache_needs_no_network(wide: LlamaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_with(monkeypatch, OSError("offline"))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repository, name: f"/cache/{name}")
    assert find_checkpoint("someone/some-model", wide).source == "someone/some-model"
