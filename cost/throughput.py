"""Seconds of a training step as a function of its length, and how sure that is. ``cost.time_fit`` fits it.

A micro-step of padded length L takes ``floor + linear L + quadratic L^2`` seconds. A length that the process has not
seen before costs a further sum once, since libraries choose their kernels anew for each shape; an optimizer step costs
one of its own. All five are 0 or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cost import least_squares
from cost.errors import CostError
from cost.evidence import RANGE_SHARE, Evidence, Range

HOLD_SHARE = 0.03
"""Standard deviation, as a share, between one machine of a flavour and the next: the same step on two machines of one
kind. The value is the one that the simulations of search policies use; learn it from a second hold where it matters."""

FORECAST_LOG_SD = 0.435
"""Standard deviation of the logarithm of a roofline's seconds for a flavour that was never probed: the root of the
summed squares of what is unknown of an efficiency (overall .30, architecture .25, GPU .15, flavour .12)."""

HOST_SHARE = 0.10
"""Standard deviation, as a share, of the seconds that the host takes: launching kernels (the floor), and choosing them
for a new length. Other work slows it for tens of seconds at a time, which a short probe cannot average out. With this
value the ranges of 179 windows of 25 micro-steps hold what the rest of their run took in 93 of 100, in twelve runs on
an H200 (``artifacts/reference``); with a tenth less in 90, on one machine and in one process."""

TERMS = ("floor", "linear", "quadratic", "new length", "optimizer step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a stretch of training consists of, as the time model counts it. Expectations, so not always whole."""

    micro_steps: float
    tokens: float
    """Sum of the micro-steps' padded lengths, each counted once however many items the micro-batch holds."""
    squared_tokens: float
    """Sum of the squares of those lengths."""
    new_lengths: float = 0
    """Lengths among them that the process has not seen before."""
    optimizer_steps: float = 0

    @classmethod
    def of(cls, lengths: Iterable[int], *, new_lengths: float = 0, optimizer_steps: float = 0) -> Work:
        """Return the work of one micro-step at each of these lengths."""
        given = tuple(lengths)
        return cls(
            micro_steps=len(given),
            tokens=sum(given),
            squared_tokens=sum(length**2 for length in given),
            new_lengths=new_lengths,
            optimizer_steps=optimizer_steps,
        )

    def plus(self, other: Work) -> Work:
        """Return both stretches together."""
        return Work(
            micro_steps=self.micro_steps + other.micro_steps,
            tokens=self.tokens + other.tokens,
            squared_tokens=self.squared_tokens + other.squared_tokens,
            new_lengths=self.new_lengths + other.new_lengths,
            optimizer_steps=self.optimizer_steps + other.optimizer_steps,
        )

    @classmethod
    def total(cls, works: Iterable[Work]) -> Work:
        """Return all stretches together; no work for none."""
        whole = cls(micro_steps=0, tokens=0, squared_tokens=0)
        for work in works:
            whole = whole.plus(work)
        return whole

    @property
    def terms(self) -> tuple[float, ...]:
        """What multiplies each of the time model's coefficients, in their order."""
        return (self.micro_steps, self.tokens, self.squared_tokens, self.new_lengths, self.optimizer_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One stretch of training that a probe timed, device-synchronised."""

    work: Work
    seconds: float


def micro_step_timings(
    lengths_tokens: Sequence[int], seconds: Sequence[float], met_tokens: Iterable[int] = ()
) -> tuple[Timing, ...]:
    """Return the timings of a process's micro-steps, in their order, each told whether its length was new.

    Args:
        lengths_tokens: Padded length of each.
        seconds: As many.
        met_tokens: Lengths that the process had met before.
    """
    met = set(met_tokens)
    timings = []
    for length, taken in zip(lengths_tokens, seconds, strict=True):
        timings.append(Timing(work=Work.of([length], new_lengths=0 if length in met else 1), seconds=taken))
        met.add(length)
    return tuple(timings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """Seconds of a step on one flavour. The coefficients' covariance gives every sum of seconds its range."""

    floor_seconds: float = 0.0
    linear_seconds_per_token: float = 0.0
    quadratic_seconds_per_token2: float = 0.0
    new_length_seconds: float = 0.0
    optimizer_step_seconds: float = 0.0
    evidence: Evidence
    covariance: least_squares.Matrix = ()
    """Of the five coefficients; empty where nothing was fitted."""
    degrees_of_freedom: int = 0
    """Timings less fitted coefficients; 0 where nothing was fitted."""
    noise_share: float = 0.0
    """Standard deviation of one micro-step's seconds about the fit, as a share."""
    scale_share: float = 0.0
    """Standard deviation of what is wrong with all seconds alike: another machine, an efficiency never measured."""
    host_share: float = 0.0
    """Standard deviation of what is wrong with the floor and the new lengths alone; see ``HOST_SHARE``."""
    one_off_seconds: float = 0.0
    """What a process pays once besides, in single steps that took far longer than others of their length."""
    longest_timed_tokens: int | None = None
    """Beyond this length the model extrapolates."""
    assumed: tuple[str, ...] = ()
    """Terms that the timings could not tell, and that were assumed."""

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The five coefficients in the order of ``TERMS``."""
        return (
            self.floor_seconds,
            self.linear_seconds_per_token,
            self.quadratic_seconds_per_token2,
            self.new_length_seconds,
            self.optimizer_step_seconds,
        )

    @classmethod
    def of_rate(cls, tokens_per_second: float, *, evidence: Evidence, scale_share: float = HOLD_SHARE) -> TimeModel:
        """Return a model that knows one rate alone.

        Raises:
            CostError: The rate is not positive.
        """
        if not (math.isfinite(tokens_per_second) and tokens_per_second > 0):
            raise CostError(f"A rate must be a positive number of tokens a second, not {tokens_per_second}.")
        return cls(linear_seconds_per_token=1 / tokens_per_second, evidence=evidence, scale_share=scale_share)

    def micro_step_seconds(self, length_tokens: int) -> float:
        """Return the expected seconds of one micro-step at a length seen before."""
        return (
            self.floor_seconds
            + self.linear_seconds_per_token * length_tokens
            + self.quadratic_seconds_per_token2 * length_tokens**2
        )

    def expected_seconds(self, work: Work) -> float:
        """Return the expected seconds of a stretch of training."""
        return sum(c * t for c, t in zip(self.coefficients, work.terms, strict=True))

    def seconds(self, work: Work) -> Range:
        """Return the seconds of a stretch of training with a range.

        Four errors add up: of the fitted coefficients (Student's t with their covariance), of single micro-steps about
        the fit (which average out over many), of what shifts all of them alike, and of what shifts the host's part. A
        shift of a fifth and more, as of a forecast, is taken as a factor either way.
        """
        expected = self.expected_seconds(work)
        fitted = 0.0
        if self.covariance:
            terms = work.terms
            fitted = sum(
                terms[i] * terms[j] * self.covariance[i][j] for i in range(len(terms)) for j in range(len(terms))
            )
        own = (self.noise_share * expected) ** 2 / max(work.micro_steps, 1)
        tail = (1 + RANGE_SHARE) / 2
        wide = least_squares.student_quantile(tail, self.degrees_of_freedom or 10**6)
        normal = least_squares.student_quantile(tail, 10**6)
        variable = math.sqrt(wide**2 * (max(fitted, 0.0) + own))
        if self.scale_share >= 0.2:
            factor = math.exp(normal * self.scale_share)
            return Range(
                expected=expected, low=max(expected / factor - variable, 0.0), high=expected * factor + variable
            )
        host = self.floor_seconds * work.micro_steps + self.new_length_seconds * work.new_lengths
        width = math.hypot(variable, normal * self.scale_share * expected, normal * self.host_share * host)
        return Range(expected=expected, low=max(expected - width, 0.0), high=expected + width)

    def tokens_per_second(self, length_tokens: int, *, accumulation: int = 1, items: int = 1) -> Range:
        """Return the tokens a second of steps at one length, seen before.

        Args:
            length_tokens: Padded length of an item.
            accumulation: Micro-steps an optimizer step.
            items: Items a micro-step.
        """
        seconds = self.seconds(Work.of([length_tokens] * accumulation, optimizer_steps=1))
        tokens = length_tokens * accumulation * items
        return Range(
            expected=tokens / seconds.expected,
            low=tokens / seconds.high,
            high=tokens / seconds.low if seconds.low > 0 else math.inf,
        )
