"""A page as plain data: headings, sentences, facts and tables; ``text`` and ``html`` render it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """What a word or a cell says at a glance; the words say the same without it."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table, or one value of a list of facts."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading; numbers stand on the right."""

    name: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Heading:
    """Begins a part of the page."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """A line of running text."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; every row has one cell a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        """Refuse a row of another width."""
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"expected rows of {len(self.columns)} cells")


Block = Heading | Sentence | Facts | Table


@dataclass(frozen=True, slots=True)
class Page:
    """A title and what stands under it."""

    title: str
    blocks: tuple[Block, ...]


def cell(value: Cell | str | int | None, tone: Tone = Tone.PLAIN) -> Cell:
    """Return a cell; a missing value is shown as a dash, a whole number with thousands set apart."""
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell("-", Tone.NOTE)
    return Cell(f"{value:,}" if isinstance(value, int) else value, tone)


def table(columns: Sequence[str], rows: Iterable[Iterable[Cell | str | int | None]], caption: str = "") -> Table:
    """Return a table; a column whose name begins with ``>`` holds numbers and stands on the right."""
    heads = tuple(Column(name.removeprefix(">"), right=name.startswith(">")) for name in columns)
    return Table(heads, tuple(tuple(cell(value) for value in row) for row in rows), caption)


def facts(pairs: Iterable[tuple[str, Cell | str | int | None]]) -> Facts:
    """Return a list of facts."""
    return Facts(tuple((name, cell(value)) for name, value in pairs))
