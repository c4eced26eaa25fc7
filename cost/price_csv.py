"""The columns of a price list, and the reading and writing of one.

The built-in catalogue, a user's own file and a refreshed list share one form. The header names the columns in any
order; ``flavour`` is required (``provider/type``, or a ``provider`` column beside it), everything else may be left out
or empty.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from cost.domain import Flavour, Origin, Price
from cost.errors import CostError, nearest

N = TypeVar("N", int, float)

COLUMNS = (
    "provider",
    "flavour",
    "gpu_id",
    "gpu_count",
    "gpu_memory_gb",
    "memory_bytes",
    "outside_allocator_bytes",
    "price_usd_per_hour",
    "spot",
    "region",
    "as_of",
    "price_basis",
    "note",
    "source",
)

_OTHER_SEPARATORS = (";", "\t", "|")
"""What spreadsheets and people write where a comma belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a price list: a flavour's facts, as far as the line gives them, and at most one price."""

    name: str
    provider: str
    gpu_id: str | None
    gpu_count: int | None
    listed_gpu_memory_gb: float | None
    memory_bytes: int | None
    outside_allocator_bytes: int | None
    price: Price | None
    place: str
    """File and line, for an error's text."""


def read(lines: Iterable[str], *, name: str, origin: Origin) -> tuple[Row, ...]:
    """Return the rows of a price list.

    Args:
        lines: The file's lines, the header first.
        name: What errors call the file, and the source of a price that names none.
        origin: Given to every price.

    Raises:
        CostError: A column is unknown, a required one is missing, or a value cannot be read.
    """
    reader = csv.DictReader(lines)
    header = [column.strip() for column in reader.fieldnames or ()]
    if len(header) == 1 and (other := next((s for s in _OTHER_SEPARATORS if s in header[0]), None)):
        raise CostError(
            f"{name}: expected values separated by commas; {other!r} separates those of the first line. "
            "Write a comma between values and a point in numbers."
        )
    for column in header:
        if column not in COLUMNS:
            hint = nearest(column, COLUMNS)
            raise CostError(f"{name}: unknown column {column!r}.{hint} A price list has: {', '.join(COLUMNS)}.")
    if "flavour" not in header:
        raise CostError(f"{name}: no column 'flavour'. The first line must name the columns: {', '.join(COLUMNS)}.")
    reader.fieldnames = header
    return tuple(_row(cells, f"{name}, line {reader.line_num}", name, origin) for cells in reader)


def write(flavours: Iterable[Flavour]) -> str:
    """Return flavours and all their prices as the text of a price list that ``read`` takes back."""
    import io

    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for flavour in flavours:
        facts = {
            "provider": flavour.provider,
            "flavour": flavour.name.removeprefix(flavour.provider + "/"),
            "gpu_id": flavour.gpu_id or "",
            "gpu_count": flavour.gpu_count,
            "gpu_memory_gb": _text(flavour.listed_gpu_memory_gb),
            "memory_bytes": _text(flavour.memory_bytes),
            "outside_allocator_bytes": _text(flavour.outside_allocator_bytes),
        }
        for price in flavour.prices or (None,):
            writer.writerow(facts | (_price_cells(price) if price else {}))
    return out.getvalue()


def _text(value: float | None) -> str:
    return "" if value is None else repr(value)


def _price_cells(price: Price) -> dict[str, str]:
    return {
        "price_usd_per_hour": repr(price.usd_per_hour),
        "spot": "yes" if price.spot else "no",
        "region": price.region,
        "as_of": price.as_of.isoformat() if price.as_of else "",
        "price_basis": price.basis,
        "note": price.note,
        "source": price.source,
    }


def _row(cells: dict[str, str | None], place: str, file_name: str, origin: Origin) -> Row:
    if None in cells:
        raise CostError(f"{place}: more values than columns. Quote a value that holds a comma.")
    text = {column: (value or "").strip() for column, value in cells.items()}
    name = text["flavour"]
    if provider := text.get("provider", ""):
        name = name if name.startswith(provider + "/") else f"{provider}/{name}"
    if "/" not in name or name.startswith("/") or name.endswith("/"):
        raise CostError(f"{place}: a flavour is named provider/type, such as hf/h200, not {name!r}.")
    usd_per_hour = _number(text, "price_usd_per_hour", place, float, "a positive number of dollars")
    price = None
    if usd_per_hour is not None:
        price = Price(
            usd_per_hour=usd_per_hour,
            spot=_yes(text.get("spot", ""), place),
            region=text.get("region", ""),
            as_of=_date(text.get("as_of", ""), place, latest=_tomorrow() if origin is Origin.USER else date.max),
            basis=text.get("price_basis", ""),
            note=text.get("note", ""),
            source=text.get("source", "") or file_name,
            origin=origin,
            listed_in=file_name if origin is Origin.USER else "",
        )
    return Row(
        name=name,
        provider=provider or name.partition("/")[0],
        gpu_id=text.get("gpu_id", "") or None,
        gpu_count=_number(text, "gpu_count", place, int, "a whole number from 1 up"),
        listed_gpu_memory_gb=_number(text, "gpu_memory_gb", place, float, "a positive number"),
        memory_bytes=_number(text, "memory_bytes", place, int, "a whole number of bytes"),
        outside_allocator_bytes=_number(text, "outside_allocator_bytes", place, int, "a whole number of bytes"),
        price=price,
        place=place,
    )


_LEAST, _MOST = 1e-6, 1e18
"""Dollars, bytes or counts beyond these are damage, and sums of them are none that can be read."""


def _number(text: dict[str, str], column: str, place: str, kind: Callable[[str], N], expected: str) -> N | None:
    cell = text.get(column, "")
    if not cell:
        return None
    value: N | None
    try:
        value = kind(cell)
    except ValueError:
        value = None
    if value is None or not _LEAST <= value <= _MOST:
        raise CostError(f"{place}: {column} must be {expected}, or empty where it is not known; not {cell!r}.")
    return value


def _yes(cell: str, place: str) -> bool:
    if cell.lower() in ("yes", "true"):
        return True
    if cell.lower() in ("no", "false", ""):
        return False
    raise CostError(f"{place}: spot must be yes or no, not {cell!r}.")


def _date(cell: str, place: str, *, latest: date) -> date | None:
    try:
        day = date.fromisoformat(cell) if cell else None
    except ValueError:
        raise CostError(f"{place}: as_of must be a date such as 2026-08-22, not {cell!r}.") from None
    if day is not None and day > latest:
        raise CostError(
            f"{place}: as_of is the day on which the price was seen, so it cannot lie ahead; {cell!r} came."
        )
    return day


def _tomorrow() -> date:
    """The latest day that it can be anywhere: the newest of a user's prices wins, and one from ahead always would."""
    return datetime.now(tz=UTC).date() + timedelta(days=1)
