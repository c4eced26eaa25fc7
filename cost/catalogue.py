"""The catalogue of flavours and devices: what ships with this package, under what the user's own file says."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cost import price_csv
from cost.domain import Device, Flavour, Origin
from cost.errors import CostError, nearest

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Flavours and devices by name, in the order of their lists."""

    flavours_by_name: dict[str, Flavour]
    devices_by_id: dict[str, Device]

    @classmethod
    def load(cls, extra_csv: Path | None = None, *, refreshed_csv: Path | None = None) -> Catalogue:
        """Return the built-in catalogue, with a refreshed list and a user's own over it.

        Args:
            extra_csv: A price list in the form of ``cost.price_csv``; its values win, and its prices come first.
            refreshed_csv: What ``cost.price_csv.write`` kept of prices that were asked for; newer ones win by date.

        Raises:
            CostError: The list cannot be read, or names a device that is not in the catalogue.
        """
        catalogue = _built_in()
        for path, origin in ((refreshed_csv, Origin.LIVE), (extra_csv, Origin.USER)):
            if path is not None:
                catalogue = catalogue.merged(catalogue.read_list(path, origin))
        return catalogue

    @property
    def flavours(self) -> tuple[Flavour, ...]:
        """All flavours, in order."""
        return tuple(self.flavours_by_name.values())

    @property
    def gpu_ids(self) -> frozenset[str]:
        """Every GPU that a device or a flavour names; some flavours' GPUs have no device data yet."""
        return frozenset(self.devices_by_id) | {f.gpu_id for f in self.flavours_by_name.values() if f.gpu_id}

    def flavour(self, name: str) -> Flavour:
        """Return the flavour of that name, such as ``hf/h200``.

        Raises:
            CostError: There is none.
        """
        try:
            return self.flavours_by_name[name]
        except KeyError:
            raise CostError(
                f"Unknown flavour {name!r}.{nearest(name, self.flavours_by_name)} "
                "See `raysweep prices list`, or describe a card of your own with gpu_id or memory_bytes."
            ) from None

    def device(self, gpu_id: str) -> Device:
        """Return the device of that id, such as ``a100-pcie-40gb``.

        Raises:
            CostError: There is none.
        """
        try:
            return self.devices_by_id[gpu_id]
        except KeyError:
            raise CostError(
                f"Unknown gpu_id {gpu_id!r}.{nearest(gpu_id, self.devices_by_id)} "
                f"Known: {', '.join(self.devices_by_id)}."
            ) from None

    def merged(self, rows: Iterable[price_csv.Row]) -> Catalogue:
        """Return a catalogue in which these rows' facts win; their prices stand before those already there."""
        flavours = dict(self.flavours_by_name)
        fresh: dict[str, list[price_csv.Row]] = {}
        for row in rows:
            fresh.setdefault(row.name, []).append(row)
        for name, own in fresh.items():
            flavours[name] = self._flavour_of(name, own, flavours.get(name))
        return replace(self, flavours_by_name=flavours)

    def read_list(self, path: Path, origin: Origin) -> tuple[price_csv.Row, ...]:
        """Return the rows of a price list, whose cards this catalogue knows or the list itself describes.

        Raises:
            CostError: The list cannot be read, or names a device that is not in the catalogue.
        """
        rows, known = _rows(path, origin), self.gpu_ids
        for row in rows:
            if row.gpu_id and row.gpu_id not in known and row.memory_bytes is None:
                raise CostError(
                    f"{row.place}: unknown gpu_id {row.gpu_id!r}.{nearest(row.gpu_id, known)} "
                    "Give memory_bytes for a card that the catalogue does not know."
                )
        return rows

    def _flavour_of(self, name: str, rows: list[price_csv.Row], old: Flavour | None) -> Flavour:
        base = old or Flavour(name=name, provider=rows[0].provider)
        gpu_id, gpu_count = base.gpu_id, base.gpu_count
        listed_gb, memory_bytes = base.listed_gpu_memory_gb, base.memory_bytes
        outside_bytes = base.outside_allocator_bytes
        for row in rows:
            gpu_id = row.gpu_id or gpu_id
            gpu_count = row.gpu_count or gpu_count
            listed_gb = row.listed_gpu_memory_gb or listed_gb
            memory_bytes = row.memory_bytes or memory_bytes
            outside_bytes = row.outside_allocator_bytes or outside_bytes
        return replace(
            base,
            gpu_id=gpu_id,
            gpu_count=gpu_count,
            device=self.devices_by_id.get(gpu_id) if gpu_id else None,
            prices=tuple(row.price for row in rows if row.price) + base.prices,
            memory_bytes=memory_bytes,
            outside_allocator_bytes=outside_bytes,
            listed_gpu_memory_gb=listed_gb,
        )


def _rows(path: Path, origin: Origin) -> tuple[price_csv.Row, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"The price list {path} cannot be read: {error}.") from error
    return price_csv.read(lines, name=str(path), origin=origin)


@cache
def _built_in() -> Catalogue:
    with (DATA / "devices.csv").open(encoding="utf-8", newline="") as file:
        devices = {row["gpu_id"]: _device(row) for row in csv.DictReader(file)}
    with (DATA / "prices.csv").open(encoding="utf-8", newline="") as file:
        rows = price_csv.read(file, name="built-in catalogue", origin=Origin.BUILT_IN)
    return Catalogue(flavours_by_name={}, devices_by_id=devices).merged(rows)


def _device(row: dict[str, str]) -> Device:
    def scaled(column: str, scale: float) -> float | None:
        return float(row[column]) * scale if row[column] else None

    return Device(
        gpu_id=row["gpu_id"],
        name=row["gpu"],
        torch_device_name=row["torch_device_name"] or None,
        ray_accelerator_type=row["ray_accelerator_type"] or None,
        memory_bytes=int(row["memory_bytes"]) if row["memory_bytes"] else None,
        memory_bandwidth_bytes_per_second=scaled("memory_bandwidth_gb_s", 1e9),
        dense_bf16_flops_per_second=scaled("dense_bf16_tflops", 1e12),
        fp32_flops_per_second=scaled("fp32_tflops", 1e12),
        tf32_flops_per_second=scaled("tf32_tflops", 1e12),
        compute_capability=row["compute_capability"] or None,
        note=row["note"],
        source=row["source"],
    )
