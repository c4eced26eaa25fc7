"""A sweep on a cluster of several nodes, reached by its address: each flavour on the node that carries it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sweep_fakes import Factory, began, flavour

from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace
from raysweep.store import Artifact
from raysweep.sweep import ProbeEnded, SweepOptions, run_sweep

STEP = StepSetting()


@pytest.fixture
def cluster(ray_folder: Path) -> Iterator[object]:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 10**6}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    cluster.add_node(**small, num_gpus=1, resources={"flavour:lab/a": 1})
    cluster.add_node(**small, num_gpus=1, resources={"flavour:lab/b": 1})
    yield cluster
    cluster.shutdown()


def test_each_flavour_runs_on_its_own_node_and_a_missing_one_is_skipped(cluster, tmp_path):
    names = ("lab/a", "lab/b", "lab/c")
    lengths = (1, 2, 3)
    space = SearchSpace(
        source_text="", path=None, model="tiny", steps=(STEP,), searched=(), lengths=lengths, flavours=()
    )
    ended = []
    summary = run_sweep(
        space,
        Artifact.create(str(tmp_path / "artifact"), ""),
        flavours=[flavour(name) for name in names],
        runners=lambda f: Factory(folder=tmp_path, flavour=f.name, faults={2: "killed once"}),
        policy=Grid(training_cells(names, [STEP], lengths)),
        options=SweepOptions(address=cluster.address),
        on_event=lambda event: ended.append(event.record) if isinstance(event, ProbeEnded) else None,
    )
    assert {(record.flavour, record.length_tokens) for record in ended} == {
        (name, length) for name in names[:2] for length in lengths
    }
    assert sorted(began(tmp_path, "lab/a") + began(tmp_path, "lab/b")) == [1, 1, 2, 2, 2, 3, 3]
    assert "no alive node has CPU 1, GPU 1, flavour:lab/c 1" in summary.stopped["lab/c"]
    assert "--resources" in summary.stopped["lab/c"]
