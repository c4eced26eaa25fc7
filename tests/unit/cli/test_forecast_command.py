"""``raysweep forecast`` on a model small enough to trace in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
SPACE = """
model: ../tiny
step: {accumulation: 2, loss: full}
flavours:
  - {name: lab/small, memory_bytes: 180000000, outside_allocator_bytes: 20000000}
  - {name: lab/large, memory_bytes: 24000000000}
"""
GROWING = [200, 1900, 300, 1000, 1950, 700, 1800, 2000]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    # One folder for the whole module: programs that were traced once are kept there.
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path_factory.getbasetemp() / "forecast-command"))


def _space(folder: Path, text: str = SPACE) -> Path:
    model = folder.parent / "tiny"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "space.yaml"
    file.write_text(text)
    return file


def _items(folder: Path, tokens: list[int], name: str = "mine.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps({"tokens": n}) + "\n" for n in tokens))
    return file


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["forecast", *(str(word) for word in words)])


def _json(*words: str | Path, code: Exit = Exit.DONE) -> dict[str, Any]:
    result = _run(*words, "--json")
    assert result.exit_code == code, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def _refused(result: Result, *wanted: str) -> None:
    assert result.exit_code == Exit.BAD_INPUT, result.output
    assert result.stdout == ""
    assert result.stderr.count("Error:") == 1
    for text in wanted:
        assert text in result.stderr


def test_rows_longest_lengths_and_the_allowance(tmp_path: Path) -> None:
    data = _json(_space(tmp_path), "--lengths", "256,1024")
    assert next(iter(data)) == "schema_version"
    assert [row["length_tokens"] for row in data["rows"]] == [256, 1024]
    for row in data["rows"]:
        assert sum(row["components_bytes"].values()) == row["peak_allocated_bytes"]
        assert set(row["fit"]) == {"lab/small", "lab/large"}
    assert {(one["flavour"], one["length_tokens"]) for one in data["longest"]} >= {("lab/large", 1024)}
    assert data["outside_allocator"]["lab/large"] == {"bytes": 1_300_000_000, "is_allowance": True}
    assert data["outside_allocator"]["lab/small"] == {"bytes": 20_000_000, "is_allowance": False}
    assert "data" not in data


def test_what_frees_most_is_forecast_change_by_change(tmp_path: Path) -> None:
    space = _space(tmp_path)
    before = _json(space, "--lengths", "1024")
    frees = before["what_frees_most"]
    assert frees["peak_reserved_bytes"] == before["rows"][0]["peak_reserved_bytes"]
    freed = [change["freed_bytes"] for change in frees["changes"]]
    assert freed == sorted(freed, reverse=True)
    best = next(change for change in frees["changes"] if "." not in change["changed"])
    field, value = best["changed"].split(": ")
    changed = tmp_path / "changed.yaml"
    changed.write_text(
        SPACE.replace("loss: full", f"{field}: {value}" if field == "loss" else f"loss: full, {field}: {value}")
    )
    after = _json(changed, "--lengths", "1024", "--no-changes")
    assert "what_frees_most" not in after
    assert after["rows"][0]["peak_reserved_bytes"] == best["peak_reserved_bytes"]


def test_without_lengths_the_longest_goes_up_to_the_models_own(tmp_path: Path) -> None:
    data = _json(_space(tmp_path))
    longest = {one["flavour"]: one for one in data["longest"]}
    assert longest["lab/large"]["length_tokens"] == 2048
    assert longest["lab/large"]["limited_by"] == "the model's longest sequence"
    small = longest["lab/small"]["length_tokens"]
    assert 64 < small < 2048
    assert longest["lab/small"]["tight_length_tokens"] >= small


def test_data_are_played_item_by_item_and_advice_is_forecast(tmp_path: Path) -> None:
    data = _json(_space(tmp_path), "--lengths", "256", "--data", _items(tmp_path, GROWING))
    (one,) = data["data"]
    assert one["items"] == len(GROWING)
    assert one["fit"]["lab/large"] | {"headroom_bytes": 0} == {
        "verdict": "fits",
        "headroom_bytes": 0,
        "retries": 0,
        "fails_at_item": None,
        "fails_at_tokens": None,
    }
    small = one["fit"]["lab/small"]
    assert small["verdict"] == "no"
    assert small["fails_at_tokens"] == GROWING[small["fails_at_item"]]
    limits = [advice for advice in one["advice"] if advice["kind"] == "limit"]
    assert limits
    assert {advice["verdict"] for advice in limits} == {"fits"}


def test_a_suggested_limit_does_what_it_says(tmp_path: Path) -> None:
    space, items = _space(tmp_path), _items(tmp_path, GROWING)
    (one,) = _json(space, "--lengths", "256", "--data", items)["data"]
    limit = next(a["limit_tokens"] for a in one["advice"] if a["kind"] == "limit" and "expandable" not in a["change"])
    (limited,) = _json(space, "--lengths", "256", "--data", items, "--limit", str(limit))["data"]
    assert limited["fit"]["lab/small"]["verdict"] == "fits"


def test_data_that_fit_no_flavour_are_a_negative_answer(tmp_path: Path) -> None:
    small = SPACE.replace("  - {name: lab/large, memory_bytes: 24000000000}\n", "")
    items = _items(tmp_path, GROWING)
    _json(_space(tmp_path, small), "--lengths", "256", "--data", items, "--no-advice", code=Exit.NEGATIVE)


def test_the_spaces_own_data_are_played_for_its_epochs(tmp_path: Path) -> None:
    _items(tmp_path, [300, 200])
    data = _json(_space(tmp_path, SPACE + "lengths: [256]\ndata: {items: mine.jsonl, epochs: 2}\n"))
    assert data["data"][0]["items"] == 2
    assert data["data"][0]["advice"] == []


def test_several_files_are_stages_of_one_run(tmp_path: Path) -> None:
    files = _items(tmp_path, [200, 300], "a.jsonl"), _items(tmp_path, GROWING, "b.jsonl")
    data = _json(_space(tmp_path), "--lengths", "256", "--data", files[0], "--data", files[1], "--no-advice")
    (one,) = data["data"]
    assert (one["name"], one["items"]) == ("a + b", 2 + len(GROWING))
    assert one["fit"]["lab/small"]["fails_in"] == "b"


def test_the_page_says_where_it_dies_and_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # a long path leaves the sentences their words in one line
    result = _run(_space(tmp_path), "--lengths", "256", "--data", _items(tmp_path, GROWING))
    for text in ("Your data: mine, 8 items", "dies at", "What would help", "truncate items at", "an allowance"):
        assert text in result.stdout


def test_several_gpus_are_priced_and_not_forecast(tmp_path: Path) -> None:
    data = _json(_space(tmp_path, SPACE + "  - hf/h200x8\n"), "--lengths", "256")
    assert data["rejected"]["hf/h200x8"]["reason"] == "needs a multi-GPU step"
    assert data["rejected"]["hf/h200x8"]["usd_per_hour"] > 0
    assert "hf/h200x8" not in data["rows"][0]["fit"]


def test_a_step_that_is_not_modelled_is_named_beside_the_others(tmp_path: Path) -> None:
    text = SPACE.replace("loss: full", "loss: full, autocast: {search: [false, true]}")
    data = _json(_space(tmp_path, text), "--lengths", "256")
    assert len(data["rows"]) == 1
    (refused,) = data["not_forecast"]
    assert refused["step"]["autocast"] is True
    assert "autocast: true" in refused["reason"]


def test_where_no_step_is_modelled_there_is_no_answer(tmp_path: Path) -> None:
    text = SPACE.replace("loss: full", "loss: full, autocast: true")
    _refused(_run(_space(tmp_path, text), "--lengths", "256"), "autocast: true", "--device cuda")


@pytest.mark.parametrize(("lengths", "wanted"), [("0", "0 came"), ("1", "1 came"), ("256,4096", "at most 2,048")])
def test_lengths_that_no_item_can_have_are_refused(lengths: str, wanted: str, tmp_path: Path) -> None:
    _refused(_run(_space(tmp_path), "--lengths", lengths), "--lengths", wanted)


def test_lengths_of_the_space_are_refused_by_its_name(tmp_path: Path) -> None:
    _refused(_run(_space(tmp_path, SPACE + "lengths: [4096]\n")), "space.yaml: lengths", "4,096 came")


def test_items_beyond_the_models_longest_are_refused_with_the_way_out(tmp_path: Path) -> None:
    items = _items(tmp_path, [100, 3000, 2500])
    _refused(_run(_space(tmp_path), "--data", items), "2 of 3", "3,000 tokens", "--limit 2048")


def test_items_of_one_token_are_played_as_two(tmp_path: Path) -> None:
    data = _json(_space(tmp_path), "--lengths", "256", "--data", _items(tmp_path, [1, 300]))
    assert any("1 token" in note for note in data["notes"])


def test_a_larger_margin_takes_headroom(tmp_path: Path) -> None:
    space = _space(tmp_path)
    fits = [_json(space, "--lengths", "256", "--margin", m)["rows"][0]["fit"]["lab/large"] for m in ("0%", "10%")]
    assert fits[0]["headroom_bytes"] - fits[1]["headroom_bytes"] == 2_400_000_000


def test_the_spaces_own_items_are_limited_to_its_longest_length(tmp_path: Path) -> None:
    _items(tmp_path, [300, 3000, 400, 2500])
    data = _json(_space(tmp_path, SPACE + "lengths: [256]\ndata: {items: mine.jsonl}\n"))
    assert data["data"][0]["peak_allocated_bytes"] == data["rows"][0]["peak_allocated_bytes"]
    assert any("4 items of more than 256 tokens" in note and "truncate" in note for note in data["notes"])


def test_a_card_without_native_bf16_fits_with_a_warning(tmp_path: Path) -> None:
    space = _space(tmp_path)
    words = ("--lengths", "256", "--no-changes", "--flavours")
    (note,) = (n for n in _json(space, *words, "hf/t4-small,hf/l4x1")["notes"] if "bf16" in n)
    assert note.startswith("hf/t4-small: T4 has no native bf16")
    assert note.split(".")[0] in " ".join(_run(space, *words, "hf/t4-small").stdout.split())
