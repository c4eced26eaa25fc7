"""The main job from a shell, on any machine: forecast, simulated sweep, choose, project, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
SPACE = """
model: ./tiny
step: {accumulation: 2, adapter: {rank: 8}}
lengths: [512, 4096]
flavours:
  - {name: lab/small, gpu_id: l4, memory_bytes: 2400000000, price_usd_per_hour: 0.5}
  - {name: lab/large, gpu_id: l40s, memory_bytes: 20000000000, price_usd_per_hour: 2}
data: {items: tokens.jsonl, epochs: 2}
"""


class Shell:
    """Runs the program in a folder of its own."""

    def __init__(self, folder: Path, ray_folder: str) -> None:
        self.folder = folder
        self._environment = {**os.environ, "RAY_TMPDIR": ray_folder, "RAYSWEEP_CACHE": str(folder / "cache")}
        # The one place where traces run side by side, as they do for people.
        self._environment["RAYSWEEP_JOBS"] = "2"

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "raysweep.cli", *words]
        result = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.run(*words, "--json", code=code).stdout)
        assert next(iter(data)) == "schema_version"
        return data


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("job")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "space.yaml").write_text(SPACE)
    (folder / "tokens.jsonl").write_text('{"tokens": 300}\n{"tokens": 4000}\n' * 20)
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="rs", dir="/tmp") as ray_folder:
        yield Shell(folder, ray_folder)


@pytest.fixture(scope="module")
def sweep(shell: Shell) -> dict[str, Any]:
    return shell.json("sweep", "space.yaml", "--device", "simulated", "--out", "out")


def test_a_simulated_sweep_prunes_what_does_not_fit(sweep: dict[str, Any]) -> None:
    ended = {(p["flavour"], p["length_tokens"]): (p["state"], p["reason"]) for p in sweep["probes"]}
    assert ended == {
        ("lab/small", 512): ("completed", None),
        ("lab/small", 4096): ("pruned", "oom"),
        ("lab/large", 512): ("completed", None),
        ("lab/large", 4096): ("completed", None),
    }
    assert {p["source"] for p in sweep["probes"]} == {"simulated"}
    assert sweep["spent_usd"] == 0


def test_the_artifact_holds_everything_that_later_questions_need(shell: Shell, sweep: dict[str, Any]) -> None:
    names = {file.name for file in (shell.folder / "out").iterdir()}
    assert {"probes.parquet", "programs.parquet", "items.parquet", "space.yaml"} <= names
    assert (shell.folder / "out" / "space.yaml").read_text() == SPACE


def test_the_choice_follows_from_the_probes(shell: Shell, sweep: dict[str, Any]) -> None:
    chosen = shell.json("choose", "out")["chosen"]
    assert (chosen["flavour"], chosen["length_tokens"], chosen["verdict"]) == ("lab/large", 4096, "fits")
    assert chosen["time_source"] == "simulated"


def test_other_lengths_and_margins_are_answered_from_the_programs(shell: Shell, sweep: dict[str, Any]) -> None:
    data = shell.json("choose", "out", "--lengths", "1024", "--margin", "0%")
    assert data["chosen"]["memory_source"] == "forecast"
    assert data["chosen"]["length_tokens"] == 1024


def test_the_forecast_agrees_with_the_simulated_probes(shell: Shell, sweep: dict[str, Any]) -> None:
    rows = shell.json("forecast", "space.yaml")["rows"]
    verdicts = {(name, row["length_tokens"]): fit["verdict"] for row in rows for name, fit in row["fit"].items()}
    assert verdicts["lab/small", 4096] == "no"
    assert verdicts["lab/large", 4096] == "fits"
    allocated = {row["length_tokens"]: row["peak_allocated_bytes"] for row in rows}
    probes = {p["length_tokens"]: p for p in sweep["probes"] if p["flavour"] == "lab/large"}
    assert {n: p["peak_allocated_bytes"] for n, p in probes.items()} == allocated


def test_the_projection_is_of_the_spaces_own_data(shell: Shell, sweep: dict[str, Any]) -> None:
    data = shell.json("project", "out")
    assert data["chosen"]["stages"][0]["tokens"] == 2 * 20 * 4300
    assert data["chosen"]["cost_usd"]["low"] < data["chosen"]["cost_usd"]["high"]


def test_the_report_is_one_page(shell: Shell, sweep: dict[str, Any]) -> None:
    shell.run("report", "out")
    assert "lab/large" in (shell.folder / "out" / "report.html").read_text()


def test_a_finished_sweep_resumed_buys_nothing(shell: Shell, sweep: dict[str, Any]) -> None:
    again = shell.json("sweep", "space.yaml", "--device", "simulated", "--out", "out", "--resume")
    assert again["probes"] == []
    text = shell.run("sweep", "space.yaml", "--device", "simulated", "--out", "out", "--resume").stdout
    assert "Nothing was left to do: the artifact already held every probe" in " ".join(text.split())


def test_a_sweep_into_the_same_folder_is_refused(shell: Shell, sweep: dict[str, Any]) -> None:
    before = (shell.folder / "out" / "probes.parquet").read_bytes()
    result = shell.run("sweep", "space.yaml", "--device", "simulated", "--out", "out", code=2)
    assert "--resume" in result.stderr
    assert (shell.folder / "out" / "probes.parquet").read_bytes() == before


def test_a_misspelt_target_module_names_the_nearest(shell: Shell) -> None:
    (shell.folder / "bad.yaml").write_text(SPACE.replace("rank: 8", "rank: 8, targets: [q_porj]"))
    result = shell.run("forecast", "bad.yaml", code=2)
    assert "q_proj" in result.stderr
