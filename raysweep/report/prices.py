"""The catalogue for people: flavours, their devices, and every price with its date and source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import date
from typing import Any

from cost.domain import Device, Flavour, Price
from cost.price_check import OLD_DAYS
from raysweep.report.labels import gb
from raysweep.report.page import Block, Heading, Page, Sentence, facts, table


def flavours_json(flavours: Sequence[Flavour], today: date) -> dict[str, Any]:
    """Return flavours with their devices and prices as plain data."""
    return {"flavours": [_flavour_json(flavour, today) for flavour in flavours]}


def flavours_page(flavours: Sequence[Flavour], today: date) -> Page:
    """Return one line a flavour: the price that is counted with, and its date."""
    rows = []
    for flavour in flavours:
        price = flavour.price()
        rows.append(
            (
                flavour.name,
                flavour.gpu_id or "none",
                flavour.gpu_count,
                gb(_memory_bytes(flavour)),
                None if price is None else f"{price.usd_per_hour:,.2f}",
                None if price is None else _dated(price, today),
                None if price is None else price.list_name,
            )
        )
    columns = ["flavour", "GPU", ">GPUs", ">GB each", ">USD/h", "as of", "list"]
    caption = "USD/h: of the whole machine, with all its GPUs. GB: 10^9 bytes."
    blocks: list[Block] = [table(columns, rows, caption)]
    if any((price := f.price()) and _is_old(price, today) for f in flavours):
        blocks.append(Sentence(f"! older than {OLD_DAYS} days: check it before you pay by it."))
    return Page(f"Prices, {len(flavours)} flavours", tuple(blocks))


def flavour_page(flavour: Flavour, today: date) -> Page:
    """Return everything known of one flavour."""
    blocks: list[Block] = [
        facts(
            [
                ("provider", flavour.provider),
                ("GPU", flavour.gpu_id or "none"),
                ("GPUs", flavour.gpu_count),
                ("memory of one GPU", None if (b := _memory_bytes(flavour)) is None else f"{b:,} bytes ({gb(b)} GB)"),
                *_device_pairs(flavour.device),
            ]
        ),
        Heading("Prices of the whole machine"),
        table(
            [">USD per hour", "kind", "region", "as of", "list", "basis", "source"],
            (
                (
                    f"{price.usd_per_hour:,.2f}",
                    "spot" if price.spot else "on demand",
                    price.region or "any",
                    _dated(price, today),
                    price.list_name,
                    price.basis or None,
                    price.source or None,
                )
                for price in flavour.prices
            ),
        ),
    ]
    return Page(flavour.name, tuple(blocks))


def _device_pairs(device: Device | None) -> list[tuple[str, str | None]]:
    if device is None:
        return []
    peak, bandwidth = device.dense_bf16_flops_per_second, device.memory_bandwidth_bytes_per_second
    return [
        ("device name", device.torch_device_name),
        ("dense bf16 peak", None if peak is None else f"{peak / 1e12:,.0f} TFLOP/s"),
        ("memory bandwidth", None if bandwidth is None else f"{bandwidth / 1e9:,.0f} GB/s"),
        ("compute capability", device.compute_capability),
        ("source of the device's data", device.source or None),
    ]


def _flavour_json(flavour: Flavour, today: date) -> dict[str, Any]:
    device = dataclasses.asdict(flavour.device) if flavour.device else None
    return {
        "flavour": flavour.name,
        "provider": flavour.provider,
        "gpu_id": flavour.gpu_id,
        "gpu_count": flavour.gpu_count,
        "memory_bytes": _memory_bytes(flavour),
        "usd_per_hour": flavour.usd_per_hour,
        "device": device,
        "prices": [
            {
                "usd_per_hour": price.usd_per_hour,
                "spot": price.spot,
                "region": price.region,
                "as_of": price.as_of.isoformat() if price.as_of else None,
                "age_days": (today - price.as_of).days if price.as_of else None,
                "basis": price.basis,
                "note": price.note,
                "source": price.source,
                "origin": price.origin.value,
                "listed_in": price.listed_in or None,
            }
            for price in flavour.prices
        ],
    }


def _memory_bytes(flavour: Flavour) -> int | None:
    return flavour.memory_bytes or (flavour.device.memory_bytes if flavour.device else None)


def _is_old(price: Price, today: date) -> bool:
    return price.as_of is not None and (today - price.as_of).days > OLD_DAYS


def _dated(price: Price, today: date) -> str:
    if price.as_of is None:
        return "no date"
    return f"{price.as_of.isoformat()}{' !' if _is_old(price, today) else ''}"
