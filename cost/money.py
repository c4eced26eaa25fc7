"""What machine time costs: billing steps, interruptible machines, disks of stopped ones, and clusters with a queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from cost import units
from cost.errors import CostError, NeverEndsError
from cost.evidence import RANGE_SHARE, Range

HOURS_PER_MONTH = 730
"""As cloud price lists count a month: 8,760 hours over twelve."""


class BillingStep(StrEnum):
    """What a provider rounds up to."""

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"

    @property
    def seconds(self) -> int:
        """The step's length."""
        return {"second": 1, "minute": units.SECONDS_PER_MINUTE, "hour": units.SECONDS_PER_HOUR}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Billing:
    """How a provider counts time."""

    step: BillingStep = BillingStep.SECOND
    minimum_seconds: float = 0.0

    def billed_seconds(self, seconds: float) -> float:
        """Return the time that is paid for one unbroken hold of a machine."""
        steps = math.ceil(seconds / self.step.seconds - 1e-9)  # 60.00000001 s are a minute
        return max(float(steps * self.step.seconds), self.minimum_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """An interruptible machine: interruptions come at random, at a steady rate."""

    interruptions_per_hour: float
    checkpoint_every_seconds: float | None = None
    """Wall time between checkpoints; None where a run that is interrupted starts again from the beginning."""
    restart_seconds: float = 0.0
    """Start-up of the next machine, billed."""
    wait_seconds: float = 0.0
    """Until there is a next machine, not billed."""

    def __post_init__(self) -> None:
        """Refuse impossible rates and times.

        Raises:
            CostError: One is negative, or the time between checkpoints is not positive.
        """
        if not (math.isfinite(self.interruptions_per_hour) and self.interruptions_per_hour >= 0):
            raise CostError(f"Interruptions an hour must be 0 or more, not {self.interruptions_per_hour}.")
        if self.checkpoint_every_seconds is not None and self.checkpoint_every_seconds <= 0:
            raise CostError(f"The time between checkpoints must be positive, not {self.checkpoint_every_seconds} s.")

    def billed(self, work_seconds: Range) -> Range:
        """Return the time on machines, lost work and restarts included.

        The expectation is Daly's: work of T seconds with a checkpoint every t, mean time M between interruptions and R
        seconds of restart takes ``M exp(R/M) (exp(t/M) - 1) T/t`` (J. T. Daly, A higher order estimate of the optimum
        checkpoint interval for restart dumps, Future Generation Computer Systems 22, 2006). What writing
        a checkpoint takes is part of the work. The low end is the work with as few interruptions as one run in twenty
        sees, each losing nothing but the restart; the high end has as many as one in twenty, each losing all the work
        since a checkpoint.

        Raises:
            NeverEndsError: Interruptions come so often that the work would hardly end.
        """
        if self.interruptions_per_hour == 0:
            return work_seconds
        tail = (1 - RANGE_SHARE) / 2
        mean_seconds = units.SECONDS_PER_HOUR / self.interruptions_per_hour

        def daly(seconds: float) -> float:
            interval = min(self.checkpoint_every_seconds or seconds, seconds)
            if (interval + self.restart_seconds) / mean_seconds > 5:  # a success in 150 tries
                restart = f" and {units.format_duration(self.restart_seconds)} of restart" * (self.restart_seconds > 0)
                raise NeverEndsError(
                    f"At {self.interruptions_per_hour:g} interruptions an hour, {units.format_duration(interval)} of "
                    f"work between checkpoints{restart} would hardly ever be finished: give a shorter "
                    f"{'checkpoint_every_seconds' if interval > self.restart_seconds else 'restart_seconds'}."
                )
            factor = mean_seconds * math.exp(self.restart_seconds / mean_seconds) * math.expm1(interval / mean_seconds)
            return factor * seconds / interval

        expected = daly(work_seconds.expected)
        few = poisson_quantile(tail, work_seconds.low / mean_seconds)
        many = poisson_quantile(1 - tail, daly(work_seconds.high) / mean_seconds)
        interval = min(self.checkpoint_every_seconds or work_seconds.high, work_seconds.high)
        return Range(
            expected=expected,
            low=min(work_seconds.low + few * self.restart_seconds, expected),
            high=max(work_seconds.high + many * (interval + self.restart_seconds), expected),
        )

    def waited(self, billed_seconds: Range) -> Range:
        """Return the time without a machine that interruptions cost."""
        mean_seconds = units.SECONDS_PER_HOUR / self.interruptions_per_hour if self.interruptions_per_hour else math.inf
        return billed_seconds.times(self.wait_seconds / mean_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Disks that go on costing while their machines are stopped."""

    size_gb: float
    price_per_gb_month: float
    stopped_hours: float

    @property
    def cost(self) -> float:
        """In the currency of ``price_per_gb_month``."""
        return self.size_gb * self.price_per_gb_month * self.stopped_hours / HOURS_PER_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a rented machine is paid."""

    price_per_hour: float | None
    """Of the whole machine with all its GPUs; None where it is not known: then there are hours, and no money."""
    currency: str = "USD"
    """A label: prices are not converted."""
    billing: Billing = Billing()
    spot: Spot | None = None
    storage: Storage | None = None

    def cost(self, billed_seconds: Range) -> Range | None:
        """Return the money for this much time on machines."""
        if self.price_per_hour is None:
            return None
        per_second = self.price_per_hour / units.SECONDS_PER_HOUR
        stored = self.storage.cost if self.storage else 0.0
        paid = self.billing.billed_seconds
        return Range(
            expected=paid(billed_seconds.expected) * per_second + stored,
            low=paid(billed_seconds.low) * per_second + stored,
            high=paid(billed_seconds.high) * per_second + stored,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """GPUs of a cluster that a queue hands out: priced by the GPU and hour, or not at all."""

    gpu_count: int = 1
    price_per_gpu_hour: float | None = None
    currency: str = "USD"
    time_margin_share: float = 0.2
    """What ``--time`` adds to the upper end of the projection."""

    @property
    def terms(self) -> Terms:
        """The same as terms for the whole allocation. The only price that is multiplied by GPUs, since it is one's."""
        price = None if self.price_per_gpu_hour is None else self.price_per_gpu_hour * self.gpu_count
        return Terms(price_per_hour=price, currency=self.currency)

    def time_limit(self, seconds: Range) -> str:
        """Return the value for Slurm's ``--time``: the upper end of the projection and the margin on top."""
        return units.slurm_time(seconds.high, margin_share=self.time_margin_share)


def poisson_quantile(probability: float, mean: float) -> int:
    """Return the smallest count that a Poisson variable of this mean stays at or below with this probability."""
    if mean > 500:  # the sum's terms vanish; the normal law is then within a count or two
        from statistics import NormalDist

        return max(0, math.ceil(mean + NormalDist().inv_cdf(probability) * math.sqrt(mean)))
    term = total = math.exp(-mean)
    count = 0
    while total < probability:
        count += 1
        term *= mean / count
        total += term
    return count
