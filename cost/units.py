"""Bytes, durations, money and tokens as people read them; a label always says which unit it is.

GB is 10^9 bytes and GiB is 2^30 bytes. Nothing here rounds a number that is computed with: these are for display alone.
"""

from __future__ import annotations

import math

from cost.errors import CostError

BYTES_PER_GB = 10**9
BYTES_PER_GIB = 2**30
SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 3600
SECONDS_PER_DAY = 86400


def format_gb(size_bytes: float, *, digits: int = 1) -> str:
    """Return bytes as decimal gigabytes: ``150.1 GB``."""
    return f"{size_bytes / BYTES_PER_GB:.{digits}f} GB"


def format_gib(size_bytes: float, *, digits: int = 1) -> str:
    """Return bytes as binary gigabytes: ``139.8 GiB``."""
    return f"{size_bytes / BYTES_PER_GIB:.{digits}f} GiB"


def format_money(amount: float, currency: str = "USD") -> str:
    """Return an amount with its currency label: ``7.74 USD``, with tenths of a cent or two digits below ten cents."""
    digits = max(3, 1 - math.floor(math.log10(abs(amount)))) if 0 < abs(amount) < 0.1 else 2
    return f"{amount:,.{digits}f} {currency}"


def format_duration(seconds: float) -> str:
    """Return seconds in the largest unit that keeps one digit before the point: ``41 s``, ``12.5 min``, ``3.1 h``.

    From 100 hours on, days stand beside the hours: ``240.0 h (10.0 days)``.
    """
    if seconds < SECONDS_PER_MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < SECONDS_PER_HOUR:
        return f"{seconds / SECONDS_PER_MINUTE:.1f} min"
    hours = f"{seconds / SECONDS_PER_HOUR:.1f} h"
    return hours if seconds < 100 * SECONDS_PER_HOUR else f"{hours} ({seconds / SECONDS_PER_DAY:.1f} days)"


def format_tokens(count: float) -> str:
    """Return a token count: ``512``, ``16.4 k``, ``3.30 M``, ``1.20 G``."""
    for size, letter in ((10**9, "G"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.2f} {letter}"
    return f"{count / 1000:.1f} k" if count >= 10_000 else f"{count:,.0f}"


def percent(share: float) -> str:
    """Return a share that somebody gave, with the digits it was given with: ``8%``, ``2.5%``, ``99.99%``."""
    return f"{share * 100:.6g}%"


def slurm_time(seconds: float, *, margin_share: float = 0.0) -> str:
    """Return a value for Slurm's ``--time``, rounded up to the minute: ``HH:MM:00`` or ``D-HH:MM:00``.

    Args:
        seconds: The expected wall time.
        margin_share: What to add to it, as a share: 0.2 asks for a fifth more.

    Raises:
        CostError: The time is not positive and finite, or the margin is negative.

    The forms are those of sbatch(1): "hours:minutes:seconds" and "days-hours:minutes:seconds".
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise CostError(f"A Slurm time must be positive and finite, not {seconds} s.")
    if not (math.isfinite(margin_share) and margin_share >= 0):
        raise CostError(f"A time margin is a share from 0 up (0.2 adds a fifth), not {margin_share}.")
    minutes = math.ceil(seconds * (1 + margin_share) / SECONDS_PER_MINUTE - 1e-9)  # 1e-9: 60.000000001 s is a minute
    days, rest = divmod(max(minutes, 1), 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock
