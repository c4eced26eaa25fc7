"""Tables and numbers as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

BYTES_PER_GB = 1e9
NEXT_TO_NOTHING = 1e-4


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table's lines."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def gb(size_bytes: int | None) -> str:
    """Return bytes in GB (10^9), or a dash where there are none to tell."""
    return "-" if size_bytes is None else f"{size_bytes / BYTES_PER_GB:.3f}"


def worst(shares: Iterable[float]) -> str:
    """Return the largest share, without its sign; two more places where it is next to nothing."""
    largest = max((abs(share) for share in shares), default=0.0)
    return f"{largest:.4%}" if largest < NEXT_TO_NOTHING else f"{largest:.2%}"
