"""Probes of the data's own items on an H200 against their forecast: one item a micro-batch, and two, padded."""

from __future__ import annotations

from functools import cache

import pytest
from reference_files import program_of, records_of

from raysweep.decision.verification import PeakCheck, needed_lengths, padded_steps, verify
from raysweep.setting import AllocatorSetting

ALLOCATED_SHARE, RESERVED_SHARE = 3e-4, 0.005
PADDED = "data-probes/llama-1b"
FOLDERS = (PADDED, "data-probes/qwen-7b", "data-probes/mistral-7b-nf4", "data-probes/gemma-2b-nf4")


@cache
def checks(folder: str) -> tuple[PeakCheck, ...]:
    """Forecast the artifact's probes again, from traces of all the lengths that they met."""
    records = records_of(folder)
    padded = padded_steps(records)
    programs = {
        step: program_of(records[0].model, step, list(lengths), padded=step in padded)
        for step, lengths in needed_lengths(records).items()
    }
    return verify(records, programs, AllocatorSetting(), capabilities={"NVIDIA H200": "9.0"}).peaks


@pytest.mark.parametrize("folder", FOLDERS)
def test_both_peaks_are_the_measured_ones(folder: str) -> None:
    assert any(check.record.item_tokens for check in checks(folder))
    for check in checks(folder):
        assert check.forecast_allocated_bytes == pytest.approx(check.measured_allocated_bytes, rel=ALLOCATED_SHARE)
        assert check.forecast_reserved_bytes == pytest.approx(check.measured_reserved_bytes, rel=RESERVED_SHARE)


def test_micro_batches_were_padded() -> None:
    assert padded_steps(records_of(PADDED))
