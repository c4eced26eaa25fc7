"""How wide a table's columns are on a terminal, and when the first one becomes headings between the rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from raysweep.report.page import Table

GAP_COLUMNS = 3
NARROW_GAP_COLUMNS = 2
COMFORTABLE_COLUMNS = 24
"""Of text that is broken between its words; a narrower line holds two or three words and is tiring to read."""
INDENT_COLUMNS = 2
"""Of rows under a heading of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a table's columns stand."""

    widths: tuple[int, ...]
    """One a column that stays a column."""
    gap: int
    grouped: bool
    """Whether the first column is shown as headings between the rows."""
    fits: bool
    """Whether no word is broken."""


def lay_out(shown: Table, width: int) -> Layout:
    """Return the widths with which ``shown`` takes at most ``width`` terminal columns.

    Numbers keep their width and text is broken between words. Where that leaves text too little room and the first
    column repeats itself, it becomes headings between the rows.
    """
    plain = _Columns(shown, 0)
    if plain.total(plain.comfortable, GAP_COLUMNS) <= width or not _repeats(shown):
        return plain.laid_out(width, grouped=False)
    return _Columns(shown, 1).laid_out(width - INDENT_COLUMNS, grouped=True)


def _repeats(shown: Table) -> bool:
    first = [row[0].text for row in shown.rows]
    in_a_row = sum(one == other for one, other in pairwise(first))
    return len(shown.columns) > 2 and in_a_row * 2 >= len(first)


class _Columns:
    """Widths of a table's columns from ``start`` on: unbroken, comfortable, and of the longest word."""

    def __init__(self, shown: Table, start: int) -> None:
        cells = [[column.name, *(row[i].text for row in shown.rows)] for i, column in enumerate(shown.columns)][start:]
        right = [column.right for column in shown.columns[start:]]
        self.whole = [max(len(text) for text in texts) for texts in cells]
        self.words = [max((len(word) for text in texts for word in text.split()), default=1) for texts in cells]
        each = tuple(zip(self.whole, self.words, right, strict=True))
        self.numbers = [whole if is_right else word for whole, word, is_right in each]
        self.comfortable = [
            whole if is_right else max(word, min(whole, COMFORTABLE_COLUMNS)) for whole, word, is_right in each
        ]

    def total(self, widths: list[int], gap: int) -> int:
        return sum(widths) + gap * (len(widths) - 1)

    def laid_out(self, width: int, *, grouped: bool) -> Layout:
        for floor, ceiling in (
            (self.comfortable, self.whole),
            (self.numbers, self.comfortable),
            (self.words, self.comfortable),
        ):
            for gap in (GAP_COLUMNS, NARROW_GAP_COLUMNS):
                if self.total(floor, gap) <= width:
                    widths = _grown(floor, ceiling, width - self.total(floor, gap))
                    return Layout(widths=widths, gap=gap, grouped=grouped, fits=True)
        return Layout(widths=tuple(self.words), gap=NARROW_GAP_COLUMNS, grouped=grouped, fits=False)


def _grown(floor: list[int], ceiling: list[int], spare: int) -> tuple[int, ...]:
    """Hand out what is spare, a terminal column at a time, to whichever is the narrowest of those that want more."""
    widths = list(floor)
    for _ in range(spare):
        wanting = [i for i, width in enumerate(widths) if width < ceiling[i]]
        if not wanting:
            break
        widths[min(wanting, key=widths.__getitem__)] += 1
    return tuple(widths)
