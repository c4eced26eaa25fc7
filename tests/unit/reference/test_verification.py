"""``verify``: each measured probe against its own forecast, under what its runner left the allocator."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import pytest
from click.testing import CliRunner
from reference_files import REFERENCE, ROOT, program_of, records_of

from raysweep.cli.app import app
from raysweep.cli.edge import Exit
from raysweep.decision.verification import Verification, capacity_bytes, merge, needed_lengths, padded_steps, verify
from raysweep.memory.conditions import Conditions, configured_workspace_bytes
from raysweep.memory.program import Program
from raysweep.memory.replay import Replayer
from raysweep.memory.table import programs_of
from raysweep.records import Mode, ProbeRecord, ProbeState, Prune
from raysweep.setting import AllocatorSetting
from raysweep.store import Artifact

OUTSIDE = {"lab/a100-40": 550_000_000}


@cache
def program() -> Program:
    """Return the program that the sweep over two GPUs kept: lengths 2,048 to 16,384."""
    table = Artifact.open(REFERENCE / "two-gpus").programs_table()
    assert table is not None
    return programs_of(table)[0]


def completed(**changes: object) -> ProbeRecord:
    """Return a probe that ran: 2,048 tokens, capped as a card of 42.43 GB."""
    found = next(r for r in records_of("two-gpus") if r.flavour == "lab/a100-40" and r.length_tokens == 2048)
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def pruned(**changes: object) -> ProbeRecord:
    """Return a probe that ran out of memory."""
    found = next(r for r in records_of("two-gpus") if r.flavour == "lab/a100-40" and r.length_tokens == 16384)
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


def verified(*records: ProbeRecord) -> Verification:
    programs = {program().step: program()}
    return verify(records, programs, AllocatorSetting(), capabilities={"NVIDIA H200": "9.0"}, outside_bytes=OUTSIDE)


def test_a_capped_probe_had_the_cap_less_what_was_given_as_outside() -> None:
    assert capacity_bytes(completed(), 550_000_000) == 42_430_000_000 - 550_000_000


def test_where_nothing_was_given_the_runner_took_what_it_saw() -> None:
    record = completed()
    assert record.measurement is not None
    seen = record.measurement.outside_allocator_bytes
    assert capacity_bytes(record, None) == 42_430_000_000 - (seen or 0)
    assert capacity_bytes(completed(memory_cap_bytes=None), 550_000_000) == 150_109_880_320 - (seen or 0)


def test_a_probe_that_ran_has_both_peaks_and_a_range() -> None:
    (check,) = verified(completed()).peaks
    assert check.forecast_allocated_bytes == pytest.approx(check.measured_allocated_bytes, rel=0.001)
    low, high = check.forecast_reserved_range_bytes or (0, 0)
    assert low <= check.measured_reserved_bytes <= high
    assert check.reserved_beyond_share == 0


def test_a_probe_that_emulated_a_chips_workspaces_is_forecast_with_them() -> None:
    own = completed()
    (plain,) = verified(own).peaks
    smaller = dataclasses.replace(own, versions=own.versions | {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"})
    (check,) = verified(smaller).peaks
    workspaces_bytes = 2 * (32 * 2**20 - (8 * 2**20 + 128 * 2**10))
    assert plain.forecast_allocated_bytes - check.forecast_allocated_bytes == workspaces_bytes


def test_what_lies_beyond_the_range_is_off() -> None:
    (check,) = verified(completed()).peaks
    _, high = check.forecast_reserved_range_bytes or (0, 0)
    more = dataclasses.replace(check, measured_reserved_bytes=2 * high)
    assert more.reserved_beyond_share == -0.5
    assert more.worst_share == 0.5


def test_a_probe_that_died_is_forecast_to_die_in_the_same_phase() -> None:
    (check,) = verified(pruned()).outcomes
    assert check.agrees
    assert check.failure is not None
    assert check.record.prune is not None
    assert check.failure.moment.phase == check.record.prune.phase


def test_a_probe_that_died_where_the_forecast_runs_disagrees() -> None:
    (check,) = verified(pruned(length_tokens=2048)).outcomes
    assert check.forecast_runs
    assert not check.agrees


def test_a_probe_that_ran_where_the_forecast_dies_disagrees() -> None:
    (check,) = verified(completed(length_tokens=16384)).outcomes
    assert not check.forecast_may_run
    assert not check.agrees


def test_a_probe_of_data_is_replayed_in_its_own_order() -> None:
    items = (2048, 3000, 16384, 2100)
    (check,) = verified(pruned(item_tokens=items, prune=Prune(phase="forward", item=2))).outcomes
    assert check.failure is not None
    assert check.failure.moment.item == 2


def test_a_probe_of_data_beyond_its_program_is_not_compared() -> None:
    (skip,) = verified(completed(item_tokens=(3000, 50, 2048))).skipped
    assert skip.reason == "its program does not cover 50 tokens"


def test_generation_and_failed_probes_are_not_compared() -> None:
    found = verified(completed(mode=Mode.GENERATE), completed(state=ProbeState.FAILED, reason="lost"))
    assert [skip.reason for skip in found.skipped] == ["generation is not forecast", "the probe failed: lost"]


def test_a_program_is_needed_at_the_padded_lengths_of_what_is_compared() -> None:
    step = dataclasses.replace(program().step, micro_batch=2)
    records = [completed(step=step, item_tokens=(3, 9, 1, 1, 5)), completed(step=step, mode=Mode.GENERATE)]
    assert needed_lengths(records) == {step: (2, 5, 9)}


def test_padded_steps_are_those_whose_items_differ_within_a_micro_batch() -> None:
    two, four = (dataclasses.replace(program().step, micro_batch=size) for size in (2, 4))
    items = (5, 5, 9, 9)
    records = [completed(step=step, item_tokens=items) for step in (program().step, two, four)]
    assert padded_steps(records) == {four}
    assert padded_steps([completed(step=four)]) == set()


def test_the_worst_of_all_artifacts_comes_first() -> None:
    exact, short = verified(completed()), verified(completed(length_tokens=4096))
    merged = merge([exact, short])
    assert merged.peaks == (*short.peaks, *exact.peaks)


def test_every_probe_of_the_capped_a100_ends_as_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["verify", str(REFERENCE / "a100-table"), "--within", "0.15%", "--json"])
    assert result.exit_code == Exit.DONE, result.output
    found = json.loads(result.stdout)
    assert len(found["peaks"]) == 4
    assert [check["agrees"] for check in found["outcomes"]] == [True, True]


def test_a_step_that_ran_twice_dies_the_third_time_as_measured() -> None:
    record = next(r for r in records_of("a100-table") if (r.step.adapter.rank, r.length_tokens) == (32, 2048))
    assert record.measurement is not None and record.prune is not None and record.prune.requested_bytes is not None
    conditions = Conditions(
        capacity_bytes=capacity_bytes(record, 550_000_000),
        workspace_bytes=configured_workspace_bytes(record.versions["CUBLAS_WORKSPACE_CONFIG"]),
    )
    replayer = Replayer(program_of(record.model, record.step, [2048]))
    assert replayer.run([2048] * 2, accumulation=1, conditions=conditions).runs
    found = replayer.steady(2048, accumulation=1, conditions=conditions)
    assert found.failure is not None
    assert found.failure.moment.phase == record.prune.phase == "backward"
    assert found.retries == record.measurement.allocation_retries == 3
    # The device's own words round what was asked for to two decimals of a GiB.
    assert found.failure.requested_bytes == pytest.approx(record.prune.requested_bytes, abs=0.005 * 2**30)
    assert found.peak_reserved_bytes == record.measurement.peak_reserved_bytes
    assert found.peak_allocated_bytes == pytest.approx(record.measurement.peak_allocated_bytes, rel=0.001)


def test_artifacts_of_several_models_are_verified_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # shapes of families are named relative to it
    folders = [str(REFERENCE / name) for name in ("two-gpus", "families/gemma-2b", "two-gpus", "hybrid-27b")]
    result = CliRunner().invoke(app, ["verify", *folders, "--within", "0.5%", "--json"])
    assert result.exit_code == Exit.DONE, result.output
    found = json.loads(result.stdout)
    assert len(found["peaks"]) == 4 + 3
    assert [check["agrees"] for check in found["outcomes"]] == [True, True]
    assert all("linear-attention" in skip["reason"] for skip in found["skipped"])
