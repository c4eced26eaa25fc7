import dataclasses
import json
import logging
import sys
import threading
import types
from collections.abc import Sequence
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cost.catalogue import Catalogue
from cost.domain import Flavour, Origin, Price
from cost.errors import CostError
from cost.gpu_names import gpu_id_of
from cost.price_check import Comparison, check_prices, comparisons, old_prices
from cost.price_files import APART, NO_GPU, NO_PRICE, NOT_SPOT, UNREADABLE, read_gpuhunt, read_skypilot
from cost.price_refresh import refresh_gpuhunt, refresh_hf

GPUHUNT = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags\n"
SKYPILOT = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,GpuInfo\n"


@pytest.fixture
def catalogue():
    return Catalogue.load()


def gpuhunt(tmp_path, catalogue, rows: str, provider: str = "aws"):
    (tmp_path / f"{provider}.csv").write_text(GPUHUNT + rows)
    return read_gpuhunt(tmp_path, catalogue)


def skypilot(tmp_path, catalogue, rows: str, cloud: str = "aws"):
    (tmp_path / cloud).mkdir()
    (tmp_path / cloud / "vms.csv").write_text(SKYPILOT + rows)
    return read_skypilot(tmp_path, catalogue)


# --- gpuhunt's catalogue on disk


def test_a_gpuhunt_price_is_the_machines_and_is_not_scaled_by_its_gpus(tmp_path, catalogue):
    listing = gpuhunt(tmp_path, catalogue, "g6e.12xlarge,us-east-1,10.49264,48,384,4,L40S,48.0,False,,nvidia,\n")
    (row,) = listing.rows
    assert (row.name, row.gpu_count, row.price.usd_per_hour) == ("aws/g6e.12xlarge", 4, 10.49264)
    assert (row.gpu_id, row.price.origin, row.price.region) == ("l40s", Origin.DISK, "us-east-1")


def test_a_catalogue_on_disk_is_dated_by_its_file(tmp_path, catalogue):
    (row,) = gpuhunt(tmp_path, catalogue, "x,us,1.0,4,16,1,T4,16.0,False,,nvidia,\n").rows
    assert row.price.as_of == datetime.now(UTC).date()


def test_spot_prices_keep_their_region(tmp_path, catalogue):
    rows = (
        "p5en.48xlarge,us-east-2,26.5714,192,2048,8,H200,141.0,True,,nvidia,\n"
        "p5en.48xlarge,eu-north-1,39.8158,192,2048,8,H200,141.0,True,,nvidia,\n"
    )
    flavour = catalogue.merged(gpuhunt(tmp_path, catalogue, rows).rows).flavour("aws/p5en.48xlarge")
    assert flavour.price(spot=True, region="us-east-2").usd_per_hour == 26.5714
    assert flavour.usd_per_hour == 63.296


def test_a_spot_price_that_repeats_the_on_demand_price_is_none(tmp_path, catalogue):
    rows = "x,us,1.5,4,16,1,L4,24.0,False,,nvidia,\nx,us,1.5,4,16,1,L4,24.0,True,,nvidia,\n"
    listing = gpuhunt(tmp_path, catalogue, rows)
    assert [r.price.spot for r in listing.rows] == [False]
    assert dict(listing.skipped) == {NOT_SPOT: 1}


def test_rows_without_a_gpu_or_a_price_are_counted_with_their_reason(tmp_path, catalogue):
    rows = (
        "cpu,us,0.5,4,16,0,,,False,,,\n"
        "free,us,0,4,16,1,L4,24.0,False,,nvidia,\n"
        "odd,us,n/a,4,16,1,L4,24.0,False,,nvidia,\n"
    )
    listing = gpuhunt(tmp_path, catalogue, rows)
    assert listing.rows == ()
    assert dict(listing.skipped) == {NO_GPU: 1, NO_PRICE: 1, UNREADABLE: 1}


def test_providers_that_gpuhunt_calls_otherwise_join_ours(tmp_path, catalogue):
    (row,) = gpuhunt(
        tmp_path, catalogue, "gpu_1x_a6000,us,1.09,14,100,1,A6000,48.0,False,,nvidia,\n", "lambdalabs"
    ).rows
    assert row.name in catalogue.flavours_by_name


# --- SkyPilot's catalogue on disk


def test_skypilot_gives_an_on_demand_and_a_spot_price_of_the_whole_machine(tmp_path, catalogue):
    listing = skypilot(tmp_path, catalogue, "g6.12xlarge,L4,4.0,48,192,4.6016,1.9,us-east-1,\n")
    assert [(r.price.usd_per_hour, r.price.spot, r.gpu_count) for r in listing.rows] == [
        (4.6016, False, 4),
        (1.9, True, 4),
    ]


def test_a_gpu_priced_apart_from_its_host_is_no_flavours_price(tmp_path, catalogue):
    rows = (
        ",A100,1,,,3.10156,1.8563,us-central1,\n"
        "a2-highgpu-1g,A100,1,12,85,0.57,0.2,us-central1,\n"
        "g2-standard-4,L4,1,4,16,0.71,0.3,us-central1,\n"
    )
    listing = skypilot(tmp_path, catalogue, rows, "gcp")
    assert {r.name for r in listing.rows} == {"gcp/g2-standard-4"}
    assert dict(listing.skipped) == {APART: 2}


def test_a_spot_column_that_repeats_the_price_gives_no_spot_price(tmp_path, catalogue):
    listing = skypilot(tmp_path, catalogue, "1x_L40S_SECURE,L40S,1.0,16,62,1.09,1.09,CA,\n", "runpod")
    assert [r.price.spot for r in listing.rows] == [False]
    assert dict(listing.skipped) == {NOT_SPOT: 1}


def test_a_spot_price_of_zero_is_missing(tmp_path, catalogue):
    listing = skypilot(tmp_path, catalogue, '1x-L40S,L40S,1,32,64,0.60,0.00,"Bulgaria, BG, EU",\n', "vast")
    assert [(r.price.usd_per_hour, r.price.spot) for r in listing.rows] == [(0.6, False)]


def test_zones_that_repeat_a_price_count_once(tmp_path, catalogue):
    listing = skypilot(tmp_path, catalogue, "g6.xlarge,L4,1,4,16,0.8,,us-east-1,\n" * 3)
    assert len(listing.rows) == 1


def test_a_flat_folder_of_one_csv_a_cloud_is_read_too(tmp_path, catalogue):
    (tmp_path / "aws.csv").write_text(SKYPILOT + "g6.xlarge,L4,1,4,16,0.8,,us-east-1,\n")
    assert read_skypilot(tmp_path, catalogue).rows[0].name == "aws/g6.xlarge"


@pytest.mark.parametrize("read", [read_gpuhunt, read_skypilot])
def test_a_folder_without_price_lists_or_with_others_is_an_error(tmp_path, catalogue, read):
    with pytest.raises(CostError, match="one CSV a provider"):
        read(tmp_path, catalogue)
    (tmp_path / "aws.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CostError, match=r"aws\.csv: no column"):
        read(tmp_path, catalogue)


# --- which device is meant


@pytest.mark.parametrize(
    ("name", "memory_gb", "description", "gpu_id"),
    [
        ("H200", 141, "", "h200"),
        ("NVIDIA L40S", None, "", "l40s"),
        ("A100-80GB", None, "1x_A100-80GB {'Name': 'A100 PCIe'}", "a100-pcie-80gb"),
        ("A100", 40, "A100-PCIe-40GB", "a100-pcie-40gb"),
        ("A100", 80, "8x A100 SXM4", "a100-sxm-80gb"),
        ("H100", 80, "gpu_1x_h100_pcie", "h100-pcie"),
        ("H100", 80, "gpu_8x_h100_sxm5", "h100-sxm"),
        ("H100NVL", 94, "", "h100-nvl"),
        ("RTX PRO 6000", 96, "Blackwell Server Edition", "rtx-pro-6000-server"),
        ("GH200", 96, "", "gh200-96gb"),
        ("GH200", 144, "", None),
        ("A100", 80, "Standard_X", None),
        ("A100", None, "8x A100 SXM4", None),
        ("H100", 80, "p5.48xlarge", None),
        ("RTX PRO 6000", 96, "", None),
        ("L40", 48, "", None),
        ("RTX4090", 24, "", None),
    ],
)
def test_a_gpu_is_matched_whole_and_stays_untold_where_its_form_is(name, memory_gb, description, gpu_id):
    assert gpu_id_of(name, memory_gb=memory_gb, description=description) == gpu_id


def test_a_machine_type_that_the_catalogue_knows_tells_the_form(tmp_path, catalogue):
    (row,) = gpuhunt(tmp_path, catalogue, "p5.48xlarge,us-east-1,98.32,192,2048,8,H100,80.0,False,,nvidia,\n").rows
    assert row.gpu_id == "h100-sxm"


# --- age and disagreement


def disagreements(flavours: Sequence[Flavour]) -> tuple[Comparison, ...]:
    return check_prices(flavours, today=date(2026, 11, 10)).disagreements


def test_one_machine_at_two_prices_in_two_sources_is_shown_with_both(tmp_path, catalogue):
    rows = gpuhunt(tmp_path, catalogue, "p5.48xlarge,us-east-1,98.32,192,2048,8,H100,80.0,False,,nvidia,\n").rows
    (found,) = disagreements([catalogue.merged(rows).flavour("aws/p5.48xlarge")])
    assert (found.low.usd_per_hour, found.high.usd_per_hour) == (55.04, 98.32)
    assert found.low.source != found.high.source
    assert found.share == pytest.approx(0.786, abs=0.001)


def two_prices(first: float, second: float, **changes: object) -> Flavour:
    prices = (Price(usd_per_hour=first, source="a"), Price(usd_per_hour=second, source="b", **changes))
    return Flavour(name="p/m", provider="p", prices=prices)


def test_sources_within_ten_per_cent_agree():
    assert disagreements([two_prices(1.0, 1.09)]) == ()
    assert len(disagreements([two_prices(1.0, 1.11)])) == 1


def test_spot_and_on_demand_or_two_regions_are_no_disagreement():
    assert disagreements([two_prices(1.0, 2.0, spot=True)]) == ()
    regions = (Price(usd_per_hour=1, region="eu", source="a"), Price(usd_per_hour=2, region="us", source="b"))
    assert disagreements([Flavour(name="p/m", provider="p", prices=regions)]) == ()


def test_a_source_that_changed_its_price_does_not_disagree_with_itself():
    prices = tuple(Price(usd_per_hour=1 + i, source="a", as_of=date(2026, i, 1)) for i in (1, 2))
    assert disagreements([Flavour(name="p/m", provider="p", prices=prices)]) == ()


def test_every_machine_that_two_sources_price_is_compared_the_furthest_apart_first():
    pairs = {"close": 1.02, "far": 3.0, "apart": 1.5, "same": 1.0}
    flavours = [dataclasses.replace(two_prices(1.0, usd), name=f"p/{name}") for name, usd in pairs.items()]
    alone = Flavour(name="p/alone", provider="p", prices=(Price(usd_per_hour=1.0, source="a"),))
    assert [c.flavour for c in comparisons([*flavours, alone])] == ["p/far", "p/apart", "p/close", "p/same"]
    assert [c.flavour for c in disagreements([*flavours, alone])] == ["p/far", "p/apart"]


def test_a_check_counts_flavours_prices_and_ages():
    dates = (date(2026, 11, 8), date(2025, 11, 10), None)
    prices = [(Price(usd_per_hour=1.0, as_of=day, source="a"),) for day in dates]
    flavours = [Flavour(name=f"p/{i}", provider="p", prices=p) for i, p in enumerate([*prices, ()])]
    found = check_prices(flavours, today=date(2026, 11, 10))
    assert (found.flavours, found.priced, found.undated) == (4, 3, 1)
    assert (found.newest_days, found.oldest_days) == (2, 365)
    assert [(o.flavour, o.age_days) for o in found.old] == [("p/1", 365), ("p/2", None)]


def test_prices_past_an_age_or_without_a_date_are_named(catalogue):
    named = {o.flavour: o.age_days for o in old_prices(catalogue.flavours, today=date(2026, 11, 10))}
    assert named["gcp/a2-highgpu-1g"] == 614
    assert named["lambda/gpu_1x_gh200"] is None
    assert "azure/Standard_NC24ads_A100_v4" not in named


def test_a_users_own_price_needs_no_date():
    flavour = Flavour(name="p/m", provider="p", prices=(Price(usd_per_hour=1, origin=Origin.USER),))
    assert old_prices([flavour], today=date(2026, 1, 1)) == ()


# --- refreshing over the network, from a server on this machine


def entry(name: str, micro_usd: int, model: str | None = None, quantity: str = "1", vram: str = "141 GB"):
    accelerator = None
    if model:
        accelerator = {"type": "gpu", "model": model, "quantity": quantity, "vram": vram, "manufacturer": "Nvidia"}
    return {
        "name": name,
        "prettyName": name,
        "cpu": "23 vCPU",
        "ram": "256 GB",
        "accelerator": accelerator,
        "unitCostMicroUSD": micro_usd,
        "unitCostUSD": micro_usd / 1e6,
        "unitLabel": "minute",
    }


@pytest.fixture
def hub():
    """A server that answers what ``answer`` holds, and the paths it was asked for."""
    state = types.SimpleNamespace(status=200, body=b"[]", paths=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            self.send_response(state.status)
            self.end_headers()
            self.wfile.write(state.body)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_hugging_faces_prices_by_the_minute_become_prices_by_the_hour(hub, catalogue):
    hub.body = json.dumps(
        [entry("cpu-basic", 167), entry("h200", 91_667, "H200"), entry("l4x4", 63_333, "L4", "4", "96 GB")]
    ).encode()
    listing = refresh_hf(catalogue, endpoint=hub.endpoint)
    assert hub.paths == ["/api/jobs/hardware"]
    assert {r.name: r.price.usd_per_hour for r in listing.rows} == {"hf/h200": 5.5, "hf/l4x4": 3.8}
    assert {r.name: (r.gpu_count, r.listed_gpu_memory_gb) for r in listing.rows}["hf/l4x4"] == (4, 24.0)
    assert dict(listing.skipped) == {NO_GPU: 1}


def test_a_refreshed_price_wins_by_its_date_and_lasts_in_a_file(hub, catalogue, tmp_path):
    hub.body = json.dumps([entry("h200", 91_667, "H200")]).encode()
    listing = refresh_hf(catalogue, endpoint=hub.endpoint)
    assert catalogue.merged(listing.rows).flavour("hf/h200").usd_per_hour == 5.5
    kept = tmp_path / "refreshed.csv"
    kept.write_text(listing.to_csv())
    flavour = Catalogue.load(refreshed_csv=kept).flavour("hf/h200")
    assert [(p.usd_per_hour, p.origin) for p in flavour.prices] == [(5.5, Origin.LIVE), (5.0, Origin.BUILT_IN)]


def test_a_users_price_still_wins_over_a_refreshed_one(tmp_path):
    mine, kept = tmp_path / "mine.csv", tmp_path / "refreshed.csv"
    mine.write_text("flavour,price_usd_per_hour\nhf/h200,4.0\n")
    kept.write_text("flavour,price_usd_per_hour,as_of\nhf/h200,5.5,2026-12-01\n")
    assert Catalogue.load(mine, refreshed_csv=kept).flavour("hf/h200").usd_per_hour == 4.0


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, b"", "503"),
        (200, b"<html>", "could not be read"),
        (200, b'{"error": "no"}', "a list of hardware was expected"),
        (200, b'[{"name": "h200"}]', "another form"),
        (200, b"[3]", "another form"),
    ],
)
def test_an_answer_of_another_form_is_one_clear_error(hub, catalogue, status, body, message):
    hub.status, hub.body = status, body
    with pytest.raises(CostError, match=message):
        refresh_hf(catalogue, endpoint=hub.endpoint)


def test_a_hub_that_is_not_there_is_one_clear_error(catalogue):
    with pytest.raises(CostError, match="could not be read"):
        refresh_hf(catalogue, endpoint="http://127.0.0.1:9", timeout_seconds=2)


def test_only_web_addresses_are_fetched(catalogue):
    with pytest.raises(CostError, match="http"):
        refresh_hf(catalogue, endpoint="file:///etc")


def test_the_environment_names_another_hub(hub, catalogue, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    assert refresh_hf(catalogue).rows == ()


def fake_gpuhunt(monkeypatch, query) -> None:
    module = types.ModuleType("gpuhunt")
    module.query = query
    monkeypatch.setitem(sys.modules, "gpuhunt", module)


def test_prices_through_gpuhunt_are_those_of_its_items(catalogue, monkeypatch):
    item = types.SimpleNamespace(
        provider="runpod",
        instance_name="NVIDIA H200",
        location="US",
        price=4.39,
        gpu_count=1,
        gpu_name="H200",
        gpu_memory=141.0,
        spot=False,
    )
    asked = {}
    fake_gpuhunt(monkeypatch, lambda **options: asked.update(options) or [item])
    (row,) = refresh_gpuhunt(catalogue, ("runpod",)).rows
    assert asked == {"provider": ["runpod"], "min_gpu_count": 1}
    assert (row.name, row.gpu_id, row.price.usd_per_hour) == ("runpod/NVIDIA H200", "h200", 4.39)
    assert row.price.origin is Origin.LIVE


def test_without_gpuhunt_the_error_says_what_to_type(catalogue, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(CostError, match=r"pip install gpuhunt.*GPUHUNT_CATALOG_DIR"):
        refresh_gpuhunt(catalogue)


def test_a_failure_inside_gpuhunt_is_one_clear_error(catalogue, monkeypatch, caplog):
    def query(**_: object):
        logging.getLogger("gpuhunt.providers").error("a page of traceback")
        raise RuntimeError("no credentials")

    fake_gpuhunt(monkeypatch, query)
    with pytest.raises(CostError, match="no credentials"):
        refresh_gpuhunt(catalogue)
    assert caplog.text == ""
