"""Prices asked for now: of Hugging Face's jobs hardware, and of other providers through gpuhunt where it is installed.

Nothing here runs unless it is called: no other part of this package opens a connection.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from datetime import UTC, date, datetime
from typing import Any

from cost.catalogue import Catalogue
from cost.domain import Origin
from cost.errors import CostError
from cost.price_files import Listing, Offer, gpuhunt_offer, listing_of

HF_ENDPOINT = "https://huggingface.co"
_UNITS_PER_HOUR = {"second": 3600, "minute": 60, "hour": 1}


def refresh_hf(catalogue: Catalogue, *, endpoint: str | None = None, timeout_seconds: float = 20.0) -> Listing:
    """Return today's prices of Hugging Face's jobs hardware (``GET /api/jobs/hardware``, which needs no token).

    Each entry has ``name``, ``accelerator`` (or null: ``type``, ``model``, ``quantity``, and ``vram`` of all its GPUs),
    ``unitCostMicroUSD`` and ``unitLabel``, as huggingface_hub's ``list_jobs_hardware`` reads them.

    Args:
        catalogue: Tells the device of a flavour that it knows.
        endpoint: Of the Hub; else ``HF_ENDPOINT`` of the environment, else the public one.
        timeout_seconds: Of the whole request.

    Raises:
        CostError: The Hub cannot be reached, or its answer is of another form.
    """
    base = (endpoint or os.environ.get("HF_ENDPOINT") or HF_ENDPOINT).rstrip("/")
    url = f"{base}/api/jobs/hardware"
    answer = _get_json(url, timeout_seconds)
    if not isinstance(answer, list):
        raise CostError(f"{url} answered {type(answer).__name__} where a list of hardware was expected.")
    offers = [_hf_offer(entry, url) for entry in answer]
    return listing_of(offers, f"Hugging Face {url}", catalogue, as_of=_today(), origin=Origin.LIVE)


def refresh_gpuhunt(catalogue: Catalogue, providers: tuple[str, ...] = ()) -> Listing:
    """Return today's prices of other providers, through the gpuhunt package.

    Args:
        catalogue: Tells the device of a flavour that it knows.
        providers: As gpuhunt calls them, such as ``aws``; all that it can ask, if empty.

    Raises:
        CostError: gpuhunt is not installed, or could not answer.
    """
    import logging

    try:
        gpuhunt = importlib.import_module("gpuhunt")  # not among this package's own dependencies
    except ImportError as error:
        raise CostError(
            "gpuhunt is not installed. Type `pip install gpuhunt`, or read a catalogue that lies on disk by naming its "
            "folder in GPUHUNT_CATALOG_DIR."
        ) from error
    log = logging.getLogger("gpuhunt")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it logs a traceback for every provider that it cannot reach
    try:
        items = gpuhunt.query(provider=list(providers) or None, min_gpu_count=1)
    except Exception as error:  # whatever its providers raise: network, credentials, parsing
        raise CostError(f"gpuhunt could not list prices: {type(error).__name__}: {error}") from error
    finally:
        log.setLevel(level)
    fields = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
    offers = []
    for item in items:
        cells = {name: "" if getattr(item, name) is None else str(getattr(item, name)) for name in fields}
        offers.append(gpuhunt_offer(cells, item.provider))
    return listing_of(offers, "gpuhunt", catalogue, as_of=_today(), origin=Origin.LIVE)


def _hf_offer(entry: Any, url: str) -> Offer:
    try:
        per_hour = _UNITS_PER_HOUR[entry["unitLabel"]]
        # Millionths of a dollar a minute are rounded: four digits of an hour's price are what is exact.
        price_usd_per_hour = round(float(entry["unitCostMicroUSD"]) * per_hour / 1e6, 4)
        name = str(entry["name"])
        accelerator = entry.get("accelerator") or {}
        is_gpu = accelerator.get("type") == "gpu"
        count = float(accelerator["quantity"]) if is_gpu else None
        all_gb = re.match(r"[\d.]+", str(accelerator.get("vram", "")))
        return Offer(
            provider="hf",
            machine=name,
            gpu_name=str(accelerator["model"]) if is_gpu else "",
            gpu_count=count,
            gpu_memory_gb=float(all_gb.group()) / count if all_gb and count else None,
            price_usd_per_hour=price_usd_per_hour,
            spot=False,
            region="",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CostError(
            f"{url} answered an entry of another form ({type(error).__name__}: {error}): {str(entry)[:200]}"
        ) from error


def _get_json(url: str, timeout_seconds: float) -> Any:
    import urllib.error
    import urllib.request

    if not url.startswith(("https://", "http://")):
        raise CostError(f"Prices are fetched from an http or https address, not {url}.")
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310  # checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:  # noqa: S310  likewise
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise CostError(f"{url} answered {error.code} {error.reason}. The prices known so far still count.") from error
    except (OSError, ValueError) as error:
        raise CostError(f"{url} could not be read: {error}. The prices known so far still count.") from error


def _today() -> date:
    return datetime.now(UTC).date()
