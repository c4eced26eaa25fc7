"""Lengths of a data set of which only a summary is known: count, mean, median, 95th percentile and longest."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from cost.errors import CostError
from cost.lengths import LengthCounts

_MOST_QUANTILES = 20_000


def of_summary(
    *,
    count: int,
    mean_tokens: float,
    p50_tokens: float,
    p95_tokens: float,
    max_tokens: int,
    loss_share: float | None = None,
) -> LengthCounts:
    """Return lengths that have this summary: an assumption about their shape, not data.

    The quantile function goes from the shortest item through the median and the 95th percentile to the longest, in
    three pieces bent by the same power, which the mean settles. The shortest item lies as far below the median as the
    95th percentile above it, in ratio; at one token where the mean asks for it.

    Raises:
        CostError: The figures are out of order, or no such lengths have that mean.
    """
    if count < 1 or not 1 <= p50_tokens <= p95_tokens <= max_tokens:
        raise CostError(
            "A summary needs a count of 1 or more and 1 <= p50 <= p95 <= max; "
            f"not count {count}, p50 {p50_tokens}, p95 {p95_tokens}, max {max_tokens}."
        )
    shares = (0.0, 0.5, 0.95, 1.0)
    knots = (max(1.0, p50_tokens**2 / p95_tokens), p50_tokens, p95_tokens, float(max_tokens))
    lowest, highest = _mean_bounds(shares, knots)
    if mean_tokens < lowest:
        knots = (1.0, *knots[1:])
        lowest, highest = _mean_bounds(shares, knots)
    if not 0.98 * lowest <= mean_tokens <= 1.02 * highest:  # a summary is rounded
        raise CostError(
            f"No lengths have p50 {p50_tokens:g}, p95 {p95_tokens:g}, max {max_tokens} and a mean of {mean_tokens:g}: "
            f"it must lie between {lowest:.0f} and {highest:.0f}."
        )
    # The mean of lo + (hi - lo) u^power over a piece is lo + (hi - lo) / (power + 1).
    bend = (mean_tokens - lowest) / (highest - lowest) if highest > lowest else 1.0
    power = 1 / min(max(bend, 1e-3), 1.0) - 1

    def quantile(share: float) -> float:
        piece = 0 if share < shares[1] else 1 if share < shares[2] else 2
        part = (share - shares[piece]) / (shares[piece + 1] - shares[piece])
        return knots[piece] + (knots[piece + 1] - knots[piece]) * float(part**power)

    steps = min(count, _MOST_QUANTILES)
    counts: Counter[int] = Counter(max(1, round(quantile((i + 0.5) / steps))) for i in range(steps - 1))
    counts[max_tokens] += 1
    each = count / steps
    return LengthCounts.of_counts({length: n * each for length, n in counts.items()}, loss_share=loss_share)


def _mean_bounds(shares: tuple[float, ...], knots: tuple[float, ...]) -> tuple[float, float]:
    """Means of the lowest and of the highest lengths between these knots."""
    widths = [b - a for a, b in pairwise(shares)]
    return (
        sum(w * k for w, k in zip(widths, knots[:-1], strict=True)),
        sum(w * k for w, k in zip(widths, knots[1:], strict=True)),
    )
