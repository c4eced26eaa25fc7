"""Fits the time model of a step to what probes timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

from cost import least_squares
from cost.errors import CostError
from cost.evidence import Evidence
from cost.throughput import FORECAST_LOG_SD, HOLD_SHARE, HOST_SHARE, TERMS, TimeModel, Timing

NEW_LENGTH_SHARE = 0.85
NEW_LENGTH_SD = 0.35
"""What a new length costs beside the floor, and the standard deviation of that share: from 0.7 to 1.1 in six runs of
two models on an H200 (``artifacts/reference``), wider here for other machines. Timings that tell outweigh it."""
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
_ROUNDS = 6
"""Reweighting settles to parts in a thousand within three."""


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
    seconds, so that fast outliers do not pull it down. Single slow steps are left out, and what they took beyond the
    fit is a process's one-off cost. That a new length costs about ``NEW_LENGTH_SHARE`` of the floor is one more
    observation, since a short probe of varied lengths meets hardly any length twice.
    """
    if not timings:
        raise CostError("A time model needs at least one timing; probe the step at one or more lengths first.")
    for timing in timings:
        if not (math.isfinite(timing.seconds) and timing.seconds > 0 and timing.work.micro_steps > 0):
            raise CostError(f"A timing must be positive and of at least one micro-step, not {timing}.")
    observed = _Observed.of(timings, optimizer_step_seconds)
    values, noise_share, weighted = _settled(observed, hold_share)
    usual = (True,) * len(timings)
    for _ in range(_ROUNDS):
        before, usual = usual, observed.usual(values)
        if usual == before:
            break
        values, noise_share, weighted = _settled(observed.only(usual), hold_share)
    excess = zip(observed.targets, observed.predicted(values), usual, strict=True)
    columns = least_squares.independent_columns(weighted)
    told = least_squares.independent_columns(weighted[:-1])
    return TimeModel(
        floor_seconds=values[0],
        linear_seconds_per_token=values[1],
        quadratic_seconds_per_token2=values[2],
        new_length_seconds=values[3],
        optimizer_step_seconds=optimizer_step_seconds if optimizer_step_seconds is not None else values[4],
        evidence=evidence,
        covariance=_covariance(weighted, columns, noise_share**2),
        degrees_of_freedom=max(sum(usual) - len(told), 1),
        noise_share=noise_share,
        scale_share=hold_share,
        host_share=host_share,
        one_off_seconds=math.fsum(y - f for y, f, is_usual in excess if not is_usual),
        longest_timed_tokens=max(round(t.work.tokens / t.work.micro_steps) for t in timings),
        assumed=tuple(
            name
            for i, name in enumerate(TERMS)
            if i not in told and not (name == TERMS[4] and optimizer_step_seconds is not None)
        ),
    )


def forecast(roofline: Sequence[Timing], *, log_sd: float = FORECAST_LOG_SD) -> TimeModel:
    """Return a model with a wide range for a flavour that was never probed.

    Args:
        roofline: Seconds computed from the step's operations at several lengths.
        log_sd: See ``FORECAST_LOG_SD``.
    """
    fitted = fit(roofline, evidence=Evidence.FORECAST, hold_share=0.0, host_share=0.0)
    return replace(fitted, covariance=(), degrees_of_freedom=0, noise_share=0.0, scale_share=log_sd)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """The timings as a system of equations, one row each."""

    rows: tuple[least_squares.Vector, ...]
    targets: tuple[float, ...]
    micro_steps: tuple[float, ...]
    shortest_seconds: float
    """Of one micro-step."""

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
        )

    def predicted(self, values: least_squares.Vector) -> tuple[float, ...]:
        return tuple(max(sum(v * x for v, x in zip(values, row, strict=True)), 1e-9) for row in self.rows)

    def usual(self, values: least_squares.Vector) -> tuple[bool, ...]:
        """Which timings are none of a few that took far longer than fitted."""
        import statistics  # only a fit needs it, and importing the package stays cheap

        excesses = [y / f - 1 for y, f in zip(self.targets, self.predicted(values), strict=True)]
        deviation = 1.4826 * statistics.median(abs(x) for x in excesses)  # of a normal law with that median
        most = max(_ONE_OFF_SHARE, _ONE_OFF_DEVIATIONS * deviation)
        usual = tuple(excess <= most for excess in excesses)
        return usual if usual.count(False) <= _ONE_OFFS_AT_MOST * len(usual) else (True,) * len(usual)

    def only(self, kept: tuple[bool, ...]) -> _Observed:
        """Return the system without some of its rows."""
        return replace(
            self,
            rows=tuple(compress(self.rows, kept)),
            targets=tuple(compress(self.targets, kept)),
            micro_steps=tuple(compress(self.micro_steps, kept)),
        )

    def noise_share(self, predicted: tuple[float, ...], degrees: int) -> float:
        """Standard deviation of one micro-step about the fit; a timing of n has a relative variance n times smaller."""
        errors = ((y / f - 1) ** 2 * n for y, f, n in zip(self.targets, predicted, self.micro_steps, strict=True))
        return math.sqrt(math.fsum(errors) / degrees)

    def weighted(
        self, predicted: tuple[float, ...], noise_share: float, floor_seconds: float
    ) -> tuple[list[least_squares.Vector], list[float]]:
        """Rows and targets in units of the noise, and last what is assumed of a new length."""
        weights = [math.sqrt(n) / f for n, f in zip(self.micro_steps, predicted, strict=True)]
        rows = [tuple(x * w for x in row) for row, w in zip(self.rows, weights, strict=True)]
        targets = [y * w for y, w in zip(self.targets, weights, strict=True)]
        floor_seconds = max(floor_seconds, _LEAST_FLOOR_SHARE * self.shortest_seconds)
        weight = max(noise_share, _LEAST_NOISE_SHARE) / (NEW_LENGTH_SD * floor_seconds)
        rows.append((-NEW_LENGTH_SHARE * weight, 0.0, 0.0, weight, 0.0))
        return rows, [*targets, 0.0]


def _settled(observed: _Observed, hold_share: float) -> tuple[least_squares.Vector, float, list[least_squares.Vector]]:
    """Return the coefficients, the noise's share and the weighted rows once reweighting has settled."""
    predicted = observed.targets
    values: least_squares.Vector = (0.0,) * len(TERMS)
    noise_share = hold_share
    for _ in range(_ROUNDS):
        rows, targets = observed.weighted(predicted, noise_share, values[0])
        values = least_squares.non_negative(rows, targets)
        predicted = observed.predicted(values)
        degrees = len(observed.targets) - len(least_squares.independent_columns(rows[:-1]))
        # With as many terms as timings nothing is left to show the noise: take a hold's, and one degree of freedom.
        noise_share = observed.noise_share(predicted, degrees) if degrees > 0 else hold_share
    rows, _ = observed.weighted(predicted, noise_share, values[0])
    return values, noise_share, rows


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
