"""What the tests ask of the card that they run on."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from cost.catalogue import Catalogue
from raysweep.probe.device import CudaDevice
from raysweep.setting import ALLOCATOR_VARIABLES

LEFT_BYTES = 2**20
"""What libraries may keep on the card between two tests: a few tables of their kernels."""


def need_free(size_bytes: int) -> None:
    """Skip where the card has less memory free."""
    free_bytes = torch.cuda.mem_get_info()[0]
    if free_bytes < size_bytes:
        pytest.skip(f"needs {size_bytes / 1e9:.1f} GB of free device memory; {free_bytes / 1e9:.1f} GB are")


def need_what_is_forecast() -> None:
    """Skip where a forecast cannot run, or is of other kernels or another allocator than this process's."""
    pytest.importorskip("numba")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the forecast's bf16 attention is that of chips from compute capability 8.0 on")
    for name in ALLOCATOR_VARIABLES:
        if os.environ.get(name):
            pytest.skip(f"{name} is set; the forecast compared is that of the allocator's defaults")


def need_a_clean_card() -> None:
    """Fail where this process still holds tensors, as after a test that failed: they would count in every peak."""
    gc.collect()
    CudaDevice().release_caches()  # cuBLAS's workspaces too
    left_bytes = torch.cuda.memory_allocated()
    assert left_bytes <= LEFT_BYTES, f"an earlier test left {left_bytes:,} bytes; run this module alone"


def need_a_known_card() -> None:
    """Skip where the catalogue lacks this kind of card."""
    if catalogue_id() is None:
        pytest.skip("the catalogue does not know this card, so that nothing says how fast an emulated one is")


def compute_capability() -> str:
    """Return the card's, such as 9.0."""
    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}"


def catalogue_id() -> str | None:
    """Return the catalogue's id of this kind of card, or None."""
    name = torch.cuda.get_device_name()
    devices = Catalogue.load().devices_by_id
    return next((gpu_id for gpu_id, device in devices.items() if device.torch_device_name == name), None)
