"""Sequences of lengths for varied runs: written out, or drawn from a seed so that a plan stays readable."""

from __future__ import annotations

import random
from typing import Any


def lengths_of(run: dict[str, Any]) -> list[int]:
    """Return a run's lengths in tokens.

    Args:
        run: whose ``lengths`` is a list, or ``{items, seed, log_mean, log_deviation, least, most}``: lengths drawn
            from a log-normal distribution and cut at both ends.
    """
    lengths = run["lengths"]
    if isinstance(lengths, list):
        return [int(tokens) for tokens in lengths]
    draw = random.Random(lengths["seed"])
    return [
        max(
            lengths["least"],
            min(lengths["most"], int(draw.lognormvariate(lengths["log_mean"], lengths["log_deviation"]))),
        )
        for _ in range(lengths["items"])
    ]
