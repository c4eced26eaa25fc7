"""The device under a probe: its memory in bytes, its caches, its clock."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from raysweep.errors import MachineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Device memory at one moment, in bytes; peaks since the last reset."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_allocator_bytes: int | None
    """In use on the device and not reserved by this process's allocator; other processes' memory counts too."""
    free_bytes: int | None
    retries: int
    """Allocations retried since the process began."""
    peak_pinned_bytes: int | None = None
    """Of the host, pinned by torch's host allocator, its cached blocks included; None where it keeps no account."""


class Device(Protocol):
    """What a runner asks of its device."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""

    @property
    def name(self) -> str:
        """The device's own name."""

    @property
    def total_bytes(self) -> int:
        """Its memory, exactly as it reports it."""

    def usage(self) -> Usage:
        """Return what is in use now."""

    def reset_peaks(self) -> None:
        """Start new peaks from what is in use now."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def release_caches(self) -> None:
        """Give back everything that no tensor uses, libraries' workspaces and pinned host memory included."""

    def limit(self, allocator_bytes: int | None) -> None:
        """Cap what the allocator may reserve; None lifts the cap.

        Raises:
            MachineError: the device cannot be capped so.
        """


class CudaDevice:
    """One CUDA device of this process."""

    def __init__(self, index: int = 0) -> None:
        """Take the device.

        Raises:
            MachineError: there is no such device.
        """
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise MachineError(
                f"expected CUDA device {index}, but torch {torch.__version__} sees "
                f"{torch.cuda.device_count()} of them: check `nvidia-smi` and that torch is a CUDA build."
            )
        self._index = index
        torch.cuda.set_device(index)
        self._properties = torch.cuda.get_device_properties(index)

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""
        return torch.device("cuda", self._index)

    @property
    def name(self) -> str:
        """The device's own name."""
        return str(self._properties.name)

    @property
    def total_bytes(self) -> int:
        """Its memory, exactly as torch reports it."""
        return int(self._properties.total_memory)

    def usage(self) -> Usage:
        """Return what is in use now."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._index)
        reserved_bytes = torch.cuda.memory_reserved(self._index)
        return Usage(
            allocated_bytes=torch.cuda.memory_allocated(self._index),
            reserved_bytes=reserved_bytes,
            peak_allocated_bytes=torch.cuda.max_memory_allocated(self._index),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(self._index),
            outside_allocator_bytes=total_bytes - free_bytes - reserved_bytes,
            free_bytes=free_bytes,
            retries=int(torch.cuda.memory_stats(self._index).get("num_alloc_retries", 0)),
            peak_pinned_bytes=torch.cuda.host_memory_stats().get("allocated_bytes.peak"),
        )

    def reset_peaks(self) -> None:
        """Start new peaks from what is in use now."""
        torch.cuda.reset_peak_memory_stats(self._index)
        torch.cuda.reset_peak_host_memory_stats()
        _reset_peak_resident()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._index)

    def release_caches(self) -> None:
        """Give back cached memory, cuBLAS's workspaces and cached pinned memory, as if no step had run yet."""
        torch.cuda.synchronize(self._index)
        # Neither has a public name; without the first, an earlier probe's workspaces count in a later one's peak.
        for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):
            release = getattr(torch._C, name, None)
            if release is not None:
                release()
        torch.cuda.empty_cache()

    def limit(self, allocator_bytes: int | None) -> None:
        """Cap the allocator, with real out-of-memory errors at the cap."""
        share = 1.0 if allocator_bytes is None else allocator_bytes / self.total_bytes
        if not 0 < share <= 1:
            raise MachineError(
                f"a card with {allocator_bytes} bytes for the allocator cannot be emulated on {self.name}, "
                f"which has {self.total_bytes} bytes; expected a smaller card."
            )
        torch.cuda.set_per_process_memory_fraction(share, self._index)


class CpuDevice:
    """The host's own processor, for tests and for looking at a probe without a GPU.

    It has no caching allocator: both peaks are the process's peak resident set, and nothing lives outside it.
    """

    torch_device = torch.device("cpu")

    @property
    def name(self) -> str:
        """The processor's kind."""
        return f"CPU ({platform.machine()})"

    @property
    def total_bytes(self) -> int:
        """The host's memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def usage(self) -> Usage:
        """Return the resident set."""
        peak_bytes = peak_resident_bytes()
        now_bytes = min(peak_bytes, _resident_bytes())
        return Usage(
            allocated_bytes=now_bytes,
            reserved_bytes=now_bytes,
            peak_allocated_bytes=peak_bytes,
            peak_reserved_bytes=peak_bytes,
            outside_allocator_bytes=None,
            free_bytes=None,
            retries=0,
        )

    def reset_peaks(self) -> None:
        """Start a new peak where the kernel allows it."""
        _reset_peak_resident()

    def synchronize(self) -> None:
        """Return at once: work on the CPU is done when it returns."""

    def release_caches(self) -> None:
        """Return at once: there are none."""

    def limit(self, allocator_bytes: int | None) -> None:
        """Refuse any cap."""
        if allocator_bytes is not None:
            raise MachineError("a card is emulated by capping a CUDA device's allocator; the CPU has none to cap.")


def take_device(kind: str) -> Device:
    """Return the device of a name such as ``cuda``, ``cuda:1`` or ``cpu``.

    Raises:
        MachineError: there is no such device.
    """
    try:
        device = torch.device(kind)
    except RuntimeError as error:
        raise MachineError(f"{kind!r} is no device; expected 'cuda', 'cuda:N' or 'cpu'.") from error
    if device.type == "cuda":
        return CudaDevice(device.index or 0)
    if device.type == "cpu":
        return CpuDevice()
    raise MachineError(f"probes run on 'cuda' or 'cpu', not on {kind!r}.")


def peak_resident_bytes() -> int:
    """Return the process's peak resident set since the last reset, or since it began where it cannot be reset.

    Source: proc(5)'s VmHWM, the peak of anonymous, file and shared pages together. Pinned pages of ``cudaHostAlloc``
    are shared ones, and so are in it.
    """
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _resident_bytes() -> int:
    return _status_bytes("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _reset_peak_resident() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): 5 resets VmHWM alone
    except OSError:
        return
