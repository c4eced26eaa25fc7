"""What to distrust among prices: old ones, and sources that disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from cost.domain import Flavour, Origin, Price

OLD_DAYS = 90
"""Prices move in weeks: one H100 went 3.29, 3.49, 3.99 USD within three months."""

DISAGREE_SHARE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class OldPrice:
    """The price that a flavour is counted with, where it is old or of unknown age."""

    flavour: str
    price: Price
    age_days: int | None
    """None where the source is not dated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two sources' prices of the same machine on the same terms."""

    flavour: str
    low: Price
    high: Price

    @property
    def share(self) -> float:
        """How much dearer the high one is."""
        return self.high.usd_per_hour / self.low.usd_per_hour - 1


def old_prices(flavours: Iterable[Flavour], *, today: date, old_days: int = OLD_DAYS) -> tuple[OldPrice, ...]:
    """Return the flavours whose on-demand price is older than so many days, or not dated at all.

    A user's own price need not be dated: its age is theirs to know.
    """
    found = []
    for flavour in flavours:
        price = flavour.price()
        if price is None:
            continue
        age_days = None if price.as_of is None else (today - price.as_of).days
        undated = age_days is None and price.origin is not Origin.USER
        if undated or (age_days is not None and age_days > old_days):
            found.append(OldPrice(flavour=flavour.name, price=price, age_days=age_days))
    return tuple(found)


def disagreements(flavours: Iterable[Flavour], *, share: float = DISAGREE_SHARE) -> tuple[Disagreement, ...]:
    """Return the machines that two sources price more than ``share`` apart, on-demand and spot each for itself.

    Of each source its newest price counts. Prices of two named regions are not compared: they may well differ.
    """
    found = []
    for flavour in flavours:
        for spot in (False, True):
            newest = _newest_by_source(p for p in flavour.prices if p.spot == spot)
            pairs = [
                (low, high)
                for low in newest
                for high in newest
                if high.usd_per_hour > low.usd_per_hour * (1 + share)
                and low.source != high.source
                and (low.region == high.region or "" in (low.region, high.region))
            ]
            if pairs:
                low, high = max(pairs, key=lambda pair: pair[1].usd_per_hour / pair[0].usd_per_hour)
                found.append(Disagreement(flavour=flavour.name, low=low, high=high))
    return tuple(found)


def _newest_by_source(prices: Iterable[Price]) -> tuple[Price, ...]:
    newest: dict[tuple[str, str], Price] = {}
    for price in prices:
        key = (price.source, price.region)
        held = newest.get(key)
        if held is None or (price.as_of or date.min) > (held.as_of or date.min):
            newest[key] = price
    return tuple(newest.values())
