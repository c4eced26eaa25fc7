"""Bad input to the commands: one clear error, exit code 2, no traceback, nothing overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.records import PROBES_SCHEMA, Measurement, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting
from raysweep.store import Artifact

SPACE = "model: qwen2.5-7b\nlengths: [1024]\nflavours: [hf/h200]\n"


@pytest.fixture(autouse=True)
def _no_refreshed_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def _refused(result: Result, *wanted: str) -> None:
    assert result.exit_code == Exit.BAD_INPUT, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error:") == 1
    for text in wanted:
        assert text in result.stderr


def _space(folder: Path, text: str) -> Path:
    file = folder / "space.yaml"
    file.write_text(text)
    return file


def _read_only(artifact: Path) -> None:
    """Folders in the files' places: not even a superuser writes there."""
    for name in ("decision.json", "report.html"):
        (artifact / name).mkdir()


def test_the_choice_from_an_artifact_that_may_only_be_read_stands_and_is_said_not_to_be_kept(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a")
    _read_only(artifact)
    result = _run("choose", artifact)
    assert result.exit_code == Exit.DONE
    assert "Rent hf/h200" in result.stdout
    assert result.stderr.startswith("The decision is not kept: ")


def test_the_page_of_an_artifact_that_may_only_be_read_is_wanted_elsewhere(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a")
    _read_only(artifact)
    _refused(_run("report", artifact), "cannot be written", "with --html FILE")


def test_stages_that_no_run_can_have_are_refused_before_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "counts.jsonl").write_text('{"tokens": 100}\n')
    stages = "[{name: a, items: counts.jsonl, loss_share: 40%}, {name: b, items: counts.jsonl, epochs: 1}]"
    space = _space(tmp_path, f"{SPACE}data: {{stages: {stages}}}\n")
    _refused(
        _run("sweep", space, "--device", "simulated", "--out", tmp_path / "out"), "'a' has no count of loss-bearing"
    )
    assert not (tmp_path / "out").exists()


BAD_SPACES = {
    "a misspelt key": (SPACE.replace("lengths", "lenghts"), "space.yaml:2", "'lengths'"),
    "a misspelt flavour": (SPACE.replace("h200", "h20"), "space.yaml:3", "hf/h200"),
    "a length of 0": (SPACE.replace("1024", "0"), "space.yaml:2", "0 came"),
    "a margin of 120 %": (SPACE + "margin: 120%", "space.yaml:4", "'120%' came"),
    "an alias": (SPACE + "seed: &a 1", "space.yaml:4", "anchor"),
    "a tag": (SPACE + "seed: !!int 1", "space.yaml:4", "tag"),
    "no flavours": ("model: qwen2.5-7b\nlengths: [1024]", "space.yaml", "flavours: [hf/h200]"),
    "no lengths": ("model: qwen2.5-7b\nflavours: [hf/h200]", "lengths", "lengths: [4096"),
    "data that are not there": (SPACE + "data: {items: none.jsonl}", "none.jsonl"),
    "a card of unknown memory": (SPACE.replace("hf/h200", "runpod/B300 (secure)"), "memory"),
}


@pytest.mark.parametrize("case", BAD_SPACES)
def test_a_sweep_refuses(case: str, tmp_path: Path) -> None:
    text, *wanted = BAD_SPACES[case]
    out = tmp_path / "out"
    _refused(_run("sweep", _space(tmp_path, text), "--device", "simulated", "--out", out), *wanted)
    assert not out.exists()


def test_a_misspelt_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    space = _space(tmp_path, SPACE.replace("qwen2.5-7b", "qwen2.5-7"))
    result = _run("sweep", space, "--device", "simulated", "--out", tmp_path / "out")
    assert result.exit_code == Exit.BAD_INPUT
    assert "Did you mean 'qwen2.5-7b'?" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_misspelt_space_names_the_shipped_ones() -> None:
    _refused(_run("sweep", "quikstart", "--out", "never-made"), "Did you mean 'quickstart'?")


def test_a_misspelt_strategy_names_the_nearest(tmp_path: Path) -> None:
    words = ("sweep", _space(tmp_path, SPACE), "--device", "simulated", "--out", tmp_path / "o", "--strategy", "bisct")
    _refused(_run(*words), "'bisect'")


def test_an_output_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    _refused(_run("sweep", _space(tmp_path, SPACE), "--device", "simulated", "--out", out), "not empty", "--resume")
    assert [f.name for f in out.iterdir()] == ["mine.txt"]


def test_resuming_the_sweep_of_another_space_is_refused(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "out", SPACE + "seed: 7\n")
    words = ("sweep", _space(tmp_path, SPACE), "--device", "simulated", "--out", tmp_path / "out", "--resume")
    _refused(_run(*words), "its space.yaml differs")


def test_a_simulation_cannot_stand_for_other_cards(tmp_path: Path) -> None:
    words = ("sweep", _space(tmp_path, SPACE), "--out", tmp_path / "o", "--device", "simulated", "--emulate", "hf/h200")
    _refused(_run(*words), "--emulate")


def test_a_sweep_that_costs_money_is_not_begun_unasked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = _run("sweep", _space(tmp_path, SPACE), "--out", out, "--device", "cuda", "--address", "127.0.0.1:1")
    assert result.exit_code == Exit.BAD_INPUT
    assert "add --yes" in result.stderr
    assert "5.00" in result.stdout, "the plan and its price come first"
    assert not out.exists()


@pytest.mark.parametrize("address", ["ray://foo", "here", "foo:"])
def test_what_is_no_address_is_refused_before_the_plan(address: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sweep", _space(tmp_path, SPACE), "--device", "simulated", "--out", out, "--address", address)
    _refused(_run(*words), f"--address: expected local, auto or HOST:PORT, got '{address}'")
    assert not out.exists()


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_an_address_without_a_cluster_leaves_no_artifact_behind(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    out = tmp_path / "out"
    words = ("sweep", _space(tmp_path, SPACE), "--device", "simulated", "--out", out, "--address", address)
    result = _run(*words)
    assert result.exit_code == Exit.MACHINE, result.output
    assert f"--address {address}: expected a running Ray cluster; nothing answers there" in result.stderr
    assert not out.exists()


def _cut(folder: Path) -> None:
    file = folder / "probes.parquet"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _newer(folder: Path) -> None:
    schema = PROBES_SCHEMA.with_metadata({"raysweep_schema_version": "99"})
    pq.write_table(pa.Table.from_pylist([], schema=schema), folder / "probes.parquet")


def _without_space(folder: Path) -> None:
    (folder / "space.yaml").unlink()


def _broken_space(folder: Path) -> None:
    (folder / "space.yaml").write_text("model: [")


def _cut_programs(folder: Path) -> None:
    (folder / "programs.parquet").write_bytes(b"PAR1 cut")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in half": (_cut, "Put a whole copy in its place, or sweep again"),
    "of a newer schema": (_newer, "from a newer raysweep"),
    "without its space": (_without_space, "space.yaml is missing"),
    "with a broken space": (_broken_space, "expected YAML"),
    "with cut programs": (_cut_programs, "programs.parquet"),
}


def _artifact(folder: Path) -> Path:
    artifact = Artifact.create(folder, SPACE)
    artifact.append(
        ProbeRecord(
            probe_id="p",
            sweep_id="s",
            session_id="t",
            source=Source.SIMULATED,
            model="qwen2.5-7b",
            step=StepSetting(),
            flavour="hf/h200",
            length_tokens=1024,
            state=ProbeState.COMPLETED,
            measurement=Measurement(
                peak_allocated_bytes=20 * 10**9,
                peak_reserved_bytes=21 * 10**9,
                step_seconds=(0.5,),
                tokens_per_second=2048.0,
            ),
            device_name="NVIDIA H200",
            device_memory_bytes=150_109_880_320,
            started_at=datetime(2026, 9, 1, tzinfo=UTC),
            probe_seconds=1.0,
        )
    )
    return folder


@pytest.mark.parametrize("name", ["choose", "project", "report", "verify"])
@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_artifact_is_refused(case: str, name: str, tmp_path: Path) -> None:
    folder = _artifact(tmp_path / "a")
    damage, wanted = DAMAGES[case]
    damage(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    _refused(_run(name, folder), wanted)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["choose", "project", "report", "verify"])
def test_a_missing_artifact_says_how_to_make_one(name: str, tmp_path: Path) -> None:
    _refused(_run(name, tmp_path / "none"), "raysweep sweep SPACE --out")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["choose", "A", "--margin", "120%"], "--margin"),
        (["choose", "A", "--lengths", "0"], "--lengths"),
        (["choose", "A", "--lengths", "1:2:3:4"], "--lengths"),
        (["choose", "A", "--data", "none.jsonl"], "none.jsonl"),
        (["choose", "A", "--prices", "none.csv"], "none.csv"),
        (["choose", "A", "--at-least", "0"], "--at-least"),
        (["project", "A"], "--data FILE"),
        (["project", "A", "--data", "D", "--scale", "x"], "--scale"),
        (["project", "A", "--data", "D", "--scale", "other=2"], "--scale"),
        (["project", "A", "--data", "D", "--scale", "data=-1"], "--scale"),
        (["project", "A", "--data", ""], "expected FILE or STAGE=FILE; '' came"),
        (["project", "A", "--data", "data="], "expected FILE or STAGE=FILE; 'data=' came"),
        (["project", "A", "--data", "D", "--scale", "data=1e300"], "from 1e-06 to 1,000,000"),
        (["project", "A", "--data", "D", "--scale", "data=2,other=3"], "--scale again for another stage"),
        (["project", "A", "--data", "D", "--scale", "data=2", "--scale", "data=3"], "'data' came twice"),
        (["project", "A", "--data", "D", "--flavour", "hf/h20"], "Did you mean"),
        (["report", "A", "--html", "none/x.html"], "--html"),
        (["verify", "A", "--within", "half"], "--within: expected a share from 0% to under 100%, such as 1%"),
    ],
)
def test_wrong_options_are_refused(words: list[str], wanted: str, tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a")
    data = tmp_path / "data.jsonl"
    data.write_text('{"tokens": 100}\n')
    named = {"A": str(artifact), "D": str(data)}
    result = _run(*(named.get(word, word) for word in words))
    assert result.exit_code == Exit.BAD_INPUT, result.output
    assert wanted in result.stderr
    assert "Traceback" not in result.stderr


def test_the_commands_answer_from_an_artifact_alone(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a")
    data = tmp_path / "data.jsonl"
    data.write_text('{"tokens": 100}\n' * 10)
    for words in (["choose", artifact], ["project", artifact, "--data", data], ["report", artifact]):
        text = _run(*words)
        assert text.exit_code == 0, text.output
        assert "simulated" in text.stdout
        found = json.loads(_run(*words, "--json").stdout)
        assert next(iter(found)) == "schema_version"
    assert (artifact / "report.html").read_text().startswith("<!doctype html>")
    assert Artifact.open(artifact).decision() is not None


def test_nothing_that_fits_is_exit_code_1(tmp_path: Path) -> None:
    result = _run("choose", _artifact(tmp_path / "a"), "--margin", "95%")
    assert result.exit_code == Exit.NEGATIVE
    assert "Nothing fits" in result.stdout


def test_nothing_to_verify_is_said(tmp_path: Path) -> None:
    result = _run("verify", _artifact(tmp_path / "a"))
    assert result.exit_code == 0
    assert "No measured probe" in result.stdout


def test_generation_cannot_be_simulated_and_is_refused_before_any_plan(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(
        "model: qwen2.5-7b\nmode: generate\nprompt_tokens: 64\nnew_tokens: 64\nflavours: [hf/h200]\n", encoding="utf-8"
    )
    result = _run("sweep", space, "--device", "simulated", "--out", tmp_path / "out")
    _refused(result, "mode generate", "--device cuda")
    assert not (tmp_path / "out").exists()


def test_lengths_with_one_colon_show_both_forms(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(SPACE, encoding="utf-8")
    _refused(_run("forecast", space, "--lengths", "10:20"), "FROM:TO:BY", "'10:20' came")
