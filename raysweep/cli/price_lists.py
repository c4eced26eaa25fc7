"""Price lists that ``prices refresh`` keeps between commands, one file a source, and the catalogue over all of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.errors import InputError
from raysweep.paths import CACHE_VARIABLE, cache_folder

if TYPE_CHECKING:
    from cost.catalogue import Catalogue
    from cost.price_csv import Row
    from cost.price_files import Listing

SOURCES = ("hf", "gpuhunt", "gpuhunt-files", "skypilot-files")
"""Asked for now: hf, gpuhunt. Read from a folder on this disk: the other two."""


def price_folder() -> Path:
    """Return where refreshed lists are kept."""
    return cache_folder() / "prices"


def load_catalogue(prices_csv: Path | None, kept: Sequence[tuple[str, str]] = ()) -> Catalogue:
    """Return the built-in catalogue under every refreshed list, the artifacts' lists, and the user's own over all.

    Args:
        prices_csv: The user's own list.
        kept: Lists that artifacts keep, by name and text; of two that contradict each other the first wins, and the
            user's own wins over all of them.

    Raises:
        CostError: a list cannot be read.
    """
    from cost import price_csv
    from cost.catalogue import Catalogue
    from cost.domain import Origin

    catalogue = Catalogue.load()
    given = () if prices_csv is None else catalogue.read_list(prices_csv, Origin.USER)
    for rows in (*reversed(_kept(kept, {row.name for row in given})), given):
        catalogue = catalogue.merged(rows)
    for source in SOURCES:
        file = price_folder() / f"{source}.csv"
        if file.is_file():
            origin = Origin.DISK if source.endswith("-files") else Origin.LIVE
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            catalogue = catalogue.merged(price_csv.read(lines, name=str(file), origin=origin))
    return catalogue


def _kept(lists: Sequence[tuple[str, str]], named: Set[str]) -> list[tuple[Row, ...]]:
    """Return the lists' rows, each without its price where an earlier list, or one given now, names the flavour.

    A catalogue counts with the newest of a user's prices, not with that of the list that was named last.
    """
    from cost import price_csv
    from cost.domain import Origin

    found: list[tuple[Row, ...]] = []
    seen = set(named)
    for name, text in lists:
        rows = price_csv.read(text.splitlines(keepends=True), name=name, origin=Origin.USER)
        found.append(tuple(replace(row, price=None) if row.name in seen else row for row in rows))
        seen |= {row.name for row in rows}
    return found


def refresh(source: str, folder: Path | None) -> tuple[Listing, Path]:
    """Ask a source for its prices, or read its files, and keep them; return the list and where it is kept.

    Raises:
        CostError: the source cannot be reached or read.
        InputError: a source on disk needs a folder, or the list cannot be kept.
    """
    from cost import price_files, price_refresh
    from cost.catalogue import Catalogue

    built_in = Catalogue.load()
    if source == "hf":
        listing = price_refresh.refresh_hf(built_in)
    elif source == "gpuhunt":
        listing = price_refresh.refresh_gpuhunt(built_in)
    else:
        place = folder or _named_folder(source)
        read = price_files.read_gpuhunt if source == "gpuhunt-files" else price_files.read_skypilot
        listing = read(place, built_in)
    return listing, _keep(source, listing.to_csv())


def _named_folder(source: str) -> Path:
    named = os.environ.get("GPUHUNT_CATALOG_DIR") if source == "gpuhunt-files" else None
    if not named:
        hint = " or GPUHUNT_CATALOG_DIR" if source == "gpuhunt-files" else ""
        raise InputError(f"--from {source}: expected the folder of its CSV files. Name it with --folder{hint}.")
    return Path(named)


def _keep(source: str, text: str) -> Path:
    target = price_folder() / f"{source}.csv"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).replace(target)
    except OSError as error:
        raise InputError(f"{target}: the prices cannot be kept: {error.strerror}. Set {CACHE_VARIABLE}.") from None
    return target
