"""Options that several commands share, and what they are read into."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cost.catalogue import Catalogue
    from cost.domain import Flavour
    from raysweep.data import Items
    from raysweep.space import SearchSpace
    from raysweep.space.cursor import Cursor
    from raysweep.space.document import Node

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MOST_GROWTH = 1_000_000
"""More, or the inverse, is a slip of the pen, and sums of such data would leave the range of numbers."""


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


def read_catalogue(prices_csv: Path | None, kept: Sequence[tuple[str, str]] = ()) -> Catalogue:
    """Return the catalogue with every refreshed list, under the artifacts' and the user's own lists if there are any.

    Args:
        prices_csv: The user's own list.
        kept: Lists that artifacts keep, by name and text.
    """
    from raysweep.cli.price_lists import load_catalogue

    return load_catalogue(prices_csv, kept)


def read_flavours(space: SearchSpace, catalogue: Catalogue) -> tuple[Flavour, ...]:
    """Return the space's flavours with their devices and prices."""
    from raysweep.space import resolve

    return tuple(resolve(choice, catalogue) for choice in space.flavours)


def read_names(text: str, option: str, example: str) -> tuple[str, ...]:
    """Return the names between an option's commas; a comma at the end is no name.

    Raises:
        InputError: there is none.
    """
    from raysweep.errors import InputError

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InputError(f"{option}: expected one or more, such as {example}; {text!r} came.")
    return names


def read_lengths(text: str) -> tuple[int, ...]:
    """Return the lengths that ``--lengths`` names, ascending, each once.

    Raises:
        InputError: they are not lengths.
    """
    from raysweep.errors import SpaceError
    from raysweep.space.document import Node
    from raysweep.space.parse import read_lengths as read

    parts = text.split(":")
    if len(parts) == 1:
        names = read_names(text, "--lengths", "4096,8192")
        return _of_option(Node([Node(_number(name), 1) for name in names], 1), "--lengths", read)
    if len(parts) != 3:
        raise SpaceError(f"--lengths: expected 4096,8192 or FROM:TO:BY such as 1024:8192:1024; {text!r} came.")
    ends = {key: Node(_number(part), 1) for key, part in zip(("from", "to", "by"), parts, strict=True)}
    return _of_option(Node(ends, 1, dict.fromkeys(ends, 1)), "--lengths", read)


def read_margin(text: str, option: str = "--margin") -> float:
    """Return the share of a device's memory, or of another number, that an option names, ``--margin`` by default.

    Raises:
        SpaceError: it is none.
    """
    from raysweep.space.document import Node
    from raysweep.space.parse import read_margin as read

    if option == "--margin":
        return _of_option(Node(_number(text), 1), option, read)
    expected = "a share from 0% to under 100%, such as 1%"
    return _of_option(Node(_number(text), 1), option, lambda at: at.share(expected, zero=True))


def read_slurm_margin(text: str) -> float:
    """Return the share of the projected time that ``--slurm-margin`` names.

    Raises:
        SpaceError: it is none.
    """
    from raysweep.space.document import Node

    expected = "a share of the projected time from 0% to under 100%, such as 20%"
    return _of_option(Node(_number(text), 1), "--slurm-margin", lambda at: at.share(expected, zero=True))


def _of_option(node: Node, option: str, read: Callable[[Cursor], T]) -> T:
    """Read an option as a search space is read; its errors then name the option, which has no lines."""
    from raysweep.errors import SpaceError
    from raysweep.space.cursor import Cursor

    try:
        return read(Cursor(node, option))
    except SpaceError as error:
        raise SpaceError(str(error).replace(f"{option}:1: ", f"{option}: ", 1)) from None


def _number(text: str) -> int | float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text.strip()


def data_option(command: F) -> F:
    """Add ``--data FILE`` or ``--data STAGE=FILE``, as often as there are files, and ``--tokenizer``."""
    data = click.option(
        "--data",
        "data_files",
        multiple=True,
        metavar="[STAGE=]FILE",
        help="Items of the run instead of those the space names: JSONL, Parquet, a saved dataset or a histogram.",
    )
    tokenizer = click.option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="What texts are counted with: a folder with tokenizer.json, or a Hub id. By default the space's "
        "data.tokenizer, else the model's own.",
    )
    return data(tokenizer(command))


def read_data(
    data_files: tuple[str, ...], space: SearchSpace, *, tokenizer: str | None, quiet: bool
) -> dict[str, Items]:
    """Return the items of each file by stage, in the order of the space's stages; none for no file.

    Args:
        data_files: As ``--data`` names them.
        space: Whose tokenizer counts texts where no other is named.
        tokenizer: As ``--tokenizer`` names it.
        quiet: No bar while texts are counted.

    Raises:
        DataError: a file cannot be read.
        InputError: two files are of one stage, or no file is named.
        SpaceError: the space has several stages, and a file is of none of them.
    """
    from raysweep.errors import InputError
    from raysweep.paths import exists

    found: dict[str, Path] = {}
    for written in data_files:
        name, _, path = written.rpartition("=") if "=" in written and not exists(Path(written)) else ("", "", written)
        if not path.strip():  # as of a variable that is not set: it is not this folder
            raise InputError(f"--data: expected FILE or STAGE=FILE; {written!r} came.")
        stage = name or Path(path).stem
        if stage in found:
            raise InputError(
                f"--data: expected each stage once; {stage!r} came twice. Write STAGE=FILE for one of them."
            )
        found[stage] = Path(path)
    return _read_files(_in_order(found, space), space, tokenizer, quiet=quiet)


def _in_order(files: Mapping[str, Path], space: SearchSpace) -> dict[str, Path]:
    """Return the files in the order of the space's stages, others after them.

    Raises:
        SpaceError: the space has several stages, and a file is of none of them.
    """
    if not files:
        return {}
    from raysweep.decision.plan import check_stage_names

    check_stage_names(files, space)
    planned = [stage.name for stage in space.stages() if stage.name in files]
    return {name: files[name] for name in dict.fromkeys([*planned, *files])}


def read_stages(space: SearchSpace, *, tokenizer: str | None = None, quiet: bool = False) -> dict[str, Items]:
    """Return the items of every stage that the space names.

    Args:
        space: Which names them.
        tokenizer: Instead of the space's.
        quiet: No bar while texts are counted.

    Raises:
        DataError: a file cannot be read.
    """
    return _read_files({stage.name: stage.items for stage in space.stages()}, space, tokenizer, quiet=quiet)


def _read_files(
    files: Mapping[str, Path], space: SearchSpace, tokenizer: str | None, *, quiet: bool
) -> dict[str, Items]:
    from raysweep.cli.progress import CountProgress
    from raysweep.data import read_items

    with CountProgress(quiet=quiet) as progress:
        return {
            stage: read_items(
                path,
                tokenizer=space.tokenizer if tokenizer is None else tokenizer,
                trust_remote_code=space.trust_remote_code,
                progress=progress.of(path.name),
            )
            for stage, path in files.items()
        }


def read_scale(scales: tuple[str, ...]) -> dict[str, float]:
    """Return the growth of each stage that ``--scale STAGE=X`` names.

    Raises:
        InputError: one is not of that form, or not a number that data can grow by, or a stage comes twice.
    """
    from raysweep.errors import InputError

    found: dict[str, float] = {}
    for written in scales:
        name, _, text = written.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = 0.0
        if not name or "," in written or not 1 / _MOST_GROWTH <= factor <= _MOST_GROWTH:
            raise InputError(
                f"--scale: expected STAGE=X with X from {1 / _MOST_GROWTH:g} to {_MOST_GROWTH:,}, such as stage2=3, "
                f"and --scale again for another stage; {written!r} came."
            )
        if name in found:
            raise InputError(f"--scale: expected each stage once; {name!r} came twice. Leave one out.")
        found[name] = factor
    return found
