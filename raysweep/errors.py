"""Every error that raysweep raises on purpose.

RaysweepError
├── InputError            bad input or usage: exit code 2
│   ├── SpaceError        a search space is malformed or names something unknown
│   ├── ArtifactError     an artifact is missing, cut, of a newer schema, or would be overwritten
│   └── DataError         token counts or texts cannot be read
├── NotForecastError      the forecast does not know this step: measure it with a probe (exit code 2)
└── MachineError          the machine or the cluster failed: exit code 3

``cost.errors.CostError`` stands beside this tree, since ``cost`` knows nothing of raysweep: it too is bad input.
"""

from __future__ import annotations

from cost.errors import nearest

__all__ = [
    "ArtifactError",
    "DataError",
    "InputError",
    "MachineError",
    "NotForecastError",
    "RaysweepError",
    "SpaceError",
    "nearest",
]


class RaysweepError(Exception):
    """Base of all errors whose message alone is meant for the user."""

    exit_code = 2


class InputError(RaysweepError):
    """What the user gave cannot be used: the message says what was expected and what came."""


class SpaceError(InputError):
    """A search space is malformed or names something unknown."""


class ArtifactError(InputError):
    """An artifact is missing, damaged, of a newer schema, or would be overwritten."""


class DataError(InputError):
    """A file of items cannot be read as token counts or texts."""


class NotForecastError(RaysweepError):
    """The forecast has no model of a part of this step; a probe can still measure it."""


class MachineError(RaysweepError):
    """The machine or the cluster failed, not the input."""

    exit_code = 3
