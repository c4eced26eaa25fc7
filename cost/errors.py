"""The one error of this package, and the hint that goes with a misspelt name."""

from __future__ import annotations

from collections.abc import Iterable


class CostError(Exception):
    """Input that cannot be used: the message says what was expected, what came and what to do next."""

    exit_code = 2


class NeverEndsError(CostError):
    """Work that interruptions would hardly ever let end: true of one flavour's seconds, and not of a faster one's."""


def nearest(value: object, known: Iterable[str], *, least: float = 0.6) -> str:
    """Return a hint such as ``" Did you mean 'hf/h200'?"`` for a misspelt name, or an empty string.

    Args:
        value: what was written.
        known: the names that may be written. Those that go on where the value's last word ends are named before all
            others, such as ``h100-sxm`` and ``h100-pcie`` for ``h100``.
        least: ``difflib``'s ratio below which a name is not near.
    """
    import difflib  # only errors need these
    import re

    text, names = str(value), list(known)
    longer = [name for name in names if text and re.match(re.escape(text) + "[^0-9a-z]", name, re.IGNORECASE)]
    match = longer[:3] or difflib.get_close_matches(text, names, n=1, cutoff=least)
    if not match:
        return ""
    *before, last = (repr(name) for name in match)
    return f" Did you mean {', '.join(before)} or {last}?" if before else f" Did you mean {last}?"
