from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysweep.errors import MachineError
from raysweep.probe.batches import make_batch, micro_batches
from raysweep.probe.device import CpuDevice, CudaDevice, Usage, peak_resident_bytes, take_device
from raysweep.probe.meter import SLACK_BYTES, is_clean
from raysweep.probe.steps import Pace
from raysweep.probe.timing import Timing, rate
from raysweep.probe.versions import installed_versions

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12).map(tuple)
LEVEL = Usage(
    allocated_bytes=5_000_000_000,
    reserved_bytes=5_100_000_000,
    peak_allocated_bytes=0,
    peak_reserved_bytes=0,
    outside_allocator_bytes=800_000_000,
    free_bytes=10_000_000_000,
    retries=0,
)


@given(lengths=LENGTHS)
def test_a_batch_has_every_items_tokens_and_masks_the_rest(lengths: tuple[int, ...]) -> None:
    batch = make_batch(lengths, vocabulary=11, device=torch.device("cpu"))
    assert batch.input_ids.shape == batch.labels.shape == (len(lengths), max(lengths))
    real = batch.labels != -100
    assert real.sum(1).tolist() == list(lengths)
    assert torch.equal(batch.labels[real], batch.input_ids[real])
    assert batch.input_ids.max() < 11
    if batch.attention_mask is None:
        assert len(set(lengths)) == 1
    else:
        assert torch.equal(batch.attention_mask.bool(), real)
        assert len(set(lengths)) > 1


@given(items=LENGTHS, micro_batch=st.integers(1, 5))
def test_micro_batches_keep_every_item_in_its_order(items: tuple[int, ...], micro_batch: int) -> None:
    parts = micro_batches(items, micro_batch)
    assert sum(parts, ()) == items
    assert all(len(part) == micro_batch for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= micro_batch


def test_the_rate_is_the_median_with_its_extremes() -> None:
    seen = rate(Timing(step_seconds=[1.0, 2.0, 4.0], step_tokens=[100, 100, 100]))
    assert seen is not None
    assert (seen.low, seen.median, seen.high) == (25, 50, 100)


def test_nothing_measured_has_no_rate() -> None:
    assert rate(Timing(first_step_seconds=[3.0])) is None


def test_steps_go_on_until_there_are_enough_of_them_and_of_their_seconds() -> None:
    pace = Pace(measured_steps=3, measured_seconds=1.0, most_steps=5)
    assert not pace.enough([5.0, 5.0])
    assert pace.enough([0.4, 0.4, 0.4])
    assert not pace.enough([0.1] * 4)
    assert pace.enough([0.1] * 5)


def test_memory_back_at_its_level_is_clean() -> None:
    assert is_clean(LEVEL, level=LEVEL, at_end=LEVEL)


@pytest.mark.parametrize("field", ["allocated_bytes", "reserved_bytes", "outside_allocator_bytes"])
def test_memory_that_stays_is_not_clean(field: str) -> None:
    more = replace(LEVEL, **{field: getattr(LEVEL, field) + SLACK_BYTES + 1})
    assert not is_clean(more, level=LEVEL, at_end=LEVEL)


def test_kernels_that_the_probe_loaded_may_stay() -> None:
    loaded = replace(LEVEL, outside_allocator_bytes=8_000_000_000)
    assert is_clean(loaded, level=LEVEL, at_end=loaded)
    assert not is_clean(loaded, level=LEVEL, at_end=LEVEL)


def test_the_cpu_measures_its_resident_set() -> None:
    device = CpuDevice()
    device.reset_peaks()
    before = device.usage().peak_allocated_bytes
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    after = device.usage()
    assert after.peak_allocated_bytes >= before + block.nbytes // 2
    assert after.peak_allocated_bytes == peak_resident_bytes()
    assert after.outside_allocator_bytes is None
    assert device.total_bytes > after.peak_allocated_bytes


@pytest.mark.parametrize("kind", ["gpu", "mps", "cuda:99"])
def test_a_device_that_is_not_there_is_named(kind: str) -> None:
    with pytest.raises(MachineError, match=r"expected|run on"):
        take_device(kind)


def test_a_cpu_cannot_stand_for_a_card() -> None:
    with pytest.raises(MachineError, match="CUDA"):
        CpuDevice().limit(1_000_000)


def test_versions_hold_what_is_installed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    found = installed_versions()
    assert found["torch"] == torch.__version__
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert all(found.values())


def test_a_cuda_device_tells_pinned_host_memory_since_the_last_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"allocated_bytes.peak": 3 * 2**30}
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "set_device": None,
        "get_device_properties": SimpleNamespace(name="card", total_memory=24 * 2**30),
        "mem_get_info": (20 * 2**30, 24 * 2**30),
        "memory_reserved": 2**30,
        "memory_allocated": 2**29,
        "max_memory_reserved": 2**30,
        "max_memory_allocated": 2**29,
        "memory_stats": {},
        "host_memory_stats": peaks,
        "reset_peak_memory_stats": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_host_memory_stats", lambda: peaks.update({"allocated_bytes.peak": 0}))
    device = CudaDevice()
    assert device.usage().peak_pinned_bytes == 3 * 2**30
    device.reset_peaks()
    assert device.usage().peak_pinned_bytes == 0
    peaks.clear()
    assert device.usage().peak_pinned_bytes is None
