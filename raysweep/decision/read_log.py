"""Reads the log of a run under way, whichever of the known kinds it is."""

from __future__ import annotations

import json
from pathlib import Path

from raysweep.decision.run_log import MicroStep, RunLog, is_positive
from raysweep.decision.trainer_log import read_output, read_state
from raysweep.errors import DataError
from raysweep.paths import is_folder

LEAST_MICRO_STEPS = 3
"""The first one warms up, and one other shows nothing of how far they differ."""

MOST_TOKENS = 1_000_000_000
LEAST_SECONDS = 1e-6
MOST_SECONDS = 1_000_000
"""No micro-step takes eleven days: these are milliseconds, or times of day."""


def read_log(path: Path) -> RunLog:
    """Read the log of a run under way.

    Args:
        path: A Hugging Face Trainer's output folder or one ``trainer_state.json``, or JSONL of
            ``{"tokens": n, "seconds": s}`` a micro-step.

    Raises:
        DataError: it is none of these, or does not tell how long the run took.
    """
    if is_folder(path):
        return read_output(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: expected a Trainer's output folder, a trainer_state.json or a JSONL of tokens and seconds; "
            f"{error}."
        ) from None
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):  # lines, or brackets without end
        return _jsonl(path, text)
    return read_state(path, state) if isinstance(state, dict) and "log_history" in state else _jsonl(path, text)


def _jsonl(path: Path, text: str) -> RunLog:
    steps: list[MicroStep] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            tokens, seconds = row["tokens"], row["seconds"]
        except (ValueError, KeyError, TypeError, RecursionError):
            tokens = seconds = None
        if not is_positive(tokens) or tokens != int(tokens) or not is_positive(seconds):
            raise DataError(
                f'{path}:{number}: expected {{"tokens": n, "seconds": s}}, both above 0; {line[:60]!r} came.'
            )
        if tokens > MOST_TOKENS or not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            raise DataError(
                f"{path}:{number}: expected one micro-step of at most {MOST_TOKENS:,} tokens that took "
                f"{LEAST_SECONDS:g} to {MOST_SECONDS:,} seconds; {line[:60]!r} came. Are the seconds in seconds?"
            )
        steps.append(MicroStep(tokens=int(tokens), seconds=float(seconds)))
    if not steps:
        raise DataError(f"{path}: expected one micro-step a line with its tokens and seconds; the file is empty.")
    if len(steps) < LEAST_MICRO_STEPS:
        raise DataError(
            f"{path}: expected {LEAST_MICRO_STEPS} micro-steps or more, since the first one warms up; "
            f"{len(steps)} came. Try again when the run has done more."
        )
    return RunLog(logged=f"{len(steps):,} micro-steps, the first of which is left out", micro_steps=tuple(steps))
