"""What is known of one way to run a fine-tune, and why it was not chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cost.evidence import Evidence, Range
from cost.units import SECONDS_PER_HOUR
from cost.verdict import Fit, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One flavour, step and length limit: whether it fits, and what the whole run would take on it."""

    flavour: str
    step: str
    """What tells this step from the others, for people; the same step has the same label everywhere."""
    length_tokens: int
    fit: Fit | None
    """None where neither a forecast nor a probe says."""
    memory_evidence: Evidence | None = None
    cost: Range | None = None
    """Of the whole run; None where its time or its price is not known."""
    hours: Range | None = None
    """Wall time of the whole run; None where nothing tells its time."""
    time_evidence: Evidence | None = None
    no_time: str | None = None
    """Why nothing tells its time, where it is not that it was neither probed nor forecast."""
    price_per_hour: float | None = None
    """Of the whole machine."""
    gpu_count: int = 1
    run_flops: float | None = None
    """Floating-point operations of the whole run with this step, as traced."""
    peak_flops_per_second: float | None = None
    """Dense peak of one GPU, where a source gives it."""

    @property
    def fits(self) -> bool:
        """Whether it is known to fit with margin."""
        return self.fit is not None and self.fit.verdict is Verdict.FITS

    @property
    def least_cost(self) -> float | None:
        """What the run costs at the device's dense peak without a pause: no run can cost less."""
        if not (self.price_per_hour and self.run_flops and self.peak_flops_per_second):
            return None
        return self.price_per_hour * self.run_flops / self.peak_flops_per_second / SECONDS_PER_HOUR

    def peak_share_needed(self, cost: float) -> float | None:
        """Return the share of its dense peak at which this run would cost so much."""
        least = self.least_cost
        return None if least is None or cost <= 0 else least / cost

    @property
    def peak_share_seen(self) -> float | None:
        """Share of the dense peak that the run reaches where its time was measured, pauses included."""
        if self.time_evidence is not Evidence.MEASURED or self.hours is None or self.hours.expected <= 0:
            return None
        if not (self.run_flops and self.peak_flops_per_second):
            return None
        return self.run_flops / self.peak_flops_per_second / (self.hours.expected * SECONDS_PER_HOUR)


class Reason(StrEnum):
    """Why a candidate was not chosen, from the furthest off to the nearest."""

    MULTI_GPU = "needs a multi-GPU step"
    DOES_NOT_FIT = "does not fit"
    TIGHT = "tight"
    GAP = "a shorter length does not fit"
    MEMORY_UNKNOWN = "memory not known"
    SHORTER = "shorter than asked"
    NO_PRICE = "no price"
    NO_TIME = "no time known"
    CANNOT_WIN = "cannot win"
    OVER_BUDGET = "over budget"
    SLOWER = "slower"
    DEARER = "dearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was not chosen."""

    candidate: Candidate
    reason: Reason
    detail: str
    """A sentence with the numbers behind the reason."""
    dearer_by: float | None = None
    """Expected cost above the chosen one's."""
    ranges_overlap: bool = False
    """The evidence does not tell the two apart: the chosen one's range and this one's have costs in common."""
    peak_share_needed: float | None = None
    """Share of its dense peak that would make it the cheapest, where its time was not measured."""
