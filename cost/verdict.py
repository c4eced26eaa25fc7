"""Whether a step fits a device: fits, tight or no."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from cost.errors import CostError


class Verdict(StrEnum):
    """How a step and a device's memory go together."""

    FITS = "fits"
    """It runs within memory less margin less what lives outside the allocator, and no allocation is retried."""
    TIGHT = "tight"
    """It runs, but inside the margin or only because the allocator frees its cache and retries."""
    NO = "no"
    """Some allocation fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A verdict with the bytes behind it."""

    verdict: Verdict
    headroom_bytes: int
    """Memory less margin less outside less the reserved peak; negative is short."""


def check_margin(margin_share: float) -> float:
    """Return the margin unchanged if it is a share from 0 to below 1.

    Raises:
        CostError: It is not.
    """
    if not (math.isfinite(margin_share) and 0 <= margin_share < 1):
        raise CostError(f"A margin is a share of the device's memory, 0 to below 1 (0.08 is 8 %), not {margin_share}.")
    return margin_share


def judge(
    *, memory_bytes: int, margin_share: float, outside_bytes: int, peak_reserved_bytes: int, runs: bool, retries: int
) -> Fit:
    """Return the verdict on a step whose allocations were played, or seen, on a device.

    Args:
        memory_bytes: The device's memory as torch reports it.
        margin_share: Share of ``memory_bytes`` to keep free.
        outside_bytes: Device memory that PyTorch's allocator does not manage.
        peak_reserved_bytes: The most the allocator held.
        runs: Whether every allocation was served in the end.
        retries: How often the allocator had to free its cache and try again.

    Raises:
        CostError: The margin is not a share, or a size or count is negative.
    """
    check_margin(margin_share)
    sizes = {
        "memory_bytes": memory_bytes,
        "outside_bytes": outside_bytes,
        "peak_reserved_bytes": peak_reserved_bytes,
        "retries": retries,
    }
    for name, value in sizes.items():
        if value < 0:
            raise CostError(f"{name} must be 0 or more, not {value}.")
    headroom_bytes = memory_bytes - round(margin_share * memory_bytes) - outside_bytes - peak_reserved_bytes
    if not runs:
        verdict = Verdict.NO
    elif retries == 0 and headroom_bytes >= 0:
        verdict = Verdict.FITS
    else:
        verdict = Verdict.TIGHT
    return Fit(verdict=verdict, headroom_bytes=headroom_bytes)
