"""What a run reaches: its peaks and when they come, its retries, and the allocation that failed, if one did."""

from __future__ import annotations

from dataclasses import dataclass

from raysweep.memory.program import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event of a run, for people."""

    phase: str
    layer: int | None
    op: str
    item: int
    """Index from 0, within its pass, of the item whose micro-step this is; for a micro-batch, of its first item."""
    pass_index: int = 0
    """Index from 0 of the ``Pass`` to which the item belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The allocation that could not be served."""

    moment: Moment
    requested_bytes: int
    loading: bool = False
    """True where the model itself could not be put in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a run reaches. Peaks count from the end of loading."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    components_bytes: dict[Category, int]
    """The allocated peak by what it is for: they add up to it exactly."""
    peak_moment: Moment | None
    """None where the peak is what loading left."""
    failure: Failure | None
    """None where the run finishes."""

    @property
    def runs(self) -> bool:
        """True where every allocation was served."""
        return self.failure is None
