"""A page for a terminal or a file: tables by rich, plain where nothing can show colour, never cut to fit."""

from __future__ import annotations

import io
import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from raysweep.report.layout import INDENT_COLUMNS, Layout, lay_out
from raysweep.report.page import Block, Cell, Facts, Heading, Page, Sentence, Table, Tone

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

WIDTH_COLUMNS = 120
"""Where the output is no terminal and COLUMNS says nothing."""
MIN_WIDTH_COLUMNS = 40
_STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red", Tone.NOTE: "dim"}


def print_page(page: Page, file: TextIO | None = None) -> None:
    """Write a page to a file, standard output by default."""
    file = file or sys.stdout
    if not file.isatty():
        file.write(page_text(page, width_columns=plain_width_columns()))
        return
    console = Console(file=file, highlight=False)
    console.print(Text(page.title, style="bold"))
    for block in page.blocks:
        console.print(_renderable(block, console.width))


def plain_width_columns() -> int:
    """Return how wide output is that goes to no terminal: as COLUMNS says."""
    columns = os.environ.get("COLUMNS", "")
    return max(int(columns), MIN_WIDTH_COLUMNS) if columns.isdigit() else WIDTH_COLUMNS


def page_text(page: Page, *, width_columns: int = WIDTH_COLUMNS) -> str:
    """Return a page as plain text of at most ``width_columns``."""
    sink = io.StringIO()
    console = Console(file=sink, width=max(width_columns, MIN_WIDTH_COLUMNS), color_system=None, highlight=False)
    console.print(Text(page.title))
    for block in page.blocks:
        console.print(_renderable(block, console.width))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _renderable(block: Block, width: int) -> RenderableType:
    if isinstance(block, Heading):
        return Text(f"\n{block.text}", style="bold")
    if isinstance(block, Sentence):
        return Text(block.text, style=_STYLES[block.tone])
    if isinstance(block, Facts):
        return _facts(block)
    return _table(block, width)


def _facts(block: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(overflow="fold", style="dim")
    grid.add_column(overflow="fold")
    for name, value in block.pairs:
        grid.add_row(Text(name), _cell(value))
    return grid


def _table(block: Table, width: int) -> RenderableType:
    layout = lay_out(block, width)
    caption = Text(block.caption, style="dim italic")
    if not layout.grouped:
        body: list[RenderableType] = [_grid(block, layout, block.rows, with_head=True)]
        return Group(*body, caption) if block.caption else Group(*body)
    body = [Padding(_grid(block, layout, (), with_head=True), (0, 0, 0, INDENT_COLUMNS))]
    for name, rows in groupby(block.rows, key=lambda row: row[0]):
        grid = _grid(block, layout, tuple(rows), with_head=False)
        body += [_cell(name), Padding(grid, (0, 0, 0, INDENT_COLUMNS))]
    return Group(*body, caption) if block.caption else Group(*body)


def _grid(block: Table, layout: Layout, rows: tuple[tuple[Cell, ...], ...], *, with_head: bool) -> RichTable:
    start = 1 if layout.grouped else 0
    shown = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=with_head, padding=(0, 0, 0, layout.gap - 1)
    )
    for column, width in zip(block.columns[start:], layout.widths, strict=True):
        # Folding keeps every character: a number cut short by an ellipsis would be another number.
        justify: JustifyMethod = "right" if column.right else "left"
        shown.add_column(column.name, justify=justify, overflow="fold", width=width if layout.fits else None)
    for row in rows:
        shown.add_row(*(_cell(value) for value in row[start:]))
    return shown


def _cell(value: Cell) -> Text:
    return Text(value.text, style=_STYLES[value.tone])
