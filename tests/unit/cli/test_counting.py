"""Texts on the command line: which tokenizer counts them, what is shown meanwhile, and what limits would cost."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.cli.options import read_lengths, read_margin, read_names, read_slurm_margin, read_stages
from raysweep.cli.progress import CountProgress
from raysweep.data import Items
from raysweep.decision.items import items_table
from raysweep.errors import DataError, InputError
from raysweep.space import load_space
from raysweep.store import Artifact

SPACE = "model: qwen2.5-7b\nlengths: [4, 8]\nflavours: [hf/h200]\n"


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["<end>", "a", "b", "c"])}
    backend = Tokenizer(models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "words"
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": "a " * n}) + "\n" for n in (2, 4, 10)))
    return file


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """An artifact of a sweep that kept nothing but its items, so that no probe stands in the way."""
    artifact = Artifact.create(tmp_path / "artifact", SPACE)
    artifact.write_items(items_table({"data": Items.of([3, 9])}))
    return tmp_path / "artifact"


def _space(folder: Path, data: str) -> Path:
    file = folder / "space.yaml"
    file.write_text(SPACE + data)
    return file


def test_texts_of_a_shipped_shape_ask_for_a_tokenizer(artifact: Path, texts: Path) -> None:
    result = _run("project", artifact, "--data", texts)
    assert result.exit_code == Exit.BAD_INPUT
    assert "found none for 'qwen2.5-7b' here. Name one with --tokenizer" in result.stderr
    assert str(texts) in result.stderr


def test_the_spaces_tokenizer_counts_its_texts(tmp_path: Path, tokenizer: Path, texts: Path) -> None:
    space = load_space(_space(tmp_path, f"data: {{items: {texts.name}, tokenizer: {tokenizer.name}}}\n"))
    assert read_stages(space)["data"].tokens.tolist() == [2, 4, 10]


def test_a_tokenizer_named_by_the_command_goes_before_the_spaces(tmp_path: Path, tokenizer: Path, texts: Path) -> None:
    space = load_space(_space(tmp_path, f"data: {{items: {texts.name}, tokenizer: nowhere}}\n"))
    assert read_stages(space, tokenizer=str(tokenizer))["data"].tokens.tolist() == [2, 4, 10]
    with pytest.raises(DataError, match="'nowhere'"):
        read_stages(space)


def test_a_hub_that_does_not_answer_is_said_in_one_error(
    artifact: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(HfApi, "model_info", unreachable)
    result = _run("project", artifact, "--data", texts, "--tokenizer", "nobody/never-made")
    assert result.exit_code == Exit.BAD_INPUT
    assert "the Hugging Face Hub does not answer (no network)" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["forecast", "project", "choose"])
def test_every_command_with_data_takes_a_tokenizer(name: str) -> None:
    assert "--tokenizer PATH_OR_NAME" in _run(name, "--help").stdout


@pytest.mark.parametrize(("over", "left_lost"), [("truncate", (3, 6)), ("drop", (2, 10)), ("split", (5, 0))])
def test_a_forecast_says_what_each_length_costs_of_the_data(
    tmp_path: Path, tokenizer: Path, texts: Path, over: str, left_lost: tuple[int, int]
) -> None:
    space = _space(tmp_path, f"run: {{over_length: {over}}}\n")
    words = ("forecast", space, "--data", texts, "--tokenizer", tokenizer, "--limit", "8", "--no-advice")
    found = json.loads(_run(*words, "--lengths", "4", "--no-changes", "--json").stdout)["limits"]
    assert [cost["limit_tokens"] for cost in found] == [4, 8]
    assert found[0]["over_length"] == over
    assert found[0]["items_over"] == 1
    assert (found[0]["items_left"], found[0]["lost_tokens"]) == left_lost
    assert found[0]["lost_loss_share"] == pytest.approx(left_lost[1] / 16)
    assert "What a length limit costs of the data" in _run(*words, "--lengths", "4", "--no-changes").stdout


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, quiet: bool) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with CountProgress(quiet=quiet) as progress:
        tell = progress.of("texts.jsonl")
        tell(0, 100)
        tell(100, 100)
    return stream.getvalue()


def test_a_bar_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "counting the tokens of texts.jsonl" in _shown(_Terminal(), monkeypatch, quiet=False)
    assert _shown(io.StringIO(), monkeypatch, quiet=False) == ""
    assert _shown(_Terminal(), monkeypatch, quiet=True) == ""


def test_an_interrupt_while_counting_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(KeyboardInterrupt), CountProgress(quiet=False) as progress:
        progress.of("texts.jsonl")(0, 100)
        raise KeyboardInterrupt
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l"), "the cursor is shown again"


@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_option_of_names_is_refused_where_it_has_none(text: str) -> None:
    with pytest.raises(InputError, match="--lengths: expected one or more, such as 4096,8192"):
        read_lengths(text)
    with pytest.raises(InputError, match="--flavours: expected one or more"):
        read_names(text, "--flavours", "hf/h200")


def test_a_comma_at_the_end_is_no_name() -> None:
    assert read_names("hf/h200, hf/a100-large,", "--flavours", "hf/h200") == ("hf/h200", "hf/a100-large")
    assert read_lengths("4096,8192,") == (4096, 8192)
    assert read_lengths("1024:3072:1024") == (1024, 2048, 3072)


@pytest.mark.parametrize("text", ["", "x", "120%", "nan"])
def test_a_share_that_is_none_is_refused_in_its_own_words(text: str) -> None:
    with pytest.raises(InputError, match=r"^--margin: expected a share of the device's memory"):
        read_margin(text)
    with pytest.raises(InputError, match=r"^--slurm-margin: expected a share of the projected time .* such as 20%"):
        read_slurm_margin(text)


@pytest.mark.parametrize("option", ["--lengths", "--margin", "--slurm-margin"])
def test_an_empty_option_of_project_is_not_taken_for_none(artifact: Path, option: str) -> None:
    result = _run("project", artifact, option, "")
    assert result.exit_code == Exit.BAD_INPUT
    assert f"Error: {option}: expected" in result.stderr


@pytest.mark.parametrize("option", ["--lengths", "--margin", "--flavours"])
def test_an_empty_option_of_forecast_is_not_taken_for_none(option: str) -> None:
    result = _run("forecast", "quickstart", option, "")
    assert result.exit_code == Exit.BAD_INPUT
    assert f"Error: {option}: expected" in result.stderr
