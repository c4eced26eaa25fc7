"""Sweeps in a process of their own: their start, their end by force, and what is left then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_fakes import Factory, began, flavour

from raysweep.records import Source
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace
from raysweep.store import Artifact
from raysweep.sweep import SweepOptions, run_sweep

SCRIPT = Path(__file__).with_name("sweep_script.py")
LENGTHS = list(range(1, 11))


def start(folder: Path, names: list[str], seconds: float) -> subprocess.Popen[str]:
    arguments = {"folder": str(folder), "names": names, "lengths": LENGTHS, "seconds": seconds}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps(arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def after_probes(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline() == "probe\n"


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended but was not waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_forty_trivial_probes_on_an_embedded_ray(tmp_path):
    process = start(tmp_path, ["lab/a", "lab/b", "lab/c", "lab/d"], seconds=0.0)
    out, err = process.communicate(timeout=120)
    figures = json.loads(out.splitlines()[-1])
    assert figures["probes"] == 40
    assert figures["wall_seconds"] < 40  # 20 on two cores of one's own; a shared machine gets twice that
    assert out.splitlines()[:-1] == ["probe"] * 40, "nothing but our own events is printed"
    assert err == ""
    assert figures["spent_usd"] < 0.001, "simulated devices cost nothing once they say that they are"


def test_a_killed_sweep_leaves_its_probes_and_a_resumed_one_buys_none_twice(tmp_path, ray_folder):
    process = start(tmp_path, ["lab/a"], seconds=0.3)
    after_probes(process, 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = [record.length_tokens for record in Artifact.open(str(tmp_path / "artifact")).records()]
    assert kept[:3] == LENGTHS[:3]
    deadline = time.monotonic() + 30
    sessions = {int(line.split()[1]) for line in (tmp_path / "lab-a.log").read_text().splitlines()}
    while any(alive(pid) for pid in sessions):
        assert time.monotonic() < deadline, "the killed sweep's session outlived it"
        time.sleep(0.2)
    begun_before = began(tmp_path, "lab/a")
    step = StepSetting()
    space = SearchSpace(
        source_text="", path=None, model="tiny", steps=(step,), searched=(), lengths=tuple(LENGTHS), flavours=()
    )
    summary = run_sweep(
        space,
        Artifact.open(str(tmp_path / "artifact")),
        flavours=[flavour("lab/a")],
        runners=lambda f: Factory(folder=tmp_path, flavour=f.name, source=Source.SIMULATED),
        policy=Grid(training_cells(["lab/a"], [step], LENGTHS)),
        options=SweepOptions.simulated(),
        resume=True,
    )
    assert began(tmp_path, "lab/a")[len(begun_before) :] == [length for length in LENGTHS if length not in kept]
    assert len(summary.records) == len(LENGTHS) - len(kept)
    records = Artifact.open(str(tmp_path / "artifact")).records()
    assert sorted(record.length_tokens for record in records) == LENGTHS


def test_an_interrupted_sweep_ends_at_once_and_leaves_a_readable_artifact(tmp_path):
    process = start(tmp_path, ["lab/a"], seconds=0.5)
    after_probes(process, 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    records = Artifact.open(str(tmp_path / "artifact")).records()
    assert 2 <= len(records) < len(LENGTHS)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1:1", "here"])
def test_an_address_without_a_cluster_is_refused_with_what_to_type(tmp_path, address):
    from raysweep.errors import RaysweepError

    step = StepSetting()
    space = SearchSpace(source_text="", path=None, model="m", steps=(step,), searched=(), lengths=(1,), flavours=())
    with pytest.raises(RaysweepError, match=r"ray job submit|ray start --head|HOST:PORT"):
        run_sweep(
            space,
            Artifact.create(str(tmp_path / "artifact"), ""),
            flavours=[flavour("lab/a")],
            runners=lambda f: Factory(folder=tmp_path, flavour=f.name),
            policy=Grid(training_cells(["lab/a"], [step], [1])),
            options=SweepOptions(address=address),
        )
