"""Small least-squares fits with coefficients of 0 or more, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

_SINGULAR = 1e-10
"""A pivot below this share of its column's scale makes a column a combination of the others."""


def non_negative(rows: Sequence[Vector], targets: Sequence[float]) -> Vector:
    """Return the coefficients of 0 or more that minimise the squared error.

    The minimiser is the unconstrained one on the columns where it is positive, so with few columns all supports are
    tried: exact, and no iteration to converge (Lawson and Hanson, *Solving Least Squares Problems*, 1974, chapter 23).
    A column that is a combination of others shares their support in none: it stays 0 where they explain as much.

    Args:
        rows: One row an observation, at most some eight columns.
        targets: One value an observation.
    """
    width = len(rows[0])
    gram, moment = normal_equations(rows, targets)
    best: Vector = (0.0,) * width
    best_error = 0.0  # squared error less that of all-zero coefficients: -b.m at a stationary point
    for size in range(1, width + 1):
        for support in combinations(range(width), size):
            inverse = inverted(tuple(tuple(gram[i][j] for j in support) for i in support))
            if inverse is None:
                continue
            values = [sum(a * moment[j] for a, j in zip(line, support, strict=True)) for line in inverse]
            if min(values) < 0:
                continue
            error = -sum(v * moment[j] for v, j in zip(values, support, strict=True))
            if error < best_error - 1e-12 * abs(best_error):
                best_error = error
                best = tuple(values[support.index(j)] if j in support else 0.0 for j in range(width))
    return best


def normal_equations(rows: Sequence[Vector], targets: Sequence[float]) -> tuple[Matrix, Vector]:
    """Return the Gram matrix of the columns and their products with the targets."""
    width = range(len(rows[0]))
    gram = tuple(tuple(math.fsum(row[i] * row[j] for row in rows) for j in width) for i in width)
    return gram, tuple(math.fsum(row[i] * y for row, y in zip(rows, targets, strict=True)) for i in width)


def independent_columns(rows: Sequence[Vector]) -> tuple[int, ...]:
    """Return the columns, first ones preferred, that are no combination of earlier ones."""
    kept: tuple[int, ...] = ()
    gram, _ = normal_equations(rows, [0.0] * len(rows))
    for column in range(len(rows[0])):
        tried = (*kept, column)
        if inverted(tuple(tuple(gram[i][j] for j in tried) for i in tried)) is not None:
            kept = tried
    return kept


def inverted(matrix: Matrix) -> Matrix | None:
    """Return the inverse of a symmetric positive definite matrix by Cholesky's method, or None if it is singular."""
    size = range(len(matrix))
    scale = [math.sqrt(matrix[i][i]) for i in size]
    if min(scale) == 0:
        return None
    lower = [[0.0] * len(matrix) for _ in size]
    for i in size:
        for j in range(i + 1):
            rest = matrix[i][j] / (scale[i] * scale[j]) - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i != j:
                lower[i][j] = rest / lower[j][j]
            elif rest < _SINGULAR:
                return None
            else:
                lower[i][i] = math.sqrt(rest)
    columns = []
    for unit in size:
        forward: list[float] = []
        for i in size:
            known = sum(lower[i][k] * forward[k] for k in range(i))
            forward.append(((1.0 if i == unit else 0.0) - known) / lower[i][i])
        column = [0.0] * len(matrix)
        for i in reversed(size):
            known = sum(lower[k][i] * column[k] for k in range(i + 1, len(matrix)))
            column[i] = (forward[i] - known) / lower[i][i]
        columns.append(column)
    return tuple(tuple(columns[j][i] / (scale[i] * scale[j]) for j in size) for i in size)


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution.

    Exact for one and two degrees of freedom; above, the Cornish-Fisher expansion in Abramowitz and Stegun 26.7.5, which
    is within 0.5 % at the 95th percentile from three degrees on.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    from statistics import NormalDist  # only a range needs it

    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))
