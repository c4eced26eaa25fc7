"""What to distrust among prices: old ones, and sources that disagree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
class Comparison:
    """Two sources' prices of the same machine on the same terms: of several sources the two furthest apart."""

    flavour: str
    low: Price
    high: Price

    @property
    def share(self) -> float:
        """How much dearer the high one is."""
        return self.high.usd_per_hour / self.low.usd_per_hour - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCheck:
    """What a look at all prices found."""

    flavours: int
    priced: int
    """Flavours with an on-demand price."""
    comparisons: tuple[Comparison, ...]
    """The furthest apart first."""
    old: tuple[OldPrice, ...]
    """The oldest first, those of unknown age last."""
    newest_days: int | None
    """Age of the newest dated price that a flavour is counted with; None where none is dated."""
    oldest_days: int | None

    @property
    def disagreements(self) -> tuple[Comparison, ...]:
        """The comparisons more than ``DISAGREE_SHARE`` apart."""
        return tuple(c for c in self.comparisons if c.share > DISAGREE_SHARE)

    @property
    def undated(self) -> int:
        """How many prices are of unknown age."""
        return sum(o.age_days is None for o in self.old)


def check_prices(flavours: Sequence[Flavour], *, today: date) -> PriceCheck:
    """Compare the sources of every flavour with one another, and every price's date with today's."""
    prices = [price for flavour in flavours if (price := flavour.price()) is not None]
    ages_days = [(today - price.as_of).days for price in prices if price.as_of is not None]
    old = old_prices(flavours, today=today)
    return PriceCheck(
        flavours=len(flavours),
        priced=len(prices),
        comparisons=comparisons(flavours),
        old=tuple(sorted(old, key=lambda o: (o.age_days is None, -(o.age_days or 0)))),
        newest_days=min(ages_days, default=None),
        oldest_days=max(ages_days, default=None),
    )


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


def comparisons(flavours: Iterable[Flavour]) -> tuple[Comparison, ...]:
    """Return the machines that two sources price, on-demand and spot each for itself, the furthest apart first.

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
                if high.usd_per_hour >= low.usd_per_hour
                and low.source != high.source
                and (low.region == high.region or "" in (low.region, high.region))
            ]
            if pairs:
                low, high = max(pairs, key=lambda pair: pair[1].usd_per_hour / pair[0].usd_per_hour)
                found.append(Comparison(flavour=flavour.name, low=low, high=high))
    return tuple(sorted(found, key=lambda comparison: -comparison.share))


def _newest_by_source(prices: Iterable[Price]) -> tuple[Price, ...]:
    newest: dict[tuple[str, str], Price] = {}
    for price in prices:
        key = (price.source, price.region)
        held = newest.get(key)
        if held is None or (price.as_of or date.min) > (held.as_of or date.min):
            newest[key] = price
    return tuple(newest.values())
