"""Short names for the steps of a space: what sets each apart from the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysweep.setting import StepSetting


def step_labels(steps: Sequence[StepSetting]) -> dict[StepSetting, str]:
    """Return a short name for each step: what sets it apart from the others."""
    distinct = tuple(dict.fromkeys(steps))
    labels: dict[StepSetting, str] = {}
    for step in distinct:
        fields = step.differing(tuple(other for other in distinct if other != step))
        labels[step] = ", ".join(_named(name, value) for name, value in fields.items())
    return {step: label or "the one step" for step, label in labels.items()}


def _named(name: str, value: Any) -> str:
    if name == "adapter.rank" and value == 0:
        return "no adapter"
    return f"{name.removeprefix('adapter.')} {_value(value)}"


def _value(value: Any) -> str:
    return "+".join(str(v) for v in value) if isinstance(value, tuple | list) else str(value)
