"""Flavours of the catalogue and one's own cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.catalogue import Catalogue
from cost.domain import Flavour
from raysweep.errors import SpaceError
from raysweep.space import parse_space, resolve


def _resolve(written: str) -> Flavour:
    (choice,) = parse_space(f"model: m\nflavours: [{written}]", "s").flavours
    return resolve(choice, Catalogue.load())


def test_a_name_is_looked_up_in_the_catalogue() -> None:
    (choice,) = parse_space("model: m\nflavours: [hf/h200]", "s").flavours
    flavour = resolve(choice, Catalogue.load())
    assert flavour.gpu_id == "h200"
    assert flavour.usd_per_hour is not None


def test_a_price_says_which_of_the_users_own_lists_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("flavour,gpu_id,price_usd_per_hour,source\nhf/h200,h200,4.5,our contract\n")
    catalogue = Catalogue.load(file)
    (listed, given) = parse_space(
        "model: m\nflavours: [hf/h200, {name: x/y, gpu_id: l4, price_usd_per_hour: 1}]", "s"
    ).flavours
    named = parse_space("model: m\nflavours: [{name: hf/h200, price_usd_per_hour: 3}]", "s").flavours[0]
    prices = [resolve(choice, catalogue).price() for choice in (listed, given, named)]
    assert [price and price.listed_in for price in prices] == [
        str(file),
        "the search space",
        f"the search space, which goes before {file}",
    ]


def test_ones_own_card_needs_only_a_name_and_its_memory() -> None:
    (choice,) = parse_space("model: m\nflavours: [{name: lab/mine, memory_bytes: 42430000000}]", "s").flavours
    flavour = resolve(choice, Catalogue.load())
    assert (flavour.total_memory_bytes, flavour.usd_per_hour, flavour.device) == (42430000000, None, None)


def test_of_ones_own_card_a_gpu_of_the_catalogue_tells_the_memory_and_the_speed() -> None:
    device = Catalogue.load().device("a100-pcie-40gb")
    for price, written in ((None, ""), (0.8, ", price_usd_per_hour: 0.8")):
        flavour = _resolve(f"{{name: slurm/a100, gpu_id: a100-pcie-40gb{written}}}")
        assert (flavour.total_memory_bytes, flavour.device) == (device.memory_bytes, device)
        assert (flavour.provider, flavour.usd_per_hour) == ("slurm", price)


def test_a_gpu_whose_memory_no_source_gives_asks_for_it() -> None:
    unknown = next(d.gpu_id for d in Catalogue.load().devices_by_id.values() if d.memory_bytes is None)
    with pytest.raises(SpaceError, match=r"s:2: flavours\[0\].*memory of lab/mine is not known.*Give memory_bytes"):
        _resolve(f"{{name: lab/mine, gpu_id: {unknown}}}")


def test_ones_own_card_cannot_lose_all_its_memory_outside_the_allocator() -> None:
    with pytest.raises(SpaceError, match=r"s:2: flavours\[0\].*expected less than .* of a100-pcie-40gb"):
        _resolve("{name: a, gpu_id: a100-pcie-40gb, outside_allocator_bytes: 90000000000}")


def test_what_the_space_says_of_a_flavour_wins_over_the_catalogue() -> None:
    text = "model: m\nflavours: [{name: hf/h200, price_usd_per_hour: 1.5, outside_allocator_bytes: 800000000}]"
    (choice,) = parse_space(text, "s").flavours
    flavour = resolve(choice, Catalogue.load())
    assert (flavour.usd_per_hour, flavour.outside_allocator_bytes) == (1.5, 800000000)
    assert flavour.total_memory_bytes > 140e9


def test_a_misspelt_flavour_names_the_place_and_the_nearest() -> None:
    with pytest.raises(SpaceError, match=r"s:2: flavours\[0\].*hf/h200.*\{name: hf/h20, gpu_id: …\}"):
        _resolve("hf/h20")


def test_a_misspelt_gpu_names_the_place_and_the_nearest() -> None:
    with pytest.raises(SpaceError, match=r"s:2: flavours\[0\].*a100-pcie-40gb"):
        _resolve("{name: a, gpu_id: a100-pcie-40g, memory_bytes: 42430000000}")
