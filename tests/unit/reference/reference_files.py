"""Reads ``artifacts/reference`` wherever the tests run from."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from raysweep.memory.program import Program
from raysweep.records import ProbeRecord
from raysweep.setting import StepSetting
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.trace.build import model_program

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "artifacts" / "reference"


@cache
def records_of(folder: str) -> tuple[ProbeRecord, ...]:
    """Return an artifact's probes."""
    return Artifact.open(REFERENCE / folder).records()


@cache
def varied_runs() -> dict[str, dict[str, Any]]:
    """Return the measured runs of items of varied length, by name."""
    lines = (REFERENCE / "varied-runs.jsonl").read_text(encoding="utf-8").splitlines()
    return {run["plan"]["name"]: run for run in map(json.loads, lines)}


def program_of(model: str, step: StepSetting, lengths: list[int], *, padded: bool = False) -> Program:
    """Trace a step of a model, whose shape may lie in the repository."""
    path = ROOT / model
    config = load_config(str(path) if path.exists() else model)
    return model_program(model, config, step, lengths, padded=padded)
