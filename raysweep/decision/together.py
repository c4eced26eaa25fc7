"""Whether artifacts belong together, and in what they differ: one space and one run have to stand for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from raysweep.data.items import Items
from raysweep.errors import ArtifactError
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace

_RUN_KEYS = {
    "pad_to_multiple_tokens": "pad_to_multiple",
    "slurm_time_margin_share": "slurm_time_margin",
    "pauses": "evaluation or checkpoint",
}
"""Of the run's fields, those that a space writes under another name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one artifact contributes."""

    uri: str
    space: SearchSpace
    items: Mapping[str, Items]


def check_together(parts: Sequence[Part]) -> None:
    """Refuse artifacts that cannot be decided about as one.

    Raises:
        ArtifactError: two are of different models, modes or allocators, or count money in different currencies.
    """
    first = parts[0]
    for other in parts[1:]:
        for name, (ours, theirs) in _shared(first.space, other.space).items():
            if ours != theirs:
                raise ArtifactError(
                    f"{other.uri}: expected an artifact of the same {name} as {first.uri}, {ours}; {theirs} came. "
                    "Choose from artifacts of one model and mode."
                )
        ours, theirs = first.space.run.currency, other.space.run.currency
        if ours != theirs:
            raise ArtifactError(
                f"{other.uri}: expected the run.currency of {first.uri}, {ours}; {theirs} came, and nothing is "
                f"converted. Choose from each alone, or write one currency, and prices in it, in both space.yaml."
            )


def differences(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return in what the later artifacts' runs and steps differ from the one whose run is taken, in whole sentences."""
    if len(parts) < 2:
        return ()
    first = parts[0]
    data = next((part for part in parts if part.items), first)
    found: list[str] = []
    others = [part.uri for part in parts if part.items and part is not data and _other_data(part, data)]
    if others or (data is not first and data.items):
        than = f"; {' and '.join(others)} {'have' if len(others) > 1 else 'has'} other data" if others else ""
        found.append(f"The run's data are those of {data.uri} ({', '.join(data.items)}){than}.")
    for other in parts[1:]:
        names = _run_differences(first.space, other.space)
        if names:
            found.append(f"{other.uri} differs from {first.uri} in {', '.join(names)}: what {first.uri} says is taken.")
        steps = _step_differences(first.space, other.space)
        if steps:
            found.append(
                f"{other.uri} holds other steps than {first.uri} ({', '.join(steps)}): all are compared by their "
                "cost, and they may not train alike."
            )
    if found:
        found.append("Another artifact's run is taken where that artifact is named first.")
    return tuple(found)


def _shared(one: SearchSpace, other: SearchSpace) -> dict[str, tuple[object, object]]:
    names = ("model", "mode", "prompt_tokens", "new_tokens", "allocator")
    return {name: (getattr(one, name), getattr(other, name)) for name in names}


def _other_data(one: Part, other: Part) -> bool:
    if list(one.items) != list(other.items):
        return True
    return any(not _same(one.items[name], other.items[name]) for name in one.items)


def _same(one: Items, other: Items) -> bool:
    if not np.array_equal(one.tokens, other.tokens):
        return False
    if one.loss_tokens is None or other.loss_tokens is None:
        return one.loss_tokens is other.loss_tokens
    return np.array_equal(one.loss_tokens, other.loss_tokens)


def _run_differences(one: SearchSpace, other: SearchSpace) -> list[str]:
    """Return the names, as a space writes them, of all but the data in which two runs differ."""
    found = [] if one.margin_share == other.margin_share else ["margin"]
    fields = dataclasses.fields(one.run)
    found += [
        f"run.{_RUN_KEYS.get(field.name, field.name)}"
        for field in fields
        if getattr(one.run, field.name) != getattr(other.run, field.name)
    ]
    ours, theirs = ([(s.name, s.epochs, s.loss_share) for s in space.stages()] for space in (one, other))
    # Stages of other names are other data, which is said by itself.
    if ours != theirs and [name for name, *_ in ours] == [name for name, *_ in theirs]:
        found.append("data (epochs or loss_share)")
    prices = {choice.name: choice.price_usd_per_hour for choice in one.flavours}
    for choice in other.flavours:
        if choice.name in prices and prices[choice.name] != choice.price_usd_per_hour:
            found.append(f"the price of {choice.name}")
    return found


def _step_differences(one: SearchSpace, other: SearchSpace) -> list[str]:
    """Return the settings whose values differ; those that both search over are compared on purpose."""
    ours, theirs = (_values(space.steps) for space in (one, other))
    names = [name for name in ours if ours[name] != theirs.get(name)]
    searched = set(one.searched) | set(other.searched)
    return [name for name in names if name not in searched]


def _values(steps: Sequence[StepSetting]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for step in steps:
        for name, value in _flat(step.to_dict()).items():
            found.setdefault(name, set()).add(repr(value))
    return found


def _flat(data: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
