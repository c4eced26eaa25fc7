"""Which evidence counts for a cell: memory, seconds, and what lives outside the allocator."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from records_for_tests import STEP, measurement, out_of_memory, record

from cost.catalogue import Catalogue
from cost.domain import Flavour
from cost.evidence import Evidence
from cost.lengths import LengthCounts
from cost.plan import Stage
from cost.throughput import Timing, Work
from cost.verdict import Verdict
from raysweep.decision.memory import cell_records, from_record
from raysweep.decision.outside import Outside, OutsideSource, outside_of
from raysweep.decision.roofline import lengths_to_time
from raysweep.decision.times import time_model, timed
from raysweep.records import ProbeState, Source
from raysweep.setting import Loss

H200 = Catalogue.load().flavour("hf/h200")
A100 = Catalogue.load().flavour("hf/a100-large")
ALLOWANCE_BYTES = 1_300_000_000
OUTSIDE = Outside(size_bytes=ALLOWANCE_BYTES, source=OutsideSource.ALLOWANCE)


def _outside(flavour: Flavour, *records: object) -> Outside:
    return outside_of(flavour, STEP, records, allowance_bytes=ALLOWANCE_BYTES)  # type: ignore[arg-type]


def test_outside_bytes_are_an_allowance_until_a_probe_has_measured_them() -> None:
    assert _outside(H200) == Outside(size_bytes=ALLOWANCE_BYTES, source=OutsideSource.ALLOWANCE)
    seen = _outside(H200, record(), record(measurement=measurement(outside_allocator_bytes=1_100_000_000)))
    assert seen == Outside(size_bytes=1_100_000_000, source=OutsideSource.MEASURED)


def test_the_owners_number_stands_before_the_allowance_and_behind_a_measurement() -> None:
    own = dataclasses.replace(H200, outside_allocator_bytes=550_000_000)
    assert _outside(own) == Outside(size_bytes=550_000_000, source=OutsideSource.GIVEN)
    assert _outside(own, record()).source is OutsideSource.MEASURED


def test_outside_bytes_of_another_device_or_kind_of_step_or_a_simulation_do_not_count() -> None:
    other_step = dataclasses.replace(STEP, loss=Loss.LIGER)
    for elsewhere in (
        record(flavour="hf/a100-large"),
        record(memory_cap_bytes=85 * 10**9),
        record(step=other_step),
        record(source=Source.SIMULATED),
        record(measurement=measurement(outside_allocator_bytes=None)),
    ):
        assert _outside(H200, elsewhere).source is OutsideSource.ALLOWANCE


def test_measured_memory_wins_over_simulated_and_the_latest_of_equals() -> None:
    old = record(probe_id="old")
    new = record(probe_id="new", started_at=datetime(2026, 9, 2, tzinfo=UTC))
    simulated = record(probe_id="sim", source=Source.SIMULATED, started_at=datetime(2026, 9, 3, tzinfo=UTC))
    found = cell_records([old, simulated, new], "hf/h200", STEP, 4096)
    assert [r.probe_id for r in found] == ["new", "old", "sim"]


def test_failed_probes_data_probes_and_other_cells_say_nothing_about_a_cell() -> None:
    failed = record(state=ProbeState.FAILED, reason="lost", measurement=None)
    dominated = record(state=ProbeState.PRUNED, reason="dominated", measurement=None)
    data = record(item_tokens=(1, 4096))
    other = record(length_tokens=8192)
    assert cell_records([failed, dominated, data, other], "hf/h200", STEP, 4096) == []


def test_a_completed_probe_fits_with_the_margin_asked_for() -> None:
    cell = from_record(record(), H200, OUTSIDE, margin_share=0.08)
    assert cell.fit.verdict is Verdict.FITS
    assert cell.fit.headroom_bytes == 150_109_880_320 - round(0.08 * 150_109_880_320) - ALLOWANCE_BYTES - 32 * 10**9
    assert from_record(record(), H200, OUTSIDE, margin_share=0.9).fit.verdict is Verdict.TIGHT
    retried = record(measurement=measurement(allocation_retries=1))
    assert from_record(retried, H200, OUTSIDE, margin_share=0.08).fit.verdict is Verdict.TIGHT
    assert from_record(retried, H200, OUTSIDE, margin_share=0.08).retries == 1


def test_an_out_of_memory_probe_does_not_fit_and_says_where_it_died() -> None:
    cell = from_record(out_of_memory(), H200, OUTSIDE, margin_share=0.08)
    assert cell.fit.verdict is Verdict.NO
    assert cell.peak_reserved_bytes is None
    assert cell.evidence == "out of memory in backward, asking for 2.00 GB; measured on NVIDIA H200"


def test_a_capped_probe_is_judged_by_the_memory_it_stands_for() -> None:
    capped = record(flavour="hf/a100-large", memory_cap_bytes=A100.total_memory_bytes)
    cell = from_record(capped, A100, OUTSIDE, margin_share=0.08)
    assert cell.memory_bytes == A100.total_memory_bytes
    assert "capped at 85.0 GB" in cell.evidence


def test_seconds_of_a_capped_device_are_those_of_the_device_that_ran() -> None:
    capped = record(flavour="hf/a100-large", memory_cap_bytes=A100.total_memory_bytes)
    assert timed([capped], A100, STEP, Source.MEASURED).timings == ()
    assert len(timed([capped], H200, STEP, Source.MEASURED).timings) == 3


def test_measured_seconds_win_over_simulated_ones_and_those_over_a_roofline() -> None:
    measured = [record(), record(length_tokens=8192, measurement=measurement(step_seconds=(4.2, 4.2)))]
    simulated = [dataclasses.replace(r, source=Source.SIMULATED) for r in measured]
    roofline = timed(measured, H200, STEP, Source.MEASURED).timings
    for records, evidence in (
        ([*simulated, *measured], Evidence.MEASURED),
        (simulated, Evidence.SIMULATED),
        ([], Evidence.FORECAST),
    ):
        model = time_model(records, H200, STEP, roofline)
        assert model is not None and model.evidence is evidence
    assert time_model([], H200, STEP, ()) is None


def test_a_simulation_is_as_uncertain_as_a_roofline() -> None:
    measured = [record(), record(length_tokens=8192, measurement=measurement(step_seconds=(4.2, 4.2)))]
    narrow = time_model(measured, H200, STEP, ())
    wide = time_model([dataclasses.replace(r, source=Source.SIMULATED) for r in measured], H200, STEP, ())
    assert narrow is not None and wide is not None
    work = Work.of([4096] * 100)
    spread = [m.seconds(work).high / m.seconds(work).low for m in (narrow, wide)]
    assert spread[1] > 2 * spread[0]


def test_one_length_alone_is_carried_to_others_as_a_rate() -> None:
    model = time_model([record()], H200, STEP, ())
    assert model is not None
    assert model.expected_seconds(Work.of([4096])) == pytest.approx(1.0)
    assert model.expected_seconds(Work.of([2048])) == pytest.approx(0.5)
    assert model.longest_timed_tokens == 4096
    assert "floor" in model.assumed


def test_a_length_that_the_session_met_in_an_earlier_probe_is_not_new() -> None:
    earlier = record(length_tokens=100, step=dataclasses.replace(STEP, loss=Loss.CHUNKED))
    data = record(
        length_tokens=300,
        item_tokens=(100, 300),
        measurement=measurement(step_seconds=(), micro_step_seconds=(0.2, 0.6)),
        started_at=datetime(2026, 9, 2, tzinfo=UTC),
    )
    elsewhere = dataclasses.replace(data, session_id="t1")
    assert [t.work.new_lengths for t in timed([data, earlier], H200, STEP, Source.MEASURED).timings] == [0, 1]
    assert [t.work.new_lengths for t in timed([elsewhere, earlier], H200, STEP, Source.MEASURED).timings] == [1, 1]


def test_a_micro_batch_of_a_data_probe_is_one_step_at_its_longest_item() -> None:
    step = dataclasses.replace(STEP, micro_batch=2, accumulation=1)
    data = record(
        step=step,
        length_tokens=300,
        item_tokens=(100, 300, 50, 40, 20),
        measurement=measurement(step_seconds=(0.7, 0.5, 0.4), micro_step_seconds=(0.6, 0.4, 0.2)),
    )
    found = timed([data], H200, step, Source.MEASURED)
    assert [(t.work.micro_steps, t.work.tokens, t.seconds) for t in found.timings] == [
        (1, 300, 0.6),
        (1, 50, 0.4),
        (1, 20, 0.2),
    ]
    assert found.optimizer_step_seconds == pytest.approx(0.1)


def test_what_first_steps_took_beyond_steady_ones_warms_a_process_up() -> None:
    first = record(measurement=measurement(first_step_seconds=(119.0, 2.5)))
    later = record(
        probe_id="p1",
        measurement=measurement(first_step_seconds=(2.1, 2.0)),
        started_at=datetime(2026, 9, 2, tzinfo=UTC),
    )
    assert timed([first, later], H200, STEP, Source.MEASURED).warm_up_seconds == pytest.approx(117.5)
    assert timed([], H200, STEP, Source.MEASURED).warm_up_seconds == 0


def test_a_data_probe_tells_new_lengths_from_lengths_seen_before() -> None:
    data = record(
        length_tokens=300,
        item_tokens=(100, 300, 100),
        measurement=measurement(step_seconds=(), micro_step_seconds=(0.4, 0.6, 0.2)),
    )
    timings = timed([data], H200, STEP, Source.MEASURED).timings
    assert [(t.work.tokens, t.work.new_lengths, t.seconds) for t in timings] == [
        (100, 1, 0.4),
        (300, 1, 0.6),
        (100, 0, 0.2),
    ]


def test_a_roofline_is_laid_at_the_datas_own_lengths_too_within_the_limit() -> None:
    items = LengthCounts.of_counts({100: 30.0, 500: 60.0, 9000: 10.0})
    stages = (Stage(name="s", items=items, epochs=1.0),)
    assert lengths_to_time(stages, (4096,)) == (100, 500, 4096)
    assert lengths_to_time((), (4096, 8192)) == (4096, 8192)


def test_short_items_of_a_simulated_sweep_of_one_length_take_less_than_long_ones() -> None:
    simulated = [record(source=Source.SIMULATED)]
    roofline = [Timing(work=Work.of([n] * 2, optimizer_steps=1), seconds=2.0 * n / 4096) for n in (512, 2048)]
    model = time_model(simulated, H200, STEP, roofline)
    assert model is not None
    assert model.expected_seconds(Work.of([512])) == pytest.approx(0.125, rel=0.05)
