"""Refreshed price lists are kept and count in every later command."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cost.catalogue import Catalogue
from cost.domain import Flavour, Price
from raysweep.cli.app import app
from raysweep.cli.edge import Exit

HARDWARE = [
    {
        "name": "h200",
        "unitCostMicroUSD": 100_000,
        "unitLabel": "minute",
        "accelerator": {"type": "gpu", "model": "H200", "quantity": "1", "vram": "141 GB", "manufacturer": "Nvidia"},
    }
]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUHUNT_CATALOG_DIR", raising=False)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(HARDWARE).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, ["prices", *words])


def _h200_usd_per_hour() -> float:
    data = json.loads(_run("show", "hf/h200", "--json").stdout)
    return float(data["flavours"][0]["usd_per_hour"])


def test_refreshed_prices_count_from_then_on(hub: None) -> None:
    assert _h200_usd_per_hour() == 5.0
    result = _run("refresh")
    assert result.exit_code == 0, result.output
    assert _h200_usd_per_hour() == 6.0


def test_ones_own_list_wins_over_refreshed_prices(hub: None, tmp_path: Path) -> None:
    _run("refresh")
    own = tmp_path / "own.csv"
    own.write_text("flavour,price_usd_per_hour\nhf/h200,4.5\n")
    data = json.loads(_run("show", "hf/h200", "--prices", str(own), "--json").stdout)
    assert data["flavours"][0]["usd_per_hour"] == 4.5


def test_a_source_that_does_not_answer_leaves_the_prices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    result = _run("refresh")
    assert result.exit_code == Exit.BAD_INPUT
    assert "could not be read" in result.stderr
    assert _h200_usd_per_hour() == 5.0


def test_a_catalogue_on_disk_is_read_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "skypilot"
    folder.mkdir()
    (folder / "aws.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\nmade-up.large,H200,1,7.5,,us-east-1\n"
    )
    assert _run("refresh", "--from", "skypilot-files", "--folder", str(folder)).exit_code == 0
    data = json.loads(_run("show", "aws/made-up.large", "--json").stdout)
    assert data["flavours"][0]["prices"][0]["origin"] == "disk"


@pytest.mark.parametrize("source", ["gpuhunt-files", "skypilot-files"])
def test_a_source_on_disk_needs_its_folder(source: str, tmp_path: Path) -> None:
    assert "--folder" in _run("refresh", "--from", source).stderr
    assert _run("refresh", "--from", source, "--folder", str(tmp_path)).exit_code == Exit.BAD_INPUT


def test_the_environment_names_the_folder_of_gpuhunts_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aws.csv").write_text(
        "instance_name,location,price,gpu_count,gpu_name,gpu_memory,spot\nmade-up.large,us-east-1,7.5,1,H200,141,False\n"
    )
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    assert _run("refresh", "--from", "gpuhunt-files").exit_code == 0
    data = json.loads(_run("show", "aws/made-up.large", "--json").stdout)
    assert data["flavours"][0]["usd_per_hour"] == 7.5


@pytest.mark.parametrize("words", [("check",), ("show", "aws/p5.48xlarge")])
def test_one_machine_type_at_two_prices_is_shown_with_both(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")  # a long path leaves the other columns their words in one line
    own = tmp_path / "other.csv"
    own.write_text("flavour,price_usd_per_hour,source\naws/p5.48xlarge,98.32,another list\n")
    page = _run(*words, "--prices", str(own)).stdout
    assert "55.04" in page
    assert "98.32" in page
    assert "another list" in page


def test_prices_to_distrust_are_named_with_both_sources(tmp_path: Path) -> None:
    result = _run("check", "--json")
    assert result.exit_code == Exit.NEGATIVE
    apart = json.loads(result.stdout)["disagreements"]
    assert all(entry["high_usd_per_hour"] > 1.1 * entry["low_usd_per_hour"] for entry in apart)
    assert all(entry["low_source"] != entry["high_source"] for entry in apart)
    shares = [entry["share"] for entry in apart]
    assert shares == sorted(shares, reverse=True)


def test_a_check_counts_first_and_names_old_prices_only_if_asked() -> None:
    short, long = (" ".join(_run("check", *words).stdout.split()) for words in ((), ("--all",)))
    data = json.loads(_run("check", "--json").stdout)
    for page in (short, long):
        assert page.index("compared") < page.index("Sources more than 10% apart")
        assert f"compared {data['compared']} that" in page
    old = next(entry["flavour"] for entry in data["old"] if entry["flavour"] == "gcp/a2-highgpu-1g")
    assert old in long
    assert old not in short
    assert "prices check --all" in short


def test_prices_that_all_agree_and_are_new_give_exit_code_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.now(tz=UTC).date()
    fresh = Catalogue(
        flavours_by_name={
            "p/m": Flavour(name="p/m", provider="p", prices=(Price(usd_per_hour=1.0, as_of=today, source="a"),))
        },
        devices_by_id={},
    )
    monkeypatch.setattr("raysweep.cli.prices.read_catalogue", lambda _: fresh)
    result = _run("check")
    assert result.exit_code == Exit.DONE, result.output
    assert "Nothing to distrust." in result.stdout
