"""The one error of this package, and the hint that goes with a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable


class CostError(Exception):
    """Input that cannot be used: the message says what was expected, what came and what to do next."""

    exit_code = 2


class NeverEndsError(CostError):
    """Work that interruptions would hardly ever let end: true of one flavour's seconds, and not of a faster one's."""


def nearest(value: object, known: Iterable[str]) -> str:
    """Return a hint such as ``" Did you mean 'hf/h200'?"`` for a misspelt name, or an empty string."""
    import difflib  # only errors need it

    match = difflib.get_close_matches(str(value), list(known), n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""
