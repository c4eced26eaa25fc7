"""The edge: one message on stderr, the right exit code, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from cost.errors import CostError
from raysweep.cli.app import COMMANDS, app
from raysweep.cli.edge import EdgeGroup, Exit
from raysweep.errors import ArtifactError, MachineError, NotForecastError, SpaceError


@click.group(cls=EdgeGroup)
def group() -> None:
    """A group for tests."""


@group.command("raise")
@click.argument("name")
@click.option("--debug", is_flag=True)
def _raise(name: str, debug: bool) -> None:
    errors: dict[str, BaseException] = {
        "space": SpaceError("s:1: expected x"),
        "artifact": ArtifactError("a: expected y"),
        "forecast": NotForecastError("unknown step"),
        "cost": CostError("no price"),
        "machine": MachineError("the GPU is gone"),
        "bug": ZeroDivisionError("division by zero"),
        "two lines": KeyError("for field 'a':\n  wrong type"),
        "interrupt": KeyboardInterrupt(),
        "interrupt with work": KeyboardInterrupt("3 probes are kept."),
        "abort": click.Abort(),
    }
    raise errors[name]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("space", 2, "Error: s:1: expected x\n"),
        ("artifact", 2, "Error: a: expected y\n"),
        ("forecast", 2, "Error: unknown step\n"),
        ("cost", 2, "Error: no price\n"),
        ("machine", 3, "Error: the GPU is gone\n"),
        ("bug", 3, "ZeroDivisionError: division by zero"),
        ("two lines", 3, "wrong type"),
        ("interrupt", 130, "Interrupted.\n"),
        ("interrupt with work", 130, "Interrupted. 3 probes are kept.\n"),
        ("abort", 130, "Interrupted.\n"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(name: str, code: int, message: str) -> None:
    result = CliRunner().invoke(group, ["raise", name])
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback() -> None:
    result = CliRunner().invoke(group, ["raise", "bug", "--debug"])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "words", [["forcast"], ["--nosuch"], ["prices", "shwo"], ["doctor", "--nosuch"], ["prices", "show"]]
)
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == Exit.BAD_INPUT
    assert "Usage:" in result.stderr


def test_a_misspelt_command_names_the_nearest() -> None:
    assert "Did you mean 'forecast'?" in CliRunner().invoke(app, ["forcast"]).stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_takes_json(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output
    assert "--debug" in result.output


@pytest.mark.parametrize("words", [["--help"], ["sweep", "--help"], ["prices"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    heavy = "{'torch', 'ray', 'transformers', 'numba', 'pyarrow', 'pandas', 'optuna'}"
    code = (
        "import sys\n"
        "from raysweep.cli.app import app\n"
        "try:\n"
        f"    app({words!r}, prog_name='raysweep')\n"
        "except SystemExit as left:\n"
        "    assert not left.code\n"
        f"print(sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


def test_help_answers_within_400_ms_of_cpu() -> None:
    before = time.perf_counter()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "raysweep.cli", "--help"], capture_output=True, check=True)
        best = min(best, time.perf_counter() - start)
    assert best < 0.4, f"{best:.2f} s; all three took {time.perf_counter() - before:.2f} s"


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m raysweep.cli prices | head -1"
    result = subprocess.run(["/bin/bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert result.stdout.startswith("Prices")
    assert result.stderr == ""


def test_doctor_answers_as_text_and_json() -> None:
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == 0
    assert "raysweep forecast quickstart" in text.stdout
    data = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert next(iter(data)) == "schema_version"
    assert data["missing_required"] == []
    assert data["libraries"]["torch"]


def test_prices_answer_as_text_and_json() -> None:
    runner = CliRunner()
    assert "hf/h200" in runner.invoke(app, ["prices"]).stdout
    data = json.loads(runner.invoke(app, ["prices", "list", "--provider", "hf", "--json"]).stdout)
    assert {f["provider"] for f in data["flavours"]} == {"hf"}
    shown = json.loads(runner.invoke(app, ["prices", "show", "hf/h200", "--json"]).stdout)["flavours"][0]
    assert shown["prices"][0]["source"]
    wrong = runner.invoke(app, ["prices", "show", "hf/h20"])
    assert wrong.exit_code == Exit.BAD_INPUT
    assert "hf/h200" in wrong.stderr
