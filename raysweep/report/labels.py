"""Names, sizes and times as every page shows them."""

from __future__ import annotations

from collections.abc import Sequence

from cost.units import BYTES_PER_GB
from cost.verdict import Fit, Verdict
from raysweep.report.page import Cell, Tone

TONES = {Verdict.FITS: Tone.GOOD, Verdict.TIGHT: Tone.WARN, Verdict.NO: Tone.BAD}
SHOWN_LENGTHS = 8
"""More columns than these do not fit a terminal; JSON has them all."""


def gb(size_bytes: int | None, *, digits: int = 1) -> str | None:
    """Return decimal gigabytes without their unit, for a column that names it; None stays None."""
    return None if size_bytes is None else f"{size_bytes / BYTES_PER_GB:,.{digits}f}"


def fit_cell(fit: Fit) -> Cell:
    """Return a verdict with what is free, or short, beyond the margin."""
    size = f"{abs(fit.headroom_bytes) / BYTES_PER_GB:,.1f} GB"
    if fit.verdict is Verdict.NO:
        # A run that died reserved what it could: what it would have needed beyond that is not known from it.
        return Cell("no", Tone.BAD)
    word = "free" if fit.headroom_bytes >= 0 else "short"
    return Cell(f"{fit.verdict.value}, {size} {word}", TONES[fit.verdict])


def sampled(lengths: Sequence[int], most: int = SHOWN_LENGTHS) -> tuple[int, ...]:
    """Return at most ``most`` of the lengths, both ends among them."""
    ordered = sorted(set(lengths))
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most))
