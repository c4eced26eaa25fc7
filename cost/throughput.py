"""Seconds of a training step as a function of its length, fitted from probes, and how sure that is.

A micro-step of padded length L takes ``floor + linear L + quadratic L^2`` seconds. A length that the process has not
seen before costs a further sum once, since libraries choose their kernels anew for each shape; an optimizer step costs
one of its own. All five are 0 or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cost import least_squares
from cost.errors import CostError
from cost.evidence import RANGE_SHARE, Evidence, Range

HOLD_SHARE = 0.03
"""Standard deviation, as a share, between one machine of a flavour and the next: the same step on two machines of one
kind. The value is the one that the simulations of search policies use; learn it from a second hold where it matters."""

FORECAST_LOG_SD = 0.435
"""Standard deviation of the logarithm of a roofline's seconds for a flavour that was never probed: the root of the
summed squares of what is unknown of an efficiency (overall .30, architecture .25, GPU .15, flavour .12)."""

NEW_LENGTH_SHARE = 0.5
NEW_LENGTH_LOG_SD = 0.61
"""Where no probe met a new length: its cost as a share of the floor, and the standard deviation of its logarithm."""
_NEW_LENGTH_SD = (math.exp(1.645 * NEW_LENGTH_LOG_SD) - 1) / 1.645
"""The same as a share, such that the upper end of a nine-in-ten range is that of the logarithm."""

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

    @property
    def terms(self) -> tuple[float, ...]:
        """What multiplies each of the time model's coefficients, in their order."""
        return (self.micro_steps, self.tokens, self.squared_tokens, self.new_lengths, self.optimizer_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One stretch of training that a probe timed, device-synchronised."""

    work: Work
    seconds: float


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

        Three errors add up: of the fitted coefficients (Student's t with their covariance), of single micro-steps about
        the fit (which average out over many), and of what shifts all of them alike. A shift of a fifth and more, as of
        a forecast, is taken as a factor either way.
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
        width = math.hypot(variable, normal * self.scale_share * expected)
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


def fit(
    timings: Sequence[Timing],
    *,
    evidence: Evidence,
    optimizer_step_seconds: float | None = None,
    hold_share: float = HOLD_SHARE,
) -> TimeModel:
    """Return the time model that is nearest to the timings in relative error.

    Args:
        timings: Steady ones: a process's first steps, which compile and tune, belong elsewhere.
        evidence: What the timings are.
        optimizer_step_seconds: Where it was timed by itself; else it is fitted, if the timings can tell it.
        hold_share: See ``HOLD_SHARE``.

    Raises:
        CostError: There is no timing, or one is not positive.

    Errors are relative, since a step's noise grows with its length; weights come from the fit, not from the noisy
    seconds, so that fast outliers do not pull it down.
    """
    if not timings:
        raise CostError("A time model needs at least one timing; probe the step at one or more lengths first.")
    for timing in timings:
        if not (math.isfinite(timing.seconds) and timing.seconds > 0 and timing.work.micro_steps > 0):
            raise CostError(f"A timing must be positive and of at least one micro-step, not {timing}.")
    known = optimizer_step_seconds or 0.0
    rows = [
        (*t.work.terms[:-1], 0.0 if optimizer_step_seconds is not None else t.work.optimizer_steps) for t in timings
    ]
    targets = [max(t.seconds - known * t.work.optimizer_steps, 1e-9) for t in timings]
    values: least_squares.Vector = ()
    fits = targets
    for _ in range(4):  # reweighting settles to parts in a thousand within three rounds
        weighted = [tuple(x / f for x in row) for row, f in zip(rows, fits, strict=True)]
        values = least_squares.non_negative(weighted, [y / f for y, f in zip(targets, fits, strict=True)])
        fits = [max(_dot(values, row), 1e-9) for row in rows]
    weighted = [tuple(x / f for x in row) for row, f in zip(rows, fits, strict=True)]
    columns = least_squares.independent_columns(weighted)
    errors = [(y / f - 1) ** 2 * t.work.micro_steps for y, f, t in zip(targets, fits, timings, strict=True)]
    degrees = len(timings) - len(columns)
    # With as many terms as timings nothing is left to show the noise: take a hold's, and one degree of freedom.
    variance = math.fsum(errors) / degrees if degrees > 0 else hold_share**2
    covariance = _covariance(weighted, [t.work.micro_steps for t in timings], columns, variance)
    model = TimeModel(
        floor_seconds=values[0],
        linear_seconds_per_token=values[1],
        quadratic_seconds_per_token2=values[2],
        new_length_seconds=values[3],
        optimizer_step_seconds=optimizer_step_seconds if optimizer_step_seconds is not None else values[4],
        evidence=evidence,
        covariance=covariance,
        degrees_of_freedom=max(degrees, 1),
        noise_share=math.sqrt(variance),
        scale_share=hold_share,
        longest_timed_tokens=max(round(t.work.tokens / t.work.micro_steps) for t in timings),
        assumed=tuple(
            name
            for i, name in enumerate(TERMS)
            if i not in columns and not (name == TERMS[4] and optimizer_step_seconds is not None)
        ),
    )
    return _with_assumed_new_lengths(model, timings) if TERMS[3] in model.assumed else model


def forecast(roofline: Sequence[Timing], *, log_sd: float = FORECAST_LOG_SD) -> TimeModel:
    """Return a model with a wide range for a flavour that was never probed.

    Args:
        roofline: Seconds computed from the step's operations at several lengths.
        log_sd: See ``FORECAST_LOG_SD``.
    """
    fitted = fit(roofline, evidence=Evidence.FORECAST, hold_share=0.0)
    return replace(fitted, covariance=(), degrees_of_freedom=0, noise_share=0.0, scale_share=log_sd)


def _dot(values: Sequence[float], row: Sequence[float]) -> float:
    return sum(v * x for v, x in zip(values, row, strict=True))


def _covariance(
    weighted: Sequence[least_squares.Vector],
    micro_steps: Sequence[float],
    columns: tuple[int, ...],
    variance: float,
) -> least_squares.Matrix:
    """Covariance of all five coefficients, from every column that the timings can tell (also one fitted as 0).

    A timing of n micro-steps has a relative variance of ``variance / n``.
    """
    narrow = [tuple(row[c] * math.sqrt(n) for c in columns) for row, n in zip(weighted, micro_steps, strict=True)]
    gram, _ = least_squares.normal_equations(narrow, [0.0] * len(narrow))
    inverse = least_squares.inverted(gram)
    if inverse is None:  # columns are independent by construction; weights cannot change that beyond rounding
        return ()
    full = [[0.0] * len(TERMS) for _ in TERMS]
    for a, i in enumerate(columns):
        for b, j in enumerate(columns):
            full[i][j] = inverse[a][b] * variance
    return tuple(tuple(line) for line in full)


def _with_assumed_new_lengths(model: TimeModel, timings: Sequence[Timing]) -> TimeModel:
    """Assume what a new length costs where the timings could not tell, with a wide variance."""
    covariance = [list(line) for line in model.covariance] or [[0.0] * len(TERMS) for _ in TERMS]
    floor_seconds = model.floor_seconds
    if any(t.work.new_lengths for t in timings):
        # Every micro-step met a new length, so the floor that was fitted is the sum of both: share it out.
        expected = floor_seconds * NEW_LENGTH_SHARE / (1 + NEW_LENGTH_SHARE)
        floor_seconds -= expected
        shared = (expected * _NEW_LENGTH_SD) ** 2
        covariance[0][0] += shared
        covariance[0][3] = covariance[3][0] = -shared
    else:
        expected = NEW_LENGTH_SHARE * (floor_seconds or min(t.seconds / t.work.micro_steps for t in timings))
    covariance[3][3] = (expected * _NEW_LENGTH_SD) ** 2
    return replace(
        model,
        floor_seconds=floor_seconds,
        new_length_seconds=expected,
        covariance=tuple(tuple(line) for line in covariance),
    )
