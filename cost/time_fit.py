"""Fits the time model of a step to what probes timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost import least_squares
from cost.errors import CostError
from cost.evidence import Evidence
from cost.throughput import FORECAST_LOG_SD, HOLD_SHARE, HOST_SHARE, TERMS, TimeModel, Timing

NEW_LENGTH_SHARE = 0.85
NEW_LENGTH_SD = 0.4
"""What a new length costs beside the floor, and the standard deviation of that share: 0.4 to 1.2 in ten runs of three
models that the host bounds, on an H200 (``artifacts/reference``); 1.8 and 1.9 in two that the device bounds, where
kernels hide some of the floor. Timings that tell outweigh it."""
_LEAST_FLOOR_SHARE = 0.25
"""Of the shortest timed micro-step: a floor hidden behind the kernels may be so long, and new lengths with it."""
_LEAST_NOISE_SHARE = 1e-3
"""Timings without any noise would make the assumption on new lengths weigh nothing or all."""
_ONE_OFF_SHARE = 0.5
_ONE_OFF_DEVIATIONS = 5.0
"""A step that took so much more than its fit, and so many standard deviations, did something once: it loaded kernels,
or the process was held up. In a short probe of a 1B model three steps of thirty took three times their fit, in a run
of 400 items two did (``artifacts/reference``): a run pays such a sum about once, not in proportion."""
_ONE_OFFS_AT_MOST = 0.2
"""Of all timings; more of them are no exceptions."""
_SLOWER_DEVIATIONS = 0.5
_FASTER_DEVIATIONS = 3.0
"""How many standard deviations above and below the fit a timing still counts in full, by Huber's weights (*Robust
Estimation of a Location Parameter*, Annals of Mathematical Statistics 35, 1964). Two bounds, since a host that other
work holds up makes steps slower and none faster: so the fit is that of an undisturbed host, which a probe shows even
where other work met a quarter of it."""
_HELD_UP_SHARE = 0.055
_HELD_UP_SD = 0.02
_HELD_UP_DEVIATIONS = 0.5
"""What micro-steps take on average beyond such a fit, as a share, and how sure that is: 3 to 6 % in eleven runs of
three models that the host slows, on an H200 (``artifacts/reference``), and single far slower ones 1 % more. It is at
most half of one micro-step's standard deviation: 1.5 % in the one run that the device alone bounds."""
_HELD_UP_TOGETHER = 4
"""Slow micro-steps come in rows: a mean of n is as sure as one of n / 4 that came singly. In the same eleven runs
windows of 20 scatter by 5.7 % on average, single micro-steps by 13 %."""
_NORMAL_MEDIAN = 1.4826
"""Standard deviation of a normal law over the median of its absolute values."""
_LEAST_IN_FULL = 0.25
"""Share of the timings taken to count in full at the least, where a few timings would show an absurd one."""
_ROUNDS = 12
"""Of reweighting: by then nine fits in ten of a short probe have settled to two parts in ten thousand."""


def fit(
    timings: Sequence[Timing],
    *,
    evidence: Evidence,
    optimizer_step_seconds: float | None = None,
    hold_share: float = HOLD_SHARE,
    host_share: float = HOST_SHARE,
) -> TimeModel:
    """Return the time model that is nearest to the timings in relative error.

    Args:
        timings: Steady ones: a process's first steps, which compile and tune, belong elsewhere.
        evidence: What the timings are.
        optimizer_step_seconds: Where it was timed by itself; else it is fitted, if the timings can tell it.
        hold_share: See ``HOLD_SHARE``.
        host_share: See ``HOST_SHARE``.

    Raises:
        CostError: There is no timing, or one is not positive.

    Errors are relative, since a step's noise grows with its length; weights come from the fit, not from the noisy
    seconds, so that fast outliers do not pull it down. Slow steps weigh less the slower they are; what is usual of them
    is added in proportion, and what single ones took far beyond the fit is a process's one-off cost. That a new length
    costs about ``NEW_LENGTH_SHARE`` of the floor is one more observation, since a short probe of varied lengths meets
    hardly any length twice.
    """
    _check(timings)
    observed = _Observed.of(timings, optimizer_step_seconds)
    settled = _settled(observed, hold_share, robust=True)
    one_offs = _one_offs(observed, settled)
    held_up = _HeldUp.of(observed, settled, one_offs)
    fitted = _model(observed, settled, evidence, level=1 + held_up.share, one_offs=one_offs)
    return replace(fitted, scale_share=math.hypot(hold_share, held_up.deviation), host_share=host_share)


def forecast(roofline: Sequence[Timing], *, log_sd: float = FORECAST_LOG_SD) -> TimeModel:
    """Return a model with a wide range for a flavour that was never probed, by plain least squares.

    Args:
        roofline: Seconds computed from the step's operations at several lengths.
        log_sd: See ``FORECAST_LOG_SD``.
    """
    _check(roofline)
    observed = _Observed.of(roofline, None)
    fitted = _model(observed, _settled(observed, 0.0, robust=False), Evidence.FORECAST)
    return replace(fitted, covariance=(), degrees_of_freedom=0, noise_share=0.0, scale_share=log_sd)


def _check(timings: Sequence[Timing]) -> None:
    if not timings:
        raise CostError("A time model needs at least one timing; probe the step at one or more lengths first.")
    for timing in timings:
        if not (math.isfinite(timing.seconds) and timing.seconds > 0 and timing.work.micro_steps > 0):
            raise CostError(f"A timing must be positive and of at least one micro-step, not {timing}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """The timings as a system of equations, one row each."""

    rows: tuple[least_squares.Vector, ...]
    targets: tuple[float, ...]
    micro_steps: tuple[float, ...]
    shortest_seconds: float
    """Of one micro-step."""
    longest_tokens: int
    """Of one micro-step, on a timing's average."""
    optimizer_step_seconds: float | None
    """Where they were timed by themselves: then the targets are without them, and their column is 0."""

    @classmethod
    def of(cls, timings: Sequence[Timing], optimizer_step_seconds: float | None) -> _Observed:
        known = optimizer_step_seconds or 0.0
        return cls(
            rows=tuple(
                (*t.work.terms[:-1], 0.0 if optimizer_step_seconds is not None else t.work.optimizer_steps)
                for t in timings
            ),
            targets=tuple(max(t.seconds - known * t.work.optimizer_steps, 1e-9) for t in timings),
            micro_steps=tuple(t.work.micro_steps for t in timings),
            shortest_seconds=min(t.seconds / t.work.micro_steps for t in timings),
            longest_tokens=max(round(t.work.tokens / t.work.micro_steps) for t in timings),
            optimizer_step_seconds=optimizer_step_seconds,
        )

    def predicted(self, values: least_squares.Vector) -> tuple[float, ...]:
        return tuple(max(sum(v * x for v, x in zip(values, row, strict=True)), 1e-9) for row in self.rows)

    def errors(self, predicted: Sequence[float]) -> tuple[float, ...]:
        """How far each timing is off, as a share; one of n micro-steps times the root of n, to scatter as one does."""
        return tuple(
            (y / f - 1) * math.sqrt(n) for y, f, n in zip(self.targets, predicted, self.micro_steps, strict=True)
        )

    def weighted(
        self, predicted: Sequence[float], weights: Sequence[float], noise_share: float, floor_seconds: float
    ) -> tuple[list[least_squares.Vector], list[float]]:
        """Rows and targets in units of the noise, and last what is assumed of a new length."""
        scales = [math.sqrt(n * w) / f for n, w, f in zip(self.micro_steps, weights, predicted, strict=True)]
        rows = [tuple(x * scale for x in row) for row, scale in zip(self.rows, scales, strict=True)]
        targets = [y * scale for y, scale in zip(self.targets, scales, strict=True)]
        floor_seconds = max(floor_seconds, _LEAST_FLOOR_SHARE * self.shortest_seconds)
        weight = max(noise_share, _LEAST_NOISE_SHARE) / (NEW_LENGTH_SD * floor_seconds)
        rows.append((-NEW_LENGTH_SHARE * weight, 0.0, 0.0, weight, 0.0))
        return rows, [*targets, 0.0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settled:
    """A fit, once reweighting has settled."""

    values: least_squares.Vector
    predicted: tuple[float, ...]
    deviation: float
    """Standard deviation of one micro-step about the fit, as a share, where nothing held it up."""
    degrees: int
    """Timings less fitted coefficients."""
    rows: tuple[least_squares.Vector, ...]
    """In units of ``noise_share``, every timing in full, and last what is assumed of a new length."""
    noise_share: float
    """Standard deviation of a row's error as the coefficients have it."""


def _settled(observed: _Observed, hold_share: float, *, robust: bool) -> _Settled:
    """Fit by Huber's weights, or by least squares.

    With as many terms as timings nothing is left to show the noise: then it is taken to be ``hold_share``.
    """
    count = len(observed.targets)
    full = (1.0,) * count
    predicted, weights = observed.targets, full
    values: least_squares.Vector = (0.0,) * len(TERMS)
    deviation, variance, degrees = hold_share, hold_share**2, 0
    for _ in range(_ROUNDS):
        rows, targets = observed.weighted(predicted, weights, deviation, values[0])
        values = least_squares.non_negative(rows, targets)
        predicted = observed.predicted(values)
        degrees = count - len(least_squares.independent_columns(rows[:-1]))
        if degrees < 1:
            continue
        errors = observed.errors(predicted)
        if robust:
            deviation = max(
                _NORMAL_MEDIAN * _median([abs(x) for x in errors]) * math.sqrt(count / degrees), _LEAST_NOISE_SHARE
            )
            bounds = (-_FASTER_DEVIATIONS * deviation, _SLOWER_DEVIATIONS * deviation)
        else:
            deviation, bounds = math.sqrt(math.fsum(x**2 for x in errors) / degrees), (-math.inf, math.inf)
        bounded = [min(max(x, bounds[0]), bounds[1]) for x in errors]
        weights = tuple(b / x if x else 1.0 for b, x in zip(bounded, errors, strict=True))
        # Huber's asymptotic variance: the mean square of what is left of the errors, over the squared share in full.
        in_full = max(sum(b == x for b, x in zip(bounded, errors, strict=True)) / count, _LEAST_IN_FULL)
        variance = math.fsum(x**2 for x in bounded) / degrees / in_full**2
    noise_share = max(math.sqrt(variance), _LEAST_NOISE_SHARE)
    rows, _ = observed.weighted(predicted, full, noise_share, values[0])
    return _Settled(
        values=values,
        predicted=predicted,
        deviation=deviation,
        degrees=degrees,
        rows=tuple(rows),
        noise_share=noise_share,
    )


def _one_offs(observed: _Observed, settled: _Settled) -> frozenset[int]:
    """Return the places of a few timings that took far longer than fitted; of none where there are many."""
    most = max(_ONE_OFF_SHARE, _ONE_OFF_DEVIATIONS * settled.deviation)
    pairs = zip(observed.targets, settled.predicted, strict=True)
    found = frozenset(i for i, (y, f) in enumerate(pairs) if y / f - 1 > most)
    return found if len(found) <= _ONE_OFFS_AT_MOST * len(observed.targets) else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldUp:
    """What micro-steps take on average beyond a robust fit."""

    share: float
    deviation: float
    """Standard deviation of the share as far as it is assumed: of the timings' own part the fit's range tells."""

    @classmethod
    def of(cls, observed: _Observed, settled: _Settled, one_offs: frozenset[int]) -> _HeldUp:
        """Weigh what these timings say against what is usual."""
        if settled.degrees < 1:
            return cls(share=0.0, deviation=0.0)
        kept = [i for i in range(len(observed.targets)) if i not in one_offs]
        seen = math.fsum(observed.targets[i] for i in kept) / math.fsum(settled.predicted[i] for i in kept) - 1
        errors = observed.errors([(1 + seen) * f for f in settled.predicted])
        scatter = math.fsum(errors[i] ** 2 for i in kept) / len(kept)
        variance = scatter * _HELD_UP_TOGETHER / math.fsum(observed.micro_steps[i] for i in kept)
        trust = _HELD_UP_SD**2 / (_HELD_UP_SD**2 + variance)
        usual = min(_HELD_UP_SHARE, _HELD_UP_DEVIATIONS * settled.deviation)
        return cls(share=trust * seen + (1 - trust) * usual, deviation=(1 - trust) * _HELD_UP_SD)


def _model(
    observed: _Observed,
    settled: _Settled,
    evidence: Evidence,
    *,
    level: float = 1.0,
    one_offs: frozenset[int] = frozenset(),
) -> TimeModel:
    """Return the model of a fit whose coefficients are all multiplied by ``level``."""
    values = [value * level for value in settled.values]
    apart = observed.optimizer_step_seconds
    columns = least_squares.independent_columns(settled.rows)
    told = least_squares.independent_columns(settled.rows[:-1])
    errors = observed.errors([level * f for f in settled.predicted])
    usual = [x for i, x in enumerate(errors) if i not in one_offs]
    spare = len(usual) - len(told)
    return TimeModel(
        floor_seconds=values[0],
        linear_seconds_per_token=values[1],
        quadratic_seconds_per_token2=values[2],
        new_length_seconds=values[3],
        optimizer_step_seconds=values[4] if apart is None else apart,
        evidence=evidence,
        covariance=_covariance(settled.rows, columns, (settled.noise_share * level) ** 2),
        degrees_of_freedom=max(spare, 1),
        noise_share=math.sqrt(math.fsum(x**2 for x in usual) / spare) if spare > 0 else settled.deviation,
        one_off_seconds=math.fsum(observed.targets[i] - settled.predicted[i] for i in one_offs),
        longest_timed_tokens=observed.longest_tokens,
        assumed=tuple(n for i, n in enumerate(TERMS) if i not in told and (n != TERMS[-1] or apart is None)),
    )


def _covariance(
    weighted: Sequence[least_squares.Vector], columns: tuple[int, ...], variance: float
) -> least_squares.Matrix:
    """Covariance of all five coefficients, from every column that can be told (also one fitted as 0)."""
    narrow = [tuple(row[c] for c in columns) for row in weighted]
    gram, _ = least_squares.normal_equations(narrow, [0.0] * len(narrow))
    inverse = least_squares.inverted(gram)
    if inverse is None:  # columns are independent by construction; weights cannot change that beyond rounding
        return ()
    full = [[0.0] * len(TERMS) for _ in TERMS]
    for a, i in enumerate(columns):
        for b, j in enumerate(columns):
            full[i][j] = inverse[a][b] * variance
    return tuple(tuple(line) for line in full)


def _median(values: Sequence[float]) -> float:
    import statistics  # only a fit needs it, and importing the package stays cheap

    return statistics.median(values)
