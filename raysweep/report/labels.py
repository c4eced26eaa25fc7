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


FIT_CAPTION = (
    "In GB (10^9 bytes): what is free beyond the margin and what lives outside the allocator; negative is short. "
    "tight: runs, but inside the margin or only because the allocator frees its cache and tries again."
)


def fit_cell(fit: Fit, *, retries: int = 0) -> Cell:
    """Return a verdict with the GB that are free, or short; ``FIT_CAPTION`` says what they are.

    Args:
        fit: Of a cell.
        retries: How often the allocator freed its cache in the very probe that the peak is of. What was free then
            says nothing of what was lacking: the retries are shown in its place.
    """
    if fit.verdict is Verdict.NO:
        # A run that died reserved what it could: what it would have needed beyond that is not known from it.
        return Cell("no", Tone.BAD)
    if retries:
        return Cell(f"{fit.verdict.value}, {retries:,} {'retry' if retries == 1 else 'retries'}", TONES[fit.verdict])
    return Cell(f"{fit.verdict.value} {fit.headroom_bytes / BYTES_PER_GB:+,.1f}", TONES[fit.verdict])


def sampled(lengths: Sequence[int], most: int = SHOWN_LENGTHS) -> tuple[int, ...]:
    """Return at most ``most`` of the lengths, both ends among them."""
    ordered = sorted(set(lengths))
    if len(ordered) <= most:
        return tuple(ordered)
    return tuple(ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most))
