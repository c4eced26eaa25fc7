"""A run under way against its projection: how far off it was, and the projection that the run's own times give."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost.evidence import Evidence, Range
from cost.project import Projection, project
from cost.throughput import HOLD_SHARE, TimeModel, Timing, Work
from cost.time_fit import fit
from raysweep.decision.model import Decision
from raysweep.errors import DataError, InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What a run has done so far. One of the two is known."""

    timings: tuple[Timing, ...] = ()
    """One a micro-step, in order."""
    optimizer_steps: int | None = None
    seconds: float | None = None
    """Of those optimizer steps in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The first projection held against the run, and the one that follows."""

    logged: str
    """What was logged, for people."""
    expected_seconds: float
    """What the first projection gave the logged part."""
    seen_seconds: float
    projection: Projection
    """Of the whole run, from the run's own times."""

    @property
    def off_share(self) -> float:
        """Seen over expected, less one: positive where the run is slower than projected."""
        return self.seen_seconds / self.expected_seconds - 1


def read_log(path: Path) -> RunLog:
    """Read a Hugging Face Trainer's ``trainer_state.json``, or JSONL of ``{"tokens": n, "seconds": s}`` a micro-step.

    Raises:
        DataError: it is neither, or holds no time.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a trainer_state.json or a JSONL of tokens and seconds; {error}.") from None
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):  # lines, or brackets without end
        return _jsonl(path, text)
    return _trainer_state(path, state) if isinstance(state, dict) and "log_history" in state else _jsonl(path, text)


def _trainer_state(path: Path, state: dict[str, Any]) -> RunLog:
    history = state["log_history"] if isinstance(state["log_history"], list) else []
    # The Trainer writes wall time only in its last entry (transformers Trainer._inner_training_loop, speed_metrics).
    ended = [entry for entry in history if isinstance(entry, dict) and "train_runtime" in entry]
    if not ended:
        raise DataError(
            f"{path}: expected an entry with train_runtime, which the Trainer writes when it ends; there is none. "
            'Log {"tokens": n, "seconds": s} a micro-step as JSONL instead while it runs.'
        )
    last: dict[str, Any] = ended[-1]
    seconds: Any = last["train_runtime"]
    steps: Any = last.get("step", state.get("global_step"))
    if not _positive(seconds) or not _positive(steps):
        raise DataError(f"{path}: expected train_runtime and step above 0; {seconds!r} and {steps!r} came.")
    return RunLog(optimizer_steps=int(steps), seconds=float(seconds))


def _jsonl(path: Path, text: str) -> RunLog:
    timings: list[Timing] = []
    met: set[int] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            tokens, seconds = row["tokens"], row["seconds"]
        except (ValueError, KeyError, TypeError, RecursionError):
            tokens = seconds = None
        if not isinstance(tokens, int) or not _positive(tokens) or not _positive(seconds):
            raise DataError(
                f'{path}:{number}: expected {{"tokens": n, "seconds": s}}, both above 0; {line[:60]!r} came.'
            )
        timings.append(Timing(work=Work.of([tokens], new_lengths=0 if tokens in met else 1), seconds=float(seconds)))
        met.add(tokens)
    if not timings:
        raise DataError(f"{path}: expected one micro-step a line with its tokens and seconds; the file is empty.")
    return RunLog(timings=tuple(timings))


def calibrate(decision: Decision, log: RunLog) -> Calibration:
    """Hold a run's log against the projection of the decision's chosen cell, which it is taken to run on.

    Raises:
        InputError: nothing was chosen, or its time is not known: there is no projection to hold it against.
    """
    chosen = decision.chosen
    if chosen is None or chosen.time_model is None or chosen.projection is None or decision.plan is None:
        raise InputError(
            "--from-log: expected a projection to hold the run against; nothing that fits has a known time."
        )
    first = chosen.time_model
    if log.timings:
        model = _refitted(log.timings, first)
        expected = sum(first.expected_seconds(timing.work) for timing in log.timings)
        seen = sum(timing.seconds for timing in log.timings)
        logged = f"{len(log.timings):,} micro-steps"
    else:
        steps, seen = log.optimizer_steps or 0, log.seconds or 0.0
        expected = chosen.projection.training_seconds.expected * steps / chosen.projection.work.optimizer_steps
        model = _scaled(first, seen / expected)
        logged = f"{steps:,} optimizer steps"
    return Calibration(
        logged=logged,
        expected_seconds=expected,
        seen_seconds=seen,
        projection=project(decision.plan, model, decision.terms),
    )


def _refitted(timings: tuple[Timing, ...], first: TimeModel) -> TimeModel:
    """Fit the run's own times; optimizer steps are not in them, so their time is kept."""
    return fit(timings, evidence=Evidence.MEASURED, optimizer_step_seconds=first.optimizer_step_seconds, hold_share=0.0)


def _scaled(first: TimeModel, factor: float) -> TimeModel:
    """Totals tell one number: everything is slower or faster by it, and as sure as one machine held once."""
    return replace(
        first,
        floor_seconds=first.floor_seconds * factor,
        linear_seconds_per_token=first.linear_seconds_per_token * factor,
        quadratic_seconds_per_token2=first.quadratic_seconds_per_token2 * factor,
        new_length_seconds=first.new_length_seconds * factor,
        optimizer_step_seconds=first.optimizer_step_seconds * factor,
        evidence=Evidence.MEASURED,
        covariance=(),
        degrees_of_freedom=0,
        noise_share=0.0,
        scale_share=HOLD_SHARE,
    )


def remaining_seconds(calibration: Calibration) -> Range:
    """Return what the run still takes, by its own times."""
    whole = calibration.projection.training_seconds
    done = calibration.seen_seconds
    return Range(
        expected=max(whole.expected - done, 0.0), low=max(whole.low - done, 0.0), high=max(whole.high - done, 0.0)
    )


def _positive(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type, operator]  # it is a number here
