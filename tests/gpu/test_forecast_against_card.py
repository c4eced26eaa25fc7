"""Both peaks as forecast, against those that this card measures: four families, all checkpointing, both losses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gpu_card import need_a_clean_card, need_free, need_what_is_forecast
from gpu_models import family
from gpu_probes import ALLOCATED_SHARE, RESERVED_SHARE, held_against_forecast, probed

from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import ProbeState
from raysweep.search.runner import ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting

if TYPE_CHECKING:
    from raysweep.decision.verification import PeakCheck

pytestmark = pytest.mark.gpu

LARGEST_CELL_BYTES = 5_000_000_000
"""What the largest of them reserves, 4.8 GB: a cell of 2 GB or more shows an error of a few MB."""
CARD_BYTES = LARGEST_CELL_BYTES + 1_000_000_000
QUICK = Pace(measured_seconds=0)

BASE = StepSetting(adapter=AdapterSetting(rank=16, alpha=32))
NONE, GPU, CPU = Checkpointing.NONE, Checkpointing.GPU, Checkpointing.CPU
FULL, CHUNKED = Loss.FULL, Loss.CHUNKED

CELLS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("llama", 2048, {"checkpointing": NONE, "loss": FULL}),
    ("llama", 1024, {"checkpointing": GPU, "loss": FULL, "micro_batch": 4, "accumulation": 4}),
    ("llama", 8192, {"checkpointing": CPU, "loss": CHUNKED}),
    ("qwen2", 4096, {"checkpointing": GPU, "loss": FULL}),
    ("qwen2", 700, {"checkpointing": NONE, "loss": CHUNKED, "micro_batch": 4, "accumulation": 2}),
    ("qwen2", 512, {"checkpointing": CPU, "loss": FULL, "micro_batch": 8}),
    ("gemma", 2048, {"checkpointing": GPU, "loss": CHUNKED, "micro_batch": 2}),
    ("gemma", 1024, {"checkpointing": NONE, "loss": FULL, "micro_batch": 2}),
    ("gemma", 777, {"checkpointing": CPU, "loss": CHUNKED, "micro_batch": 8}),
    ("mistral", 4096, {"checkpointing": GPU, "loss": CHUNKED, "micro_batch": 3, "max_grad_norm": 1.0}),
    ("mistral", 2048, {"checkpointing": CPU, "loss": FULL, "micro_batch": 2}),
)
ITEM_TOKENS = tuple(200 + 197 * place % 1800 for place in range(40))
"""Forty lengths between 200 and 2,000 tokens, each its own, in no order."""


def name_of(cell: tuple[str, int, dict[str, Any]]) -> str:
    name, length_tokens, changes = cell
    return "-".join([name, str(length_tokens), *map(str, changes.values())])


def checked(name: str, step: StepSetting, **lengths: Any) -> PeakCheck:
    """Measure a probe and forecast the very same one."""
    need_what_is_forecast()
    need_free(CARD_BYTES)
    need_a_clean_card()
    config = family(name)
    runner = DeviceRunner(config, pace=QUICK)
    record = probed(runner, ProbeRequest(probe_id="p", flavour="lab/this-card", step=step, **lengths))
    runner.close()
    assert record.state is ProbeState.COMPLETED, record
    found = held_against_forecast([record], config)
    assert len(found.peaks) == 1, found
    return found.peaks[0]


@pytest.fixture(scope="module", params=[pytest.param(cell, id=name_of(cell)) for cell in CELLS])
def check(request: pytest.FixtureRequest) -> PeakCheck:
    """One cell's peaks, measured and forecast."""
    name, length_tokens, changes = request.param
    return checked(name, replace(BASE, **changes), length_tokens=length_tokens)


@pytest.fixture(scope="module", params=[(NONE, FULL), (GPU, CHUNKED)], ids="-".join)
def varied_check(request: pytest.FixtureRequest) -> PeakCheck:
    """A run of items of varied length, each once: its peaks, measured and forecast."""
    checkpointing, loss = request.param
    step = replace(BASE, checkpointing=checkpointing, loss=loss, accumulation=4)
    return checked("llama", step, item_tokens=ITEM_TOKENS)


def assert_reserved_as_forecast(check: PeakCheck) -> None:
    """Near the likeliest forecast, or within the range where the peak hangs on addresses or on the process."""
    near = abs(check.reserved_error_share) <= RESERVED_SHARE
    assert near or check.reserved_beyond_share == 0, check


def test_the_allocated_peak_is_the_measured_one(check: PeakCheck) -> None:
    assert check.forecast_allocated_bytes == pytest.approx(check.measured_allocated_bytes, rel=ALLOCATED_SHARE)


def test_the_reserved_peak_is_the_measured_one(check: PeakCheck) -> None:
    assert_reserved_as_forecast(check)


def test_a_card_with_room_retries_no_allocation(check: PeakCheck) -> None:
    assert check.record.measurement is not None
    assert check.record.measurement.allocation_retries == check.forecast_retries == 0


def test_a_run_of_varied_items_has_the_forecast_peaks(varied_check: PeakCheck) -> None:
    assert varied_check.forecast_allocated_bytes == pytest.approx(
        varied_check.measured_allocated_bytes, rel=ALLOCATED_SHARE
    )
    assert_reserved_as_forecast(varied_check)


def test_every_kind_of_step_is_among_the_cells() -> None:
    steps = [replace(BASE, **changes) for _, _, changes in CELLS]
    assert {(step.checkpointing, step.loss) for step in steps} == {
        (c, loss) for c in Checkpointing for loss in (FULL, CHUNKED)
    }
    assert {step.micro_batch for step in steps} == {1, 2, 3, 4, 8}
