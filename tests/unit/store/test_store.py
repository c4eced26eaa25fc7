"""An artifact keeps what it was given, refuses what it cannot read, and overwrites nothing."""

from __future__ import annotations

import json
import tempfile
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.errors import ArtifactError
from raysweep.records import (
    PROBES_SCHEMA,
    Measurement,
    Mode,
    ProbeRecord,
    ProbeState,
    Prune,
    Source,
    to_row,
)
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting, Weights
from raysweep.store import Artifact, SweepStatus


def _record(**changes: Any) -> ProbeRecord:
    values: dict[str, Any] = {
        "probe_id": "p0",
        "sweep_id": "s0",
        "session_id": "t0",
        "source": Source.SIMULATED,
        "model": "qwen2.5-7b",
        "step": StepSetting(),
        "flavour": "hf/h200",
        "length_tokens": 4096,
        "state": ProbeState.COMPLETED,
        "measurement": Measurement(peak_allocated_bytes=10**10, peak_reserved_bytes=11 * 10**9),
        "device_name": "NVIDIA H200",
        "device_memory_bytes": 150 * 10**9,
        "started_at": datetime(2026, 9, 1, tzinfo=UTC),
        "probe_seconds": 1.5,
    }
    return ProbeRecord(**{**values, **changes})


_BYTES = st.integers(0, 2**50)
_SECONDS = st.floats(0, 1e6, allow_nan=False)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
_STEPS = st.builds(
    StepSetting,
    weights=st.sampled_from(Weights),
    adapter=st.builds(
        AdapterSetting,
        rank=st.integers(1, 512),
        alpha=st.floats(1, 512),
        targets=st.lists(_TEXT, min_size=1, max_size=3).map(tuple),
    ),
    checkpointing=st.sampled_from(Checkpointing),
    loss=st.sampled_from(Loss),
    max_grad_norm=st.none() | st.floats(0.1, 10),
)
_MEASUREMENTS = st.builds(
    Measurement,
    peak_allocated_bytes=_BYTES,
    peak_reserved_bytes=_BYTES,
    outside_allocator_bytes=st.none() | _BYTES,
    allocation_retries=st.integers(0, 9),
    host_bytes=st.none() | _BYTES,
    pinned_host_bytes=st.none() | _BYTES,
    first_step_seconds=st.lists(_SECONDS, max_size=3).map(tuple),
    step_seconds=st.lists(_SECONDS, max_size=3).map(tuple),
    micro_step_seconds=st.lists(_SECONDS, max_size=3).map(tuple),
    tokens_per_second=st.none() | _SECONDS,
    loaded_bytes=st.none() | _BYTES,
)
_ENDS = st.one_of(
    st.fixed_dictionaries({"state": st.just(ProbeState.COMPLETED), "measurement": _MEASUREMENTS}),
    st.fixed_dictionaries(
        {
            "state": st.sampled_from([ProbeState.PRUNED, ProbeState.FAILED]),
            "reason": _TEXT,
            "detail": st.none() | _TEXT,
            "prune": st.none()
            | st.builds(Prune, phase=_TEXT, requested_bytes=st.none() | _BYTES, item=st.none() | st.integers(0, 9)),
            "measurement": st.none() | _MEASUREMENTS,
        }
    ),
)
_WHERE = st.fixed_dictionaries(
    {
        "step": _STEPS,
        "source": st.sampled_from(Source),
        "mode": st.sampled_from(Mode),
        "flavour": _TEXT,
        "length_tokens": st.none() | st.integers(1, 2**40),
        "item_tokens": st.lists(st.integers(1, 2**40), max_size=4).map(tuple),
        "price_usd_per_hour": st.none() | _SECONDS,
        "memory_cap_bytes": st.none() | _BYTES,
        "versions": st.dictionaries(_TEXT, _TEXT, max_size=3),
        "seed": st.integers(0, 2**63 - 1),
        "started_at": st.timedeltas(timedelta(0), timedelta(days=9999)).map(
            lambda since: datetime(2000, 1, 1, tzinfo=UTC) + since
        ),
    }
)


@settings(deadline=None)  # the first example pays for imports
@given(ends=st.lists(st.tuples(_ENDS, _WHERE), min_size=1, max_size=3))
def test_every_record_reads_back_as_it_was_written(ends: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    records = tuple(_record(**{"measurement": None, **end, **where}) for end, where in ends)
    uri = f"memory://{uuid.uuid4().hex}"
    artifact = Artifact.create(uri, "model: m")
    for record in records:
        artifact.append(record)
    assert Artifact.open(uri).records() == records


def test_a_new_artifact_holds_the_space_as_given_and_no_probe(tmp_path: Path) -> None:
    text = "model: m  # as given\n"
    Artifact.create(tmp_path / "a", text)
    artifact = Artifact.open(tmp_path / "a")
    assert artifact.space_text() == text
    assert artifact.records() == ()
    assert artifact.programs_table() is None
    assert artifact.decision() is None


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="not empty"):
        Artifact.create(tmp_path, "model: m")
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ArtifactError, match="it is a file"):
        Artifact.create(tmp_path / "a", "model: m")
    with pytest.raises(ArtifactError, match="it is a file"):
        Artifact.open(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "mine"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    Artifact.create(tmp_path / "a", "model: m").append(_record())
    file = tmp_path / "a" / "probes.parquet"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(ArtifactError, match=r"probes\.parquet: expected a Parquet file; it is damaged or cut"):
        Artifact.open(tmp_path / "a").records()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "a", "model: m")
    (tmp_path / "a" / "probes.parquet").unlink()
    with pytest.raises(ArtifactError, match=r"probes\.parquet is missing"):
        Artifact.open(tmp_path / "a")


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="raysweep sweep SPACE --out"):
        Artifact.open(tmp_path / "none")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "a", "model: m")
    newer = pa.Table.from_pylist([], schema=PROBES_SCHEMA.with_metadata({"raysweep_schema_version": "99"}))
    pq.write_table(newer, tmp_path / "a" / "probes.parquet")
    with pytest.raises(ArtifactError, match="99 came, from a newer raysweep"):
        Artifact.open(tmp_path / "a").records()


def test_parquet_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "a", "model: m")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a" / "probes.parquet")
    with pytest.raises(ArtifactError, match="names no schema version"):
        Artifact.open(tmp_path / "a").records()


def test_columns_that_an_older_schema_lacked_take_their_defaults(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "a", "model: m")
    table = pa.Table.from_pylist([to_row(_record())], schema=PROBES_SCHEMA)
    older = table.drop_columns(["mode", "versions", "load_seconds", "memory_cap_bytes", "item_tokens", "prune", "seed"])
    pq.write_table(older, tmp_path / "a" / "probes.parquet")
    assert Artifact.open(tmp_path / "a").records() == (_record(),)


def test_columns_of_the_same_schema_that_are_not_known_are_left_aside(tmp_path: Path) -> None:
    Artifact.create(tmp_path / "a", "model: m")
    table = pa.Table.from_pylist([to_row(_record())], schema=PROBES_SCHEMA).append_column("later", pa.array([1]))
    pq.write_table(table, tmp_path / "a" / "probes.parquet")
    assert Artifact.open(tmp_path / "a").records() == (_record(),)


def test_a_write_that_fails_leaves_the_earlier_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    artifact.append(_record())

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(ArtifactError, match="No space left"):
            artifact.append(_record(probe_id="p1"))
    assert Artifact.open(tmp_path / "a").records() == (_record(),)
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == ["probes.parquet", "space.yaml"]
    artifact.append(_record(probe_id="p2"))
    assert [r.probe_id for r in artifact.records()] == ["p0", "p2"]


def test_programs_and_items_read_back(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    table = pa.table({"step": ["{}"], "events": [b"abc"]})
    artifact.write_programs(table)
    artifact.write_items(table)
    assert artifact.programs_table().equals(table)
    assert artifact.items_table().equals(table)


def test_a_decision_reads_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    artifact.write_decision({"flavour": "hf/h200"})
    assert artifact.decision() == {"schema_version": 1, "flavour": "hf/h200"}
    (tmp_path / "a" / "decision.json").write_text('{"schema')
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.decision()
    (tmp_path / "a" / "decision.json").write_text(json.dumps({"schema_version": 2}))
    with pytest.raises(ArtifactError, match="newer raysweep"):
        artifact.decision()


def test_a_decision_of_a_newer_schema_is_not_overwritten(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    file = tmp_path / "a" / "decision.json"
    file.write_text('{"schema_version": 99}')
    with pytest.raises(ArtifactError, match="newer raysweep"):
        artifact.write_decision({"flavour": "hf/h200"})
    assert file.read_text() == '{"schema_version": 99}'
    file.write_text('{"schema')
    artifact.write_decision({"flavour": "hf/h200"})
    assert artifact.decision() == {"schema_version": 1, "flavour": "hf/h200"}


def test_an_unknown_kind_of_uri_is_refused() -> None:
    with pytest.raises(ArtifactError, match="fsspec URI"):
        Artifact.open("nosuch://bucket/folder")


def test_an_address_that_its_file_system_cannot_take_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def isdir(_self: Any, _path: str) -> bool:
        raise ValueError("Repository id must be 'namespace/name'.")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.isdir", isdir)
    with pytest.raises(ArtifactError, match="memory://x: the artifact cannot be read: Repository id must be"):
        Artifact.open("memory://x")


def test_an_empty_address_is_not_the_working_directory() -> None:
    with pytest.raises(ArtifactError, match="expected an artifact's folder or fsspec URI; '' came"):
        Artifact.open("")


def test_an_artifact_lies_on_any_file_system() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for uri in (f"file://{folder}/a", f"memory://{uuid.uuid4().hex}/a"):
            Artifact.create(uri, "model: m").append(_record())
            assert Artifact.open(uri).records() == (_record(),)


def test_how_far_a_sweep_came_and_its_price_list_read_back(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    assert artifact.sweep_status() is None
    assert artifact.prices_text() is None
    status = SweepStatus(resume="raysweep sweep s --resume", probes_at_most=9)
    artifact.write_sweep_status(status)
    artifact.write_prices("flavour\nlab/ü\n")
    again = Artifact.open(tmp_path / "a")
    assert again.sweep_status() == status
    assert (status.missing(4), status.missing(10)) == (5, 0)
    assert again.prices_text() == "flavour\nlab/ü\n"


def test_a_damaged_status_of_a_sweep_is_refused_by_name(tmp_path: Path) -> None:
    artifact = Artifact.create(tmp_path / "a", "model: m")
    (tmp_path / "a" / "sweep.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"sweep\.json: expected a sweep's status"):
        artifact.sweep_status()
