"""The ``step`` part of a search space: one value, or ``{search: [a, b]}``, for every field of a ``StepSetting``."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

from raysweep.errors import SpaceError
from raysweep.setting import (
    ALL_LINEAR,
    AdapterDtype,
    AdapterSetting,
    Attention,
    Checkpointing,
    Loss,
    Optimizer,
    StepSetting,
    Weights,
)
from raysweep.space.cursor import Cursor

Reader = Callable[[Cursor], Any]

MAX_STEPS = 10_000
"""More settings than this is a slip of the pen."""
MAX_RANK = 1_000_000
MAX_ITEMS = 100_000
MAX_MICRO_STEPS = 1_000_000
MAX_CHUNK_TOKENS = 100_000_000
MAX_COPIES = 1_000
"""Beyond these no step makes sense; within them no tensor's size overflows 64 bits."""


def _targets(at: Cursor) -> tuple[str, ...]:
    if not at.is_list():
        return (at.text("all-linear, a module's name, or a list of names"),)
    entries = at.items("all-linear, a module's name, or a list of names")
    names = tuple(entry.text("a module's name such as q_proj") for entry in entries)
    if len(set(names)) < len(names):
        at.refuse("each module's name once")
    if ALL_LINEAR in names and len(names) > 1:
        at.refuse(f"{ALL_LINEAR} alone, or names of modules")
    return names


def _trained_rank(at: Cursor) -> int:
    if at.node.value == 0 and not isinstance(at.node.value, bool):
        at.refuse(
            f"a rank from 1 to {MAX_RANK} in mode train, where the adapter is what trains",
            " Write 'mode: generate' to measure a model without an adapter.",
        )
    return at.integer(least=1, most=MAX_RANK)


_BITS = {"4": Weights.NF4, "8": Weights.INT8}


def _weights(at: Cursor) -> Weights:
    value = str(at.node.value).strip().lower()
    # The kinds that quantise have no name in common with the bits by which people know them.
    if match := re.fullmatch(r"(?:load[-_ ]in[-_ ])?(?:int|fp|bnb[-_ ]?)?([48])(?:[-_ ]?bits?)?", value):
        kind = _BITS[match[1]]
        if value != kind.value:
            at.refuse(f"one of {', '.join(Weights)}", f" Did you mean {kind.value!r}?")
    return at.choice(Weights)


def _max_grad_norm(at: Cursor) -> float | None:
    return None if at.is_null else at.number("null or a norm above 0", above=0)


_ADAPTER: dict[str, Reader] = {
    "rank": lambda at: at.integer(least=0, most=MAX_RANK),
    "alpha": lambda at: at.number("a number above 0", above=0),
    "dropout": lambda at: at.number("a share of 0 or more and below 1", least=0, below=1),
    "targets": _targets,
    "dtype": lambda at: at.choice(AdapterDtype),
    "resident_copies": lambda at: at.integer(least=0, most=MAX_COPIES),
}
_STEP: dict[str, Reader] = {
    "weights": _weights,
    "micro_batch": lambda at: at.integer(least=1, most=MAX_ITEMS, unit="items"),
    "accumulation": lambda at: at.integer(least=1, most=MAX_MICRO_STEPS, unit="micro-steps"),
    "checkpointing": lambda at: at.choice(Checkpointing),
    "loss": lambda at: at.choice(Loss),
    "loss_chunk_tokens": lambda at: at.integer(least=1, most=MAX_CHUNK_TOKENS, unit="tokens"),
    "attention": lambda at: at.choice(Attention),
    "optimizer": lambda at: at.choice(Optimizer),
    "autocast": lambda at: at.boolean(),
    "max_grad_norm": _max_grad_norm,
}
STEP_KEYS = tuple(field.name for field in dataclasses.fields(StepSetting))
ADAPTER_KEYS = tuple(field.name for field in dataclasses.fields(AdapterSetting))


def read_steps(at: Cursor | None, *, trains: bool = True) -> tuple[tuple[StepSetting, ...], tuple[str, ...]]:
    """Return every setting (the last searched value varies fastest) and the dotted names that are searched.

    Args:
        at: the ``step`` part; None where the space has none.
        trains: whether the steps train, and so need an adapter; rank 0 is none.
    """
    if at is None or at.is_null:
        return (StepSetting(),), ()
    values: dict[str, tuple[Any, ...]] = {}
    searched: list[str] = []
    adapter = _ADAPTER | ({"rank": _trained_rank} if trains else {})
    for key, part in at.keys(STEP_KEYS).items():
        if key == "adapter":
            for name, inner in part.keys(ADAPTER_KEYS).items():
                _read(inner, f"adapter.{name}", adapter[name], values, searched)
        else:
            _read(part, key, _STEP[key], values, searched)
    count = 1
    for candidates in values.values():
        count *= len(candidates)
    if count > MAX_STEPS:
        raise SpaceError(f"{at.where}: expected at most {MAX_STEPS} settings; the searched values make {count}.")
    settings = (_setting(dict(zip(values, chosen, strict=True))) for chosen in itertools.product(*values.values()))
    return tuple(settings), tuple(searched)


def _read(at: Cursor, name: str, read: Reader, values: dict[str, tuple[Any, ...]], searched: list[str]) -> None:
    if not at.has("search"):
        if at.is_list() and name != "adapter.targets":
            at.refuse("one value", " To search several, write {search: [a, b]}.")
        values[name] = (read(at),)
        return
    entries = at.keys(("search",))["search"].items("a list of values to search, such as {search: [gpu, cpu]}")
    candidates: list[Any] = []
    for entry in entries:
        value = read(entry)
        if value in candidates:
            entry.refuse("each searched value once")
        candidates.append(value)
    values[name] = tuple(candidates)
    searched.append(name)


def _setting(chosen: dict[str, Any]) -> StepSetting:
    adapter = {name.removeprefix("adapter."): v for name, v in chosen.items() if name.startswith("adapter.")}
    plain = {name: v for name, v in chosen.items() if not name.startswith("adapter.")}
    return StepSetting(adapter=AdapterSetting(**adapter), **plain)
