"""Traced steps against steps that an H200 ran: see tests/golden/README.md."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from cost.catalogue import Catalogue
from raysweep.memory.conditions import Conditions
from raysweep.memory.outcome import Replay
from raysweep.memory.program import Program
from raysweep.memory.replay import Replayer
from raysweep.memory.roofline import optimizer_step_seconds
from raysweep.setting import StepSetting
from raysweep.step.config import load_config
from raysweep.trace.build import model_program

ROWS = [
    json.loads(line) for line in (Path(__file__).parents[2] / "golden" / "h200_steps.jsonl").read_text().splitlines()
]
FIRST_OF_THEIR_PROCESS = {0, 15}
"""Rows that no other row's cuBLAS workspaces came before."""

ALLOCATED_SHARE, RESERVED_SHARE = 0.001, 0.003
CPU_SECONDS = 8.0


def name_of(row: dict) -> str:
    step = row["step"]
    rank, batch = step["adapter"]["rank"], step["micro_batch"]
    return f"{row['model']}-r{rank}-b{batch}-{step['checkpointing']}-{step['loss']}-{row['length_tokens']}"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The replay's loops are compiled once a machine: not in the time of the first cell."""
    row = {**ROWS[0], "length_tokens": 2}
    config = load_config("llama-3.2-1b")
    config.num_hidden_layers = 1
    Replayer(model_program("warm-up", config, setting_of(row), [2])).steady(2, accumulation=1)


def setting_of(row: dict) -> StepSetting:
    adapter = row["step"]["adapter"]
    return StepSetting.from_dict({**row["step"], "adapter": {**adapter, "alpha": 2 * adapter["rank"]}})


@dataclass
class Cell:
    """A measured row, and what the forecast says of it."""

    row: dict
    program: Program
    replay: Replay
    cpu_seconds: float


def forecast(place: int, row: dict) -> Cell:
    started = time.process_time()
    program = model_program(row["model"], load_config(row["model"]), setting_of(row), [row["length_tokens"]])
    conditions = Conditions(warm_process=place not in FIRST_OF_THEIR_PROCESS)
    replay = Replayer(program).steady(row["length_tokens"], accumulation=1, conditions=conditions)
    return Cell(row, program, replay, time.process_time() - started)


@pytest.fixture(scope="module", params=[pytest.param(i, id=name_of(row)) for i, row in enumerate(ROWS)])
def cell(request) -> Cell:
    found = forecast(request.param, ROWS[request.param])
    # A machine under load is slower: only twice in a row is it too slow.
    return found if found.cpu_seconds < CPU_SECONDS else forecast(request.param, ROWS[request.param])


def test_the_allocated_peak_is_the_measured_one(cell):
    assert cell.replay.peak_allocated_bytes == pytest.approx(cell.row["peak_allocated_bytes"], rel=ALLOCATED_SHARE)


def test_the_reserved_peak_is_the_measured_one(cell):
    assert cell.replay.peak_reserved_bytes == pytest.approx(cell.row["peak_reserved_bytes"], rel=RESERVED_SHARE)


def test_the_components_add_up_to_the_peak(cell):
    assert sum(cell.replay.components_bytes.values()) == cell.replay.peak_allocated_bytes


def test_the_roofline_is_near_the_measured_time(cell):
    """Rough by nature: its efficiencies were fitted to these very rows."""
    measured = median(cell.row["step_seconds"][1:])
    seconds = optimizer_step_seconds(cell.program, Catalogue.load().device("h200"), cell.row["length_tokens"])
    assert seconds == pytest.approx(measured, rel=0.26)


def test_a_cell_takes_few_seconds(cell):
    assert cell.cpu_seconds < CPU_SECONDS
