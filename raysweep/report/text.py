"""A page for a terminal or a file: tables by rich, plain where nothing can show colour, never cut to fit."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from raysweep.report.page import Block, Cell, Facts, Heading, Page, Sentence, Table, Tone

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH_COLUMNS = 120
"""Where the output is no terminal and COLUMNS says nothing."""
MIN_WIDTH_COLUMNS = 40
_STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red", Tone.NOTE: "dim"}


def print_page(page: Page, file: TextIO | None = None) -> None:
    """Write a page to a file, standard output by default."""
    file = file or sys.stdout
    if not file.isatty():
        columns = os.environ.get("COLUMNS", "")
        file.write(page_text(page, width_columns=int(columns) if columns.isdigit() else WIDTH_COLUMNS))
        return
    console = Console(file=file, highlight=False)
    console.print(Text(page.title, style="bold"))
    for block in page.blocks:
        console.print(_renderable(block))


def page_text(page: Page, *, width_columns: int = WIDTH_COLUMNS) -> str:
    """Return a page as plain text of at most ``width_columns``."""
    sink = io.StringIO()
    console = Console(file=sink, width=max(width_columns, MIN_WIDTH_COLUMNS), color_system=None, highlight=False)
    console.print(Text(page.title))
    for block in page.blocks:
        console.print(_renderable(block))
    return "\n".join(line.rstrip() for line in sink.getvalue().splitlines()) + "\n"


def _renderable(block: Block) -> RenderableType:
    if isinstance(block, Heading):
        return Text(f"\n{block.text}", style="bold")
    if isinstance(block, Sentence):
        return Text(block.text, style=_STYLES[block.tone])
    if isinstance(block, Facts):
        return _facts(block)
    return _table(block)


def _facts(block: Facts) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(overflow="fold", style="dim")
    grid.add_column(overflow="fold")
    for name, value in block.pairs:
        grid.add_row(Text(name), _cell(value))
    return grid


def _table(block: Table) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption=block.caption or None)
    shown.caption_justify = "left"
    for column in block.columns:
        # Folding keeps every character: a number cut short by an ellipsis would be another number.
        shown.add_column(column.name, justify="right" if column.right else "left", overflow="fold")
    for row in block.rows:
        shown.add_row(*(_cell(value) for value in row))
    return shown


def _cell(value: Cell) -> Text:
    return Text(value.text, style=_STYLES[value.tone])
