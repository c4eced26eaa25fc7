"""Times of a run from a Hugging Face Trainer's files, as transformers 5 writes them.

Its log has wall time in two places: in the last entry, once the run has ended (``Trainer._finalize_training``), and in
every entry where the Trainer counts tokens (``include_num_input_tokens_seen``: ``Trainer.log``). ``train_runtime`` is
of the present process there: a run that was resumed starts again from 0. Where neither is, checkpoint folders tell
when the run was at which step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cost.stretches import Stretch
from raysweep.decision.run_log import RunLog, is_positive
from raysweep.errors import DataError
from raysweep.paths import is_file

STATE_NAME = "trainer_state.json"
LEAST_CHECKPOINTS = 3
"""They have two stretches between them, which is the least that shows how far stretches differ."""
_INSTEAD = (
    f"Give the Trainer's output folder once it has {LEAST_CHECKPOINTS} checkpoints (their modification times tell), "
    "set include_num_input_tokens_seen, which logs wall time with every entry, "
    'or log {"tokens": n, "seconds": s} a micro-step as JSONL.'
)
_LOSS_TOLERANCE = 0.01
"""Losses are logged with four digits by some versions."""

State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    """When a run was at which step."""

    name: str
    step: int
    written_at: float
    """Modification time of its state, seconds since 1970."""
    tokens: float | None
    state: State


def read_output(folder: Path) -> RunLog:
    """Read a Trainer's output folder, or one of its checkpoint folders.

    Raises:
        DataError: it has neither wall times in a log nor three checkpoints.
    """
    if folder.name.startswith("checkpoint-") and is_file(folder / STATE_NAME):
        folder = folder.parent
    checkpoints, notes = _checkpoints(folder)
    states = [checkpoint.state for checkpoint in checkpoints]
    own = folder / STATE_NAME
    if is_file(own) and (state := _state(own)) is not None:
        states.insert(0, state)  # of equal steps, the one that was written when the run ended
    latest = max(states, key=_step, default=None)
    return _read(folder, latest, checkpoints, notes)


def read_state(path: Path, state: State) -> RunLog:
    """Read one ``trainer_state.json``; the checkpoints beside it help where it tells no time.

    Raises:
        DataError: neither tells how long the run took.
    """
    in_checkpoint = path.absolute().parent.name.startswith("checkpoint-")
    folder = path.absolute().parent.parent if in_checkpoint else path.absolute().parent
    checkpoints, notes = _checkpoints(folder)
    if in_checkpoint:  # a later one knows more of the same run
        state = max([state, *(checkpoint.state for checkpoint in checkpoints)], key=_step)
    return _read(path, state, checkpoints, notes)


def _read(path: Path, state: State | None, checkpoints: Sequence[_Checkpoint], notes: list[str]) -> RunLog:
    """Take the log's own wall times where it has any, else the checkpoints' times."""
    enough = len(checkpoints) >= LEAST_CHECKPOINTS
    if state is not None and (entries := _timed_entries(state)):
        try:
            return _of_history(path, state, entries)
        except DataError:
            if not enough:
                raise
    if not enough:
        has = "no checkpoint" if not checkpoints else f"{len(checkpoints)} checkpoint" + "s" * (len(checkpoints) > 1)
        raise DataError(
            f"{path}: expected times of the run: an entry with train_runtime, or {LEAST_CHECKPOINTS} checkpoints with "
            f"a {STATE_NAME} each; there is {has} and no such entry. {_INSTEAD}"
        )
    return _of_checkpoints(checkpoints, notes)


def _checkpoints(folder: Path) -> tuple[list[_Checkpoint], list[str]]:
    """Return the checkpoints of an output folder by their steps, and what to mind."""
    found: list[_Checkpoint] = []
    notes: list[str] = []
    for file in sorted(folder.glob(f"checkpoint-*/{STATE_NAME}")):
        if not file.parent.name.removeprefix("checkpoint-").isdecimal():  # someone's copy
            continue
        state = _state(file)
        if state is None or not is_positive(state.get("global_step")):
            notes.append(f"{file.parent.name} is left out: its {STATE_NAME} cannot be read.")
            continue
        found.append(
            _Checkpoint(
                name=file.parent.name,
                step=_step(state),
                written_at=file.stat().st_mtime,
                tokens=_tokens(state),
                state=state,
            )
        )
    return sorted(found, key=lambda checkpoint: checkpoint.step), notes


def _of_checkpoints(checkpoints: Sequence[_Checkpoint], notes: list[str]) -> RunLog:
    stretches: list[Stretch] = []
    for a, b in pairwise(checkpoints):
        if b.step == a.step or b.written_at - a.written_at < 1e-3:
            raise DataError(
                f"{b.name}: expected checkpoints of one run, each written after those of fewer steps; it is not newer "
                f"than {a.name}. Where the run went back to an earlier checkpoint, move older ones of later steps "
                "away; copies must keep modification times (cp -p, rsync -t)."
            )
        tokens = None
        if a.tokens is not None and b.tokens is not None and b.tokens > a.tokens:
            tokens = b.tokens - a.tokens
        stretches.append(
            Stretch(first_step=a.step, last_step=b.step, seconds=b.written_at - a.written_at, tokens=tokens)
        )
    first, last = checkpoints[0], checkpoints[-1]
    return RunLog(
        logged=f"{last.step - first.step:,} optimizer steps between {len(checkpoints)} checkpoints, by the times at "
        "which they were written: saving them, evaluations and all else between is in it",
        stretches=tuple(stretches),
        done_steps=last.step,
        planned_steps=_planned(last.state),
        may_stand_still=True,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of a log with wall time."""

    step: int
    seconds: float
    """Since its process began to train."""
    tokens: float | None
    """Seen in all."""
    session_tokens: float | None
    """Seen by its process alone; None where the entry does not tell, as the one that ends a run does not."""
    mean_loss: float | None
    """Of the steps of its process over all steps of the run; in the entry that ends it."""
    ends: bool
    """Whether training ended with it: what follows was begun anew, and its seconds with it."""

    @property
    def before_tokens(self) -> float | None:
        """Seen before its process began."""
        if self.tokens is None or self.session_tokens is None:
            return None
        return max(self.tokens - self.session_tokens, 0.0)


def _timed_entries(state: State) -> list[State]:
    history = state["log_history"] if isinstance(state.get("log_history"), list) else []
    return [entry for entry in history if isinstance(entry, dict) and "train_runtime" in entry]


def _of_history(path: Path, state: State, timed: Sequence[State]) -> RunLog:
    entries = [_entry(path, state, entry) for entry in timed]
    losses = _losses(state)
    stretches: list[Stretch] = []
    notes: list[str] = []
    # Where the present process was last seen. One that follows an entry which ends a run began there.
    known = _begin(0, 0.0)
    step = 0
    for entry in entries:
        if entry.step < step:
            raise DataError(
                f"{path}: expected the log of one run; its steps go back from {step:,} to {entry.step:,}, as where "
                "runs of several stages were put together. Give the log of one of them."
            )
        if not _continues(known, entry, losses):
            notes.append(
                f"Steps {step:,} to {entry.step:,} are left out: the run was resumed among them, and its log does "
                "not say where."
            )
        elif entry.step > known.step:
            stretches.append(_between(known, entry))
        step = entry.step
        known = _begin(step, entry.tokens) if entry.ends else entry
    if not stretches:
        raise DataError(
            f"{path}: expected train_runtime of the whole run; it was resumed, and {entries[-1].seconds:,.0f} s are of "
            f"what came after alone, which the log does not tell apart. {_INSTEAD}"
        )
    timed_steps = sum(stretch.last_step - stretch.first_step for stretch in stretches)
    return RunLog(
        logged=f"{timed_steps:,.0f} optimizer steps, by the Trainer's train_runtime: evaluations and checkpoints "
        "are in it",
        stretches=tuple(stretches),
        done_steps=max(_step(state), step),
        planned_steps=_planned(state),
        notes=tuple(notes),
    )


def _begin(step: int, tokens: float | None) -> _Entry:
    """Return where a process begins to train."""
    return _Entry(step=step, seconds=0.0, tokens=tokens, session_tokens=0.0, mean_loss=None, ends=False)


def _entry(path: Path, state: State, entry: State) -> _Entry:
    seconds: Any = entry["train_runtime"]
    step: Any = entry.get("step", state.get("global_step"))
    if not is_positive(seconds) or not is_positive(step):
        raise DataError(f"{path}: expected train_runtime and step above 0; {seconds!r} and {step!r} came.")
    rate, loss = entry.get("train_tokens_per_second"), entry.get("train_loss")
    tokens = _counted(entry)
    return _Entry(
        step=int(step),
        seconds=float(seconds),
        tokens=tokens,
        session_tokens=rate * seconds if is_positive(rate) and tokens is not None else None,
        mean_loss=loss if is_positive(loss) else None,
        ends="train_loss" in entry,
    )


def _continues(known: _Entry, entry: _Entry, losses: Sequence[tuple[int, int, float]]) -> bool:
    """Whether an entry is of the process that the last known one is of."""
    if entry.seconds <= known.seconds:
        return False
    if entry.before_tokens is not None and known.before_tokens is not None:
        # The rate has three digits after the point, the runtime four.
        return abs(entry.before_tokens - known.before_tokens) <= 1 + 1e-3 * (entry.session_tokens or 0.0)
    if entry.mean_loss is None or known.seconds > 0:
        return True
    # train_loss is the sum of the losses that this process logged, over all steps of the run (_finalize_training).
    logged = sum(
        (last - max(first, known.step)) * loss for first, last, loss in losses if known.step < last <= entry.step
    )
    return entry.mean_loss * entry.step >= (1 - _LOSS_TOLERANCE) * logged


def _between(known: _Entry, entry: _Entry) -> Stretch:
    tokens = None
    if entry.tokens is not None and known.tokens is not None and entry.tokens > known.tokens:
        tokens = entry.tokens - known.tokens
    return Stretch(first_step=known.step, last_step=entry.step, seconds=entry.seconds - known.seconds, tokens=tokens)


def _losses(state: State) -> list[tuple[int, int, float]]:
    """Return the mean loss of each logged interval, from a step to a step."""
    found: list[tuple[int, int, float]] = []
    step = 0
    for entry in state["log_history"]:
        if isinstance(entry, dict) and is_positive(entry.get("loss")) and is_positive(entry.get("step")):
            found.append((step, int(entry["step"]), float(entry["loss"])))
            step = int(entry["step"])
    return found


def _state(file: Path) -> State | None:
    """Return a Trainer's state, or None for a file that is half written or none."""
    with suppress(OSError, ValueError, RecursionError):
        state = json.loads(file.read_text(encoding="utf-8"))
        return state if isinstance(state, dict) and "log_history" in state else None
    return None


def _step(state: State) -> int:
    step = state.get("global_step")
    return int(step) if is_positive(step) else 0


def _planned(state: State) -> int | None:
    steps = state.get("max_steps")
    return int(steps) if is_positive(steps) else None


def _tokens(state: State) -> float | None:
    """Return the tokens seen by the state's step: its own count, else TRL's where the last entry is of that step.

    TRL's begins again when a run is resumed: then it is not taken.
    """
    if is_positive(state.get("num_input_tokens_seen")):
        return float(state["num_input_tokens_seen"])
    history = state["log_history"] if isinstance(state["log_history"], list) else []
    counts = [(entry.get("step"), count) for entry in history if isinstance(entry, dict) and (count := _counted(entry))]
    if not counts or counts[-1][0] != state.get("global_step"):
        return None
    falls = any(b < a for (_, a), (_, b) in pairwise(counts))
    return None if falls else counts[-1][1]


def _counted(entry: State) -> float | None:
    """Return an entry's count of tokens so far: the Trainer's, else ``num_tokens`` of TRL's SFTTrainer."""
    for key in ("num_input_tokens_seen", "num_tokens"):
        if is_positive(entry.get(key)):
            return float(entry[key])
    return None
