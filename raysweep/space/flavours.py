"""From a flavour as the space names it to a flavour with its device and prices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cost.domain import Flavour, Origin, Price
from cost.errors import CostError
from raysweep.errors import SpaceError
from raysweep.space.model import FlavourChoice

if TYPE_CHECKING:
    from cost.catalogue import Catalogue


def resolve(choice: FlavourChoice, catalogue: Catalogue) -> Flavour:
    """Return the catalogue's flavour of that name, with what the space says of it in place of what the catalogue says.

    A name that the catalogue lacks is one's own card, which must then give its ``memory_bytes``, or a ``gpu_id`` whose
    memory the catalogue knows.

    Raises:
        SpaceError: the flavour or the ``gpu_id`` is unknown, or the memory of one's own card is.
    """
    known = next((flavour for flavour in catalogue.flavours if flavour.name == choice.name), None)
    if known is None and choice.memory_bytes is None and choice.gpu_id is None:
        raise SpaceError(_unknown(choice, catalogue))
    flavour = known or Flavour(name=choice.name, provider=choice.name.split("/", maxsplit=1)[0])
    if choice.gpu_id is not None:
        try:
            flavour = dataclasses.replace(flavour, gpu_id=choice.gpu_id, device=catalogue.device(choice.gpu_id))
        except CostError as error:
            raise SpaceError(f"{_prefix(choice)}{error}") from None
    if choice.memory_bytes is not None:
        flavour = dataclasses.replace(flavour, memory_bytes=choice.memory_bytes)
    if known is None:
        _check_memory(flavour, choice)
    if choice.outside_allocator_bytes is not None:
        flavour = dataclasses.replace(flavour, outside_allocator_bytes=choice.outside_allocator_bytes)
    if choice.price_usd_per_hour is not None:
        flavour = dataclasses.replace(flavour, prices=(_own_price(choice.price_usd_per_hour, flavour.price()),))
    return flavour


def _own_price(usd_per_hour: float, listed: Price | None) -> Price:
    """Return the price that the space names, which says so where it goes before one of a user's own list."""
    before = f", which goes before {listed.listed_in}" if listed is not None and listed.listed_in else ""
    return Price(
        usd_per_hour=usd_per_hour,
        basis="as given",
        source="search space",
        origin=Origin.USER,
        listed_in=f"the search space{before}",
    )


def _check_memory(flavour: Flavour, choice: FlavourChoice) -> None:
    try:
        memory_bytes = flavour.total_memory_bytes
    except CostError as error:
        raise SpaceError(f"{_prefix(choice)}{error}") from None
    outside_bytes = choice.outside_allocator_bytes
    if outside_bytes is not None and outside_bytes >= memory_bytes:
        raise SpaceError(
            f"{_prefix(choice)}outside_allocator_bytes: expected less than the {memory_bytes:,} bytes of "
            f"{choice.gpu_id or choice.name}; {outside_bytes:,} came."
        )


def _unknown(choice: FlavourChoice, catalogue: Catalogue) -> str:
    try:
        catalogue.flavour(choice.name)
    except CostError as error:
        name = choice.name
        own = (
            f" For one's own card write {{name: {name}, gpu_id: …}} or {{name: {name}, memory_bytes: …}}; where a "
            "price list has it, name that list with --prices FILE."
        )
        return f"{_prefix(choice)}{error}{own}"
    raise AssertionError("a flavour that the catalogue lists is known")


def _prefix(choice: FlavourChoice) -> str:
    return f"{choice.where}: " if choice.where else ""
