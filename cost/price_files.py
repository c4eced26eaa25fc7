"""Price lists of other tools, as they lie on disk: gpuhunt's and SkyPilot's catalogues, one CSV a provider.

A row that cannot be used is counted with its reason, never guessed at.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from cost import price_csv
from cost.catalogue import Catalogue
from cost.domain import Origin, Price
from cost.errors import CostError
from cost.gpu_names import gpu_id_of
from cost.price_csv import Row

# What other tools call a provider that the built-in catalogue calls otherwise.
_PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast"}

NO_GPU = "no GPU"
NO_PRICE = "no price, or a price of 0"
APART = "a GPU priced apart from its host machine"
NOT_SPOT = "a spot price that repeats the on-demand price"
UNREADABLE = "a number that cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Prices from somewhere else, ready for ``Catalogue.merged``, and what was left out of them."""

    source: str
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, int], ...] = ()
    """Reasons, and how many rows each left out."""

    def to_csv(self) -> str:
        """Return the prices in this package's own form, for ``Catalogue.load`` to read back."""
        return price_csv.write(Catalogue(flavours_by_name={}, devices_by_id={}).merged(self.rows).flavours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One price of one machine type, before it is checked."""

    provider: str
    machine: str
    gpu_name: str
    gpu_count: float | None
    gpu_memory_gb: float | None
    price_usd_per_hour: float | None
    """Of the whole machine."""
    spot: bool
    region: str
    description: str = ""


def read_gpuhunt(folder: Path, catalogue: Catalogue) -> Listing:
    """Return the prices of a folder that ``GPUHUNT_CATALOG_DIR`` would name: ``aws.csv`` and the like.

    Args:
        folder: With one CSV a provider.
        catalogue: Tells the device of a machine type that it knows, where the list alone does not.

    Raises:
        CostError: There is no such CSV, or one is not gpuhunt's.
    """
    columns = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
    listings = []
    for path in _csv_files(folder, "*.csv", "gpuhunt"):
        rows = _read(path, columns)
        source = f"gpuhunt catalogue {path.name}"
        offers, unreadable = _offers(rows, _gpuhunt_offers(path.stem))
        listings.append(listing_of(offers, source, catalogue, as_of=_file_date(path), unreadable=unreadable))
    return _joined(f"gpuhunt catalogue in {folder}", listings)


def read_skypilot(folder: Path, catalogue: Catalogue) -> Listing:
    """Return the prices of SkyPilot's catalogue: ``aws.csv`` or ``aws/vms.csv`` for each cloud.

    Some clouds' GPUs are priced apart from the machines they are put into (rows without an InstanceType): neither part
    is the price of a flavour, so both are left out.

    Raises:
        CostError: There is no such CSV, or one is not SkyPilot's.
    """
    columns = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
    listings = []
    for path in _csv_files(folder, "**/vms.csv", "SkyPilot", "*.csv"):
        rows = _read(path, columns)
        cloud = path.parent.name if path.name == "vms.csv" else path.stem
        apart = {row["AcceleratorName"] for row in rows if row["AcceleratorName"] and not row["InstanceType"]}
        whole = [row for row in rows if row["AcceleratorName"] not in apart]
        offers, unreadable = _offers(whole, _skypilot_offers(cloud))
        listing = listing_of(
            offers, f"SkyPilot catalogue {cloud}", catalogue, as_of=_file_date(path), unreadable=unreadable
        )
        skipped = ((APART, len(rows) - len(whole)),) if len(whole) < len(rows) else ()
        listings.append(replace(listing, skipped=listing.skipped + skipped))
    return _joined(f"SkyPilot catalogue in {folder}", listings)


def listing_of(
    offers: Iterable[Offer],
    source: str,
    catalogue: Catalogue,
    *,
    as_of: date,
    origin: Origin = Origin.DISK,
    unreadable: int = 0,
) -> Listing:
    """Return checked offers as rows; a price is that of the machine and is never scaled by its GPUs."""
    given = tuple(offers)
    on_demand = {(o.provider, o.machine, o.region, o.price_usd_per_hour) for o in given if not o.spot}
    skipped: Counter[str] = Counter({UNREADABLE: unreadable} if unreadable else {})
    rows: dict[tuple[object, ...], Row] = {}
    for offer in given:
        reason = _refusal(offer, on_demand)
        if reason is not None:
            skipped[reason] += 1
            continue
        key = (offer.provider, offer.machine, offer.region, offer.spot, offer.price_usd_per_hour)
        if key not in rows:  # zones of one region repeat a price
            rows[key] = _row(offer, source, catalogue, as_of, origin)
    return Listing(source=source, rows=tuple(rows.values()), skipped=tuple(skipped.items()))


def gpuhunt_offer(row: Mapping[str, str], provider: str) -> Offer:
    """Return the offer of one row of gpuhunt's columns.

    Raises:
        ValueError: A number cannot be read.
    """
    return Offer(
        provider=_PROVIDERS.get(provider, provider),
        machine=row["instance_name"],
        gpu_name=row["gpu_name"],
        gpu_count=_number(row["gpu_count"]),
        gpu_memory_gb=_number(row["gpu_memory"]),
        price_usd_per_hour=_number(row["price"]),
        spot=row["spot"].strip().lower() == "true",
        region=row["location"],
    )


def _gpuhunt_offers(provider: str) -> Callable[[dict[str, str]], list[Offer]]:
    return lambda row: [gpuhunt_offer(row, provider)]


def _skypilot_offers(cloud: str) -> Callable[[dict[str, str]], list[Offer]]:
    return lambda row: _skypilot_row(row, cloud)


def _skypilot_row(row: Mapping[str, str], cloud: str) -> list[Offer]:
    name = row["AcceleratorName"]
    on_demand = Offer(
        provider=_PROVIDERS.get(cloud, cloud),
        machine=row["InstanceType"],
        gpu_name=name,
        gpu_count=_number(row["AcceleratorCount"]),
        # SkyPilot's A100 is the one of 40 GB; the larger one is A100-80GB. Its memory column is of several meanings.
        gpu_memory_gb=40.0 if name == "A100" else None,
        price_usd_per_hour=_number(row["Price"]),
        spot=False,
        region=row["Region"],
        description=row.get("GpuInfo", ""),
    )
    spot_price = _number(row["SpotPrice"])
    if not spot_price:
        return [on_demand]
    return [on_demand, replace(on_demand, price_usd_per_hour=spot_price, spot=True)]


def _refusal(offer: Offer, on_demand: set[tuple[str, str, str, float | None]]) -> str | None:
    if not offer.gpu_name or not offer.gpu_count:
        return NO_GPU
    if not offer.machine:
        return APART
    if offer.price_usd_per_hour is None or not 0 < offer.price_usd_per_hour < float("inf"):
        return NO_PRICE
    if offer.spot and (offer.provider, offer.machine, offer.region, offer.price_usd_per_hour) in on_demand:
        return NOT_SPOT
    return None


def _row(offer: Offer, source: str, catalogue: Catalogue, as_of: date, origin: Origin) -> Row:
    name = f"{offer.provider}/{offer.machine}"
    known = catalogue.flavours_by_name.get(name)
    gpu_id = known.gpu_id if known else None
    gpu_id = gpu_id or gpu_id_of(
        offer.gpu_name, memory_gb=offer.gpu_memory_gb, description=f"{offer.machine} {offer.description}"
    )
    price = Price(
        usd_per_hour=offer.price_usd_per_hour or 0.0,  # refused above where it is missing
        spot=offer.spot,
        region=offer.region,
        as_of=as_of,
        basis="as listed",
        note="" if gpu_id else f"the list says {offer.gpu_name} and not its form",
        source=source,
        origin=origin,
    )
    return Row(
        name=name,
        provider=offer.provider,
        gpu_id=gpu_id,
        gpu_count=max(1, round(offer.gpu_count or 1)),
        listed_gpu_memory_gb=offer.gpu_memory_gb,
        memory_bytes=None,
        outside_allocator_bytes=None,
        price=price,
        place=source,
    )


def _offers(
    rows: Iterable[dict[str, str]], convert: Callable[[dict[str, str]], list[Offer]]
) -> tuple[list[Offer], int]:
    offers: list[Offer] = []
    unreadable = 0
    for row in rows:
        try:
            offers += convert(row)
        except ValueError:
            unreadable += 1
    return offers, unreadable


def _csv_files(folder: Path, pattern: str, tool: str, other: str | None = None) -> list[Path]:
    found = sorted(folder.glob(pattern)) or (sorted(folder.glob(other)) if other else [])
    if not found:
        raise CostError(f"No price list of {tool}'s in {folder}: expected {other or pattern}, one CSV a provider.")
    return found


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                raise CostError(f"{path}: no column {missing[0]!r}. Expected: {', '.join(columns)}.")
            return [{k: v or "" for k, v in row.items() if isinstance(k, str)} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CostError(f"The price list {path} cannot be read: {error}.") from error


def _file_date(path: Path) -> date:
    """The date of the file: these catalogues carry none of their own."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date()


def _number(cell: str) -> float | None:
    return float(cell) if cell.strip() else None


def _joined(source: str, listings: Iterable[Listing]) -> Listing:
    skipped: Counter[str] = Counter()
    rows: list[Row] = []
    for listing in listings:
        rows += listing.rows
        skipped.update(dict(listing.skipped))
    return Listing(source=source, rows=tuple(rows), skipped=tuple(skipped.items()))
