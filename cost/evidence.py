"""Where a number comes from, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from cost.errors import CostError


class Evidence(StrEnum):
    """Where a number comes from; whatever shows one shows this beside it."""

    MEASURED = "measured"
    """Seen on a device of that flavour."""
    SIMULATED = "simulated"
    """Played through a simulated device."""
    FORECAST = "forecast"
    """Computed from the step's operations and the device's data sheet; nothing of it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """An expected value between two bounds that hold the true one nine times in ten (``RANGE_SHARE``)."""

    expected: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse bounds out of order.

        Raises:
            CostError: They are.
        """
        if not self.low <= self.expected <= self.high:
            raise CostError(f"A range must be in order: low {self.low}, expected {self.expected}, high {self.high}.")

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return a range without width."""
        return cls(expected=value, low=value, high=value)

    def plus(self, value: float) -> Range:
        """Return the range moved by a value that is certain."""
        return Range(expected=self.expected + value, low=self.low + value, high=self.high + value)

    def times(self, factor: float) -> Range:
        """Return the range scaled by a factor of 0 or more."""
        return Range(expected=self.expected * factor, low=self.low * factor, high=self.high * factor)


RANGE_SHARE = 0.90
"""Share of projections whose true value a range is meant to hold."""
