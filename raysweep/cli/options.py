"""Options that several commands share, and what they are read into."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cost.catalogue import Catalogue
    from cost.domain import Flavour
    from raysweep.data import Items
    from raysweep.space import SearchSpace

F = TypeVar("F", bound=Callable[..., Any])


class AboveZero(click.FloatRange):
    """A finite number above 0; click's own range lets ``nan`` through."""

    def __init__(self) -> None:
        """Bound it below."""
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as click does."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def prices_option(command: F) -> F:
    """Add ``--prices FILE``: the user's own price list, which wins over every other."""
    return click.option(
        "--prices",
        "prices_csv",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="RAYSWEEP_PRICES",
        help="Your own price list (CSV); it wins over the built-in one.",
    )(command)


def lengths_option(command: F) -> F:
    """Add ``--lengths 4096,8192`` or ``--lengths 1024:65536:1024``."""
    return click.option(
        "--lengths", "lengths_text", metavar="L,L,…|FROM:TO:BY", help="Lengths in tokens instead of the space's."
    )(command)


def margin_option(command: F) -> F:
    """Add ``--margin 8%``."""
    return click.option(
        "--margin", "margin_text", metavar="SHARE", help="Memory kept free instead of the space's, as 8%."
    )(command)


def read_catalogue(prices_csv: Path | None) -> Catalogue:
    """Return the catalogue with every refreshed list, under the user's own list if there is one."""
    from raysweep.cli.price_lists import load_catalogue

    return load_catalogue(prices_csv)


def read_flavours(space: SearchSpace, catalogue: Catalogue) -> tuple[Flavour, ...]:
    """Return the space's flavours with their devices and prices."""
    from raysweep.space import resolve

    return tuple(resolve(choice, catalogue) for choice in space.flavours)


def read_lengths(text: str) -> tuple[int, ...]:
    """Return the lengths that ``--lengths`` names, ascending, each once.

    Raises:
        SpaceError: they are not lengths.
    """
    from raysweep.errors import SpaceError
    from raysweep.space.cursor import Cursor
    from raysweep.space.document import read_document
    from raysweep.space.parse import read_lengths as read

    parts = text.split(":")
    if len(parts) not in {1, 3}:
        raise SpaceError(f"--lengths: expected 4096,8192 or FROM:TO:BY such as 1024:8192:1024; {text!r} came.")
    written = f"{{from: {parts[0]}, to: {parts[1]}, by: {parts[2]}}}" if len(parts) == 3 else f"[{text}]"
    return read(Cursor(read_document(written, "--lengths"), "--lengths"))


def read_margin(text: str, option: str = "--margin") -> float:
    """Return the share that an option names, ``--margin`` by default.

    Raises:
        SpaceError: it is none.
    """
    from raysweep.space.cursor import Cursor
    from raysweep.space.document import read_document
    from raysweep.space.parse import read_margin as read

    return read(Cursor(read_document(text, option), option))


def data_option(command: F) -> F:
    """Add ``--data FILE`` or ``--data STAGE=FILE``, as often as there are files."""
    return click.option(
        "--data",
        "data_files",
        multiple=True,
        metavar="[STAGE=]FILE",
        help="Items of the run instead of those the space names: JSONL, Parquet, a saved dataset or a histogram.",
    )(command)


def read_data(data_files: tuple[str, ...], space: SearchSpace) -> dict[str, Items]:
    """Return the items of each file by stage; none for no file.

    Raises:
        DataError: a file cannot be read.
        InputError: two files are of one stage.
    """
    from raysweep.data import read_items
    from raysweep.errors import InputError
    from raysweep.paths import exists

    found: dict[str, Items] = {}
    for written in data_files:
        name, _, path = written.rpartition("=") if "=" in written and not exists(Path(written)) else ("", "", written)
        stage = name or Path(path).stem
        if stage in found:
            raise InputError(
                f"--data: expected each stage once; {stage!r} came twice. Write STAGE=FILE for one of them."
            )
        found[stage] = read_items(path, tokenizer=space.model, trust_remote_code=space.trust_remote_code)
    return found


def read_stages(space: SearchSpace) -> dict[str, Items]:
    """Return the items of every stage that the space names.

    Raises:
        DataError: a file cannot be read.
    """
    from raysweep.data import read_items

    return {
        stage.name: read_items(stage.items, tokenizer=space.model, trust_remote_code=space.trust_remote_code)
        for stage in space.stages()
    }


def read_scale(scales: tuple[str, ...]) -> dict[str, float]:
    """Return the growth of each stage that ``--scale STAGE=X`` names.

    Raises:
        InputError: one is not of that form, or not a positive number.
    """
    from raysweep.errors import InputError

    found: dict[str, float] = {}
    for written in scales:
        name, _, factor = written.rpartition("=")
        try:
            found[name] = float(factor)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < float("inf"):
            raise InputError(f"--scale: expected STAGE=X with X above 0, such as stage2=3; {written!r} came.")
    return found
