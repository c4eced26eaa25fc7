from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import reference_cells
from benchmarks.cells import CARDS, GROUPS, Cell, cells_of
from benchmarks.reference_cells import Measurement
from benchmarks.tiny import shrunk
from raysweep.errors import NotForecastError
from raysweep.records import Measurement as Seen
from raysweep.records import ProbeState, Prune
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss
from raysweep.space import parse_space
from raysweep.step.model import build, load_config
from raysweep.store import Artifact
from raysweep.trace.tracing import check_can_trace

FAR = 1e9


def llama(count: int) -> list[Cell]:
    return list(cells_of("families")[:count])


class FakeRunner:
    """Stands in for a ``DeviceRunner``; ends each probe as the test says."""

    device_name, device_memory_bytes, memory_cap_bytes = "Fake GPU", 10**9, None
    versions = {"fake": "1"}  # noqa: RUF012 - read only

    def __init__(self, ending: Outcome | Exception) -> None:
        self.ending = ending
        self.asked: list[ProbeRequest] = []
        self.closed = False

    def run(self, request: ProbeRequest) -> Outcome:
        self.asked.append(request)
        if isinstance(self.ending, Exception):
            raise self.ending
        return self.ending

    def close(self) -> None:
        self.closed = True


SEEN = Seen(peak_allocated_bytes=2, peak_reserved_bytes=3)
COMPLETED = Outcome(state=ProbeState.COMPLETED, measurement=SEEN, probe_seconds=1.0)
OOM = Outcome(
    state=ProbeState.PRUNED, reason="oom", prune=Prune(phase="loss"), measurement=SEEN, detail="…", probe_seconds=1.0
)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[FakeRunner]:
    """Every runner that is made; the first element's ending is every runner's."""
    made: list[FakeRunner] = [FakeRunner(COMPLETED)]

    def make(config: object, **options: object) -> FakeRunner:
        made.append(FakeRunner(made[0].ending))
        return made[-1]

    monkeypatch.setattr(reference_cells, "DeviceRunner", make)
    return made


def until(seconds: float = FAR) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("group", GROUPS)
def test_every_cells_adapter_fits_its_model(group: str) -> None:
    seen: set[tuple[str, AdapterSetting]] = set()
    for cell in cells_of(group):
        key = (cell.model, cell.step.adapter)
        if cell.step.adapter.rank and key not in seen:
            seen.add(key)
            plain = replace(cell.step, weights=cells_of("families")[0].step.weights)
            build(shrunk(load_config(cell.model)), plain, device="meta")


def test_a_probe_id_is_of_one_cell_alone() -> None:
    cells = [cell for group in GROUPS for cell in cells_of(group)]
    assert len({cell.probe_id for cell in cells}) == len(cells)


def test_at_least_thirty_cells_can_be_forecast_over_families_batches_checkpointing_and_losses() -> None:
    covered = []
    for cell in cells_of("families"):
        try:
            check_can_trace(cell.step, load_config(cell.model))
        except NotForecastError:
            continue
        covered.append(cell)
    assert len(covered) >= 30
    assert len({load_config(cell.model).model_type for cell in covered}) >= 4
    assert {cell.step.micro_batch for cell in covered} >= {1, 2, 4, 8}
    assert {cell.step.accumulation for cell in covered} == {1, 4}
    assert {cell.step.checkpointing for cell in covered} == set(Checkpointing)
    assert {cell.step.loss for cell in covered} == {Loss.FULL, Loss.CHUNKED}


def test_the_a100_table_is_capped_as_its_card() -> None:
    card = CARDS["a100-table"]
    assert (card.memory_bytes, card.outside_allocator_bytes) == (42_430_000_000, 550_000_000)
    training = [cell for cell in cells_of("a100-table") if cell.length_tokens]
    assert {cell.step.adapter.resident_copies for cell in training} == {1}


def test_each_model_has_an_artifact_with_a_space_that_reads(tmp_path: Path, runners: list[FakeRunner]) -> None:
    cells = [*llama(2), cells_of("families")[20]]
    Measurement(tmp_path, "families").measure(cells, until=until())
    first = Artifact.open(tmp_path / "families.llama-3.2-1b")
    assert [record.probe_id for record in first.records()] == [cell.probe_id for cell in cells[:2]]
    space = parse_space(first.space_text(), "space.yaml")
    assert space.model == "llama-3.2-1b"
    assert space.lengths == (1024, 4096)
    assert len(Artifact.open(tmp_path / "families.qwen2.5-7b").records()) == 1
    assert [runner.closed for runner in runners[1:]] == [True, True]


def test_a_capped_groups_space_names_the_card(tmp_path: Path, runners: list[FakeRunner]) -> None:
    Measurement(tmp_path, "a100-table").measure(cells_of("a100-table")[:1], until=until())
    space = parse_space(Artifact.open(tmp_path / "a100-table.qwen2.5-7b").space_text(), "space.yaml")
    assert space.flavours[0].memory_bytes == 42_430_000_000


def test_what_was_measured_is_not_measured_again(tmp_path: Path, runners: list[FakeRunner]) -> None:
    Measurement(tmp_path, "families").measure(llama(1), until=until())
    Measurement(tmp_path, "families").measure(llama(3), until=until())
    assert [len(runner.asked) for runner in runners[1:]] == [1, 2]


def test_out_of_memory_stops_nothing(tmp_path: Path, runners: list[FakeRunner]) -> None:
    runners[0].ending = OOM
    Measurement(tmp_path, "families").measure(llama(2), until=until())
    states = [record.state for record in Artifact.open(tmp_path / "families.llama-3.2-1b").records()]
    assert states == [ProbeState.PRUNED, ProbeState.PRUNED]


def test_a_lost_device_ends_the_process_after_its_cell_is_kept(tmp_path: Path, runners: list[FakeRunner]) -> None:
    failed = Outcome(state=ProbeState.FAILED, reason="poisoned", probe_seconds=1.0)
    runners[0].ending = PoisonedDevice(failed)
    with pytest.raises(PoisonedDevice):
        Measurement(tmp_path, "families").measure(llama(2), until=until())
    assert [r.reason for r in Artifact.open(tmp_path / "families.llama-3.2-1b").records()] == ["poisoned"]


def test_a_cell_in_which_the_process_died_is_lost_and_the_next_one_runs(
    tmp_path: Path, runners: list[FakeRunner]
) -> None:
    runners[0].ending = RuntimeError("stands for a crash")
    with pytest.raises(RuntimeError):
        Measurement(tmp_path, "families").measure(llama(2), until=until())
    runners[0].ending = COMPLETED
    Measurement(tmp_path, "families").measure(llama(2), until=until())
    records = Artifact.open(tmp_path / "families.llama-3.2-1b").records()
    assert [record.reason or str(record.state) for record in records] == ["lost", "completed"]


def test_no_cell_begins_without_time_for_it(tmp_path: Path, runners: list[FakeRunner]) -> None:
    Measurement(tmp_path, "families").measure(llama(2), until=until(5.0))
    assert len(runners) == 1


def test_records_of_invalid_numerics_say_so(tmp_path: Path, runners: list[FakeRunner]) -> None:
    Measurement(tmp_path, "hybrid-27b").measure(cells_of("hybrid-27b")[:1], until=until())
    record = Artifact.open(tmp_path / "hybrid-27b.qwen3.5-27b").records()[0]
    assert record.detail is not None
    assert record.detail.startswith("numerics invalid")


def test_a_stand_in_is_measured_on_the_cpu_and_named_as_what_it_is(tmp_path: Path) -> None:
    status = reference_cells.main(
        ["--out", str(tmp_path), "--group", "families", "--tiny", "--device", "cpu", "--only", "rank 64"]
    )
    record = Artifact.open(tmp_path / "families.tiny-llama-3.2-1b").records()[0]
    assert status == 0
    assert record.state is ProbeState.COMPLETED
    assert record.model == "tiny-llama-3.2-1b"
    line = json.loads((tmp_path / "families.jsonl").read_text())
    assert line["probe_id"] == record.probe_id


def test_the_runner_is_made_for_the_groups_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def make(config: object, **options: object) -> FakeRunner:
        asked.update(options)
        return FakeRunner(COMPLETED)

    monkeypatch.setattr(reference_cells, "DeviceRunner", make)
    Measurement(tmp_path, "a100-table").measure(cells_of("a100-table")[:1], until=until())
    assert asked["memory_cap_bytes"] == 42_430_000_000
    assert asked["outside_allocator_bytes"] == 550_000_000
