"""Programs as a Parquet table, there and back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysweep.errors import ArtifactError
from raysweep.memory.program import Program, SegmentName
from raysweep.memory.replay import Replayer
from raysweep.memory.table import PROGRAMS_SCHEMA, programs_of, table_of
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting
from raysweep.trace.build import model_program

STEPS = (
    StepSetting(adapter=AdapterSetting(rank=8), loss=Loss.CHUNKED, loss_chunk_tokens=256, accumulation=2),
    StepSetting(adapter=AdapterSetting(rank=8), checkpointing=Checkpointing.CPU),
)


@pytest.fixture(scope="module")
def programs(tiny) -> tuple[Program, ...]:
    return tuple(model_program(f"tiny-{i}", tiny(), step, [3, 1500]) for i, step in enumerate(STEPS))


def test_a_program_read_back_replays_the_same(programs, tmp_path):
    path = tmp_path / "programs.parquet"
    pq.write_table(table_of(programs), path)
    for before, after in zip(programs, programs_of(pq.read_table(path)), strict=True):
        for length in (5, 300, 1499):
            accumulation = before.step.accumulation
            replay = Replayer(after).steady(length, accumulation=accumulation)
            assert replay == Replayer(before).steady(length, accumulation=accumulation)


def test_all_that_a_program_says_of_itself_is_read_back(programs):
    for before, after in zip(programs, programs_of(table_of(programs)), strict=True):
        for name in ("model", "step", "max_tokens", "labels", "outside_kind", "notes", "versions", "kernels"):
            assert getattr(after, name) == getattr(before, name)
        for one, other in zip(before.pieces, after.pieces, strict=True):
            assert (one.first_tokens, one.last_tokens) == (other.first_tokens, other.last_tokens)
            assert (one.host_blocks, one.host_block.tolist()) == (other.host_blocks, other.host_block.tolist())


def test_no_programs_are_an_empty_table():
    assert programs_of(table_of(())) == ()


def damaged(programs, change) -> pa.Table:
    rows = table_of(programs).to_pylist()
    change(rows[0])
    return pa.Table.from_pylist(rows, schema=PROGRAMS_SCHEMA)


def part_of(row: dict) -> dict:
    return next(s for s in row["segments"] if s["name"] == SegmentName.MICRO.value)["parts"][0]


@pytest.mark.parametrize("column", ["op", "owner", "index", "size", "label", "work"])
@pytest.mark.parametrize("cut", [1, 8, 40, 160])
def test_a_column_cut_short_is_an_artifact_error(programs, column, cut):
    def change(row: dict) -> None:
        part = part_of(row)
        part[column] = part[column][:-cut]

    with pytest.raises(ArtifactError, match=r"programs\.parquet.*raysweep forecast"):
        programs_of(damaged(programs, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(step="{"),
        lambda row: row.update(step=None),
        lambda row: row.update(labels=row["labels"][:1]),
        lambda row: row.update(segments=[]),
        lambda row: row["segments"][0].update(name="warm-up"),
        lambda row: row["labels"][0].update(category="snacks"),
        lambda row: part_of(row).update(index=b"\xff\x7f" * (len(part_of(row)["index"]) // 2)),
    ],
    ids=["half a step", "no step", "labels lost", "no segments", "no such segment", "no such category", "wild indices"],
)
def test_a_program_that_contradicts_itself_is_an_artifact_error(programs, change):
    with pytest.raises(ArtifactError):
        programs_of(damaged(programs, change))


def test_a_table_without_a_column_is_an_artifact_error(programs):
    with pytest.raises(ArtifactError):
        programs_of(table_of(programs).drop_columns(["labels"]))
