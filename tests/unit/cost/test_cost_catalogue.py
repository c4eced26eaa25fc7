from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost import price_csv
from cost.catalogue import Catalogue
from cost.domain import Flavour, Origin, Price
from cost.errors import CostError


@pytest.fixture
def catalogue():
    return Catalogue.load()


def own_list(tmp_path, text: str):
    path = tmp_path / "own.csv"
    path.write_text(text)
    return Catalogue.load(path)


def test_all_hugging_face_flavours_are_there_with_a_dated_price(catalogue):
    ours = [f for f in catalogue.flavours if f.provider == "hf"]
    assert len(ours) == 22
    assert all(p.as_of and p.source for f in ours for p in f.prices)


def test_an_h200_is_as_torch_reported_it(catalogue):
    flavour = catalogue.flavour("hf/h200")
    assert flavour.total_memory_bytes == 150_109_880_320
    assert flavour.usd_per_hour == 5.0
    assert flavour.device.dense_bf16_flops_per_second == 989e12
    assert flavour.device.memory_bandwidth_bytes_per_second == 4.8e12


def test_every_price_names_its_source(catalogue):
    assert all(p.source for f in catalogue.flavours for p in f.prices)


@pytest.mark.parametrize(
    ("name", "gpu_count", "usd_per_hour", "single"),
    [("hf/l40sx8", 8, 23.50, "hf/l40sx1"), ("aws/g6e.12xlarge", 4, 10.49264, "aws/g6e.xlarge")],
)
def test_a_machine_of_several_gpus_costs_its_own_price_not_a_multiple(catalogue, name, gpu_count, usd_per_hour, single):
    flavour = catalogue.flavour(name)
    assert (flavour.gpu_count, flavour.usd_per_hour) == (gpu_count, usd_per_hour)
    assert flavour.usd_per_hour != pytest.approx(gpu_count * catalogue.flavour(single).usd_per_hour, rel=0.01)


def test_a100_of_40_and_80_gb_and_the_three_h100_are_different_devices(catalogue):
    gpu_ids = {catalogue.flavour(n).gpu_id for n in ("gcp/a2-highgpu-1g", "gcp/a2-ultragpu-1g")}
    assert gpu_ids == {"a100-sxm-40gb", "a100-sxm-80gb"}
    h100 = [catalogue.device(i) for i in ("h100-sxm", "h100-pcie", "h100-nvl")]
    assert len({d.memory_bandwidth_bytes_per_second for d in h100}) == 3
    a100 = [catalogue.device(f"a100-{form}-{size}gb") for form in ("pcie", "sxm") for size in (40, 80)]
    assert len({d.memory_bytes for d in a100}) == len({d.torch_device_name for d in a100}) == 4


def test_a_bf16_peak_is_the_dense_one(catalogue):
    # Without sparsity tensor cores do twice as many products in bf16 as in TF32; a peak with sparsity would be 4 times.
    both = [
        d.dense_bf16_flops_per_second / d.tf32_flops_per_second
        for d in catalogue.devices_by_id.values()
        if d.dense_bf16_flops_per_second and d.tf32_flops_per_second
    ]
    assert len(both) >= 8
    assert both == pytest.approx([2.0] * len(both), rel=0.02)


def test_an_a100_of_40_gb_reports_39_4_to_39_6_gib(catalogue):
    for gpu_id in ("a100-pcie-40gb", "a100-sxm-40gb"):
        assert 39.4 <= catalogue.device(gpu_id).memory_bytes / 2**30 <= 39.6


def test_bf16_is_native_from_compute_capability_8_on(catalogue):
    native = {gpu_id: catalogue.device(gpu_id).has_native_bf16 for gpu_id in ("t4", "a10g", "l4", "h200", "b200")}
    assert native == {"t4": False, "a10g": True, "l4": True, "h200": True, "b200": True}


def test_the_nominal_gigabytes_of_a_price_list_are_never_taken_for_memory(tmp_path, catalogue):
    a100 = catalogue.flavour("gcp/a2-highgpu-1g")
    assert a100.listed_gpu_memory_gb == 40
    assert a100.total_memory_bytes == catalogue.device("a100-sxm-40gb").memory_bytes < 40 * 2**30
    unknown = own_list(tmp_path, "flavour,gpu_memory_gb\nlab/x,40\n").flavour("lab/x")
    with pytest.raises(CostError, match="memory_bytes"):
        _ = unknown.total_memory_bytes


def test_no_spot_price_repeats_the_on_demand_price_of_its_region(catalogue):
    for flavour in catalogue.flavours:
        on_demand = {(p.region, p.usd_per_hour) for p in flavour.prices if not p.spot}
        assert not on_demand & {(p.region, p.usd_per_hour) for p in flavour.prices if p.spot}, flavour.name


def test_spot_prices_are_by_region_and_never_the_default(catalogue):
    flavour = catalogue.flavour("aws/p5en.48xlarge")
    assert flavour.usd_per_hour == 63.296
    assert flavour.price(spot=True, region="us-east-2").usd_per_hour == 26.5714
    assert flavour.price(spot=True, region="eu-north-1").usd_per_hour == 39.8158
    assert flavour.price(spot=True, region="ap-south-1") is None


def test_of_several_dates_the_newest_price_counts(catalogue):
    assert catalogue.flavour("runpod/H100 SXM (secure)").usd_per_hour == 3.99


def test_an_unread_price_peak_or_memory_is_missing_not_zero(catalogue):
    assert catalogue.device("h100-nvl").dense_bf16_flops_per_second is None
    assert catalogue.flavour("runpod/B300 (secure)").device is None
    with pytest.raises(CostError, match="memory_bytes"):
        _ = catalogue.flavour("runpod/B300 (secure)").total_memory_bytes
    with pytest.raises(CostError, match="h100-pcie"):
        _ = catalogue.flavour("lambda/1x H100 PCIe").total_memory_bytes


def test_a_misspelt_flavour_names_the_nearest_and_the_next_command(catalogue):
    with pytest.raises(CostError, match=r"'hf/a100-larg'.*Did you mean 'hf/a100-large'.*prices list"):
        catalogue.flavour("hf/a100-larg")


def test_a_misspelt_device_names_the_nearest(catalogue):
    with pytest.raises(CostError, match="a100-pcie-40gb"):
        catalogue.device("a100-pcie-40")


def test_the_users_own_price_wins_over_a_newer_one(tmp_path):
    catalogue = own_list(tmp_path, "flavour,price_usd_per_hour,as_of\nhf/h200,4.25,2020-01-01\n")
    flavour = catalogue.flavour("hf/h200")
    assert flavour.usd_per_hour == 4.25
    assert flavour.price().origin is Origin.USER
    assert {p.usd_per_hour for p in flavour.prices} == {4.25, 5.0}
    assert flavour.total_memory_bytes == 150_109_880_320


def test_the_users_own_card_needs_only_a_name_and_memory(tmp_path):
    flavour = own_list(tmp_path, "flavour,memory_bytes\nlab/a100-40,42430000000\n").flavour("lab/a100-40")
    assert flavour.total_memory_bytes == 42_430_000_000
    assert (flavour.usd_per_hour, flavour.device, flavour.gpu_count) == (None, None, 1)


def test_loading_a_users_list_leaves_the_built_in_catalogue_alone(tmp_path):
    own_list(tmp_path, "flavour,price_usd_per_hour\nhf/h200,1\n")
    assert Catalogue.load().flavour("hf/h200").usd_per_hour == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flavor,price_usd_per_hour\nhf/h200,1\n", r"unknown column 'flavor'.*Did you mean 'flavour'"),
        ("flavour,price_usd_per_hour,as_of\nlab/x,1,2999-01-01\n", r"line 2: as_of .* cannot lie ahead; '2999-01-01'"),
        ("flavour,price\nhf/h200,1\n", r"unknown column 'price'\. Did you mean 'price_usd_per_hour' or"),
        ("flavour;price_usd_per_hour\nhf/h200;4,5\n", r"expected values separated by commas; ';' separates"),
        ("flavour,gpu_id\nlab/x,h100\n", r"unknown gpu_id 'h100'\. Did you mean 'h100-"),
        ("price_usd_per_hour\n1\n", "no column 'flavour'"),
        ("", "no column 'flavour'"),
        ("flavour,price_usd_per_hour\nhf/h200,-1\n", r"line 2: price_usd_per_hour must be .*'-1'"),
        ("flavour,price_usd_per_hour\nhf/h200,free\n", "'free'"),
        ("flavour,price_usd_per_hour\nhf/h200,1e300\n", "'1e300'"),
        ("flavour,price_usd_per_hour\nhf/h200,1e-300\n", "'1e-300'"),
        ("flavour,price_usd_per_hour\nhf/h200,nan\n", "'nan'"),
        ("flavour,gpu_count\nhf/h200,0\n", "gpu_count"),
        ("flavour,price_usd_per_hour,spot\nhf/h200,1,maybe\n", "spot must be yes or no"),
        ("flavour,price_usd_per_hour,as_of\nhf/h200,1,22.8.2026\n", "as_of must be a date"),
        ("flavour\nh200\n", "provider/type"),
        ("flavour,gpu_id\nlab/x,a100-pcie-40g\n", r"unknown gpu_id.*Did you mean 'a100-pcie-40gb'"),
        ("flavour,note\nhf/h200,a,b\n", "more values than columns"),
    ],
)
def test_a_price_list_that_cannot_be_used_says_where_and_why(tmp_path, text, message):
    with pytest.raises(CostError, match=message):
        own_list(tmp_path, text)


def test_a_missing_price_list_is_an_error_that_names_it(tmp_path):
    with pytest.raises(CostError, match=r"nowhere\.csv"):
        Catalogue.load(tmp_path / "nowhere.csv")


words = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=20).map(str.strip)
prices = st.builds(
    Price,
    usd_per_hour=st.floats(0.01, 1e4),
    spot=st.booleans(),
    region=words,
    as_of=st.none() | st.dates(),
    basis=words,
    note=words,
    source=words.filter(bool),
    origin=st.just(Origin.LIVE),
)


@given(
    prices=st.lists(prices, min_size=1, max_size=4).map(tuple),
    gpu_count=st.integers(1, 16),
    memory_bytes=st.none() | st.integers(1, 10**12),
)
def test_a_written_price_list_reads_back_the_same(prices, gpu_count, memory_bytes):
    flavour = Flavour(name="lab/x", provider="lab", gpu_count=gpu_count, memory_bytes=memory_bytes, prices=prices)
    rows = price_csv.read(price_csv.write([flavour]).splitlines(keepends=True), name="list", origin=Origin.LIVE)
    empty = Catalogue(flavours_by_name={}, devices_by_id={})
    assert empty.merged(rows).flavour("lab/x") == flavour


def test_an_undated_price_yields_to_a_dated_one():
    prices = (Price(usd_per_hour=1), Price(usd_per_hour=2, as_of=date(2020, 1, 1)))
    assert Flavour(name="a/b", provider="a", prices=prices).usd_per_hour == 2
