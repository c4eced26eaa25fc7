"""Why a probe ended early, told from the exception alone: by class first, by text second."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from raysweep.errors import RaysweepError
from raysweep.step.packages import MissingKernelError


class Reason(StrEnum):
    """The short stable word of a record."""

    OOM = "oom"
    """The device is out of memory: a result."""
    HOST_OOM = "host_oom"
    POISONED = "poisoned"
    """The process's CUDA context is lost."""
    MISSING_KERNEL = "missing_kernel"
    NAN = "nan"
    UNSUPPORTED = "unsupported"
    """The step refuses this setting for this model."""
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What an exception says about the probe that it ended."""

    reason: Reason
    detail: str
    requested_bytes: int | None = None
    """The allocation that failed, where the message names it."""


class NotFiniteError(Exception):
    """The loss of a step is not a finite number."""


_DEVICE_OOM_TEXTS = (
    "cuda out of memory",  # torch's allocator, where another library raised it again as its own class
    "cuda error: out of memory",  # torch, outside its allocator
    "cuda driver error: out of memory",  # torch, expandable segments
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "triton error [cuda]: out of memory",
    "error out of memory at line",  # bitsandbytes, csrc/common
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
)

_HOST_OOM_TEXTS = (
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "cannot allocate memory",
    "not enough memory: you tried to allocate",
)

_MISSING_KERNEL_TEXTS = (
    "no kernel image is available",  # built for other chips than this one
    "no available kernel",  # scaled_dot_product_attention, all backends ruled out
    "could not run 'aten::",
    "not implemented for",
    "out of resource: shared memory",  # Triton: the kernel's tiles do not fit this chip
    "ptxas",
    "produces incorrect results",  # flash-linear-attention: a Triton that miscompiles on this chip
    "cuda kernel is not available",
)

_POISONED_TEXTS = (
    "device-side assert",
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "uncorrectable ecc",
    "launch timed out",
    "cuda error: unknown error",
    "context is destroyed",
)

_UNIT_BYTES = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_REQUESTED = re.compile(r"tried to allocate ([\d.]+) (bytes|kib|mib|gib)", re.IGNORECASE)
"""How c10/cuda/CUDACachingAllocator.cpp writes the request, to two decimals of its unit."""


def classify(error: BaseException) -> Fault:
    """Return what ended a probe; pure, so that every case can be tested with a faked error."""
    chain = tuple(_chain(error))
    said = "\n".join(str(e) for e in chain)
    reason = _reason(chain, said.lower())
    return Fault(reason=reason, detail=_detail(error), requested_bytes=_requested_bytes(said))


def _reason(chain: tuple[BaseException, ...], said: str) -> Reason:
    by_class: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Reason], ...] = (
        (torch.OutOfMemoryError, Reason.OOM),
        (MemoryError, Reason.HOST_OOM),
        (NotFiniteError, Reason.NAN),
        ((MissingKernelError, ImportError), Reason.MISSING_KERNEL),
        (RaysweepError, Reason.UNSUPPORTED),
    )
    for classes, reason in by_class:
        if any(isinstance(error, classes) for error in chain):
            return reason
    if any(isinstance(error, OSError) and error.errno == errno.ENOMEM for error in chain):
        return Reason.HOST_OOM
    by_text = (
        (_DEVICE_OOM_TEXTS, Reason.OOM),
        (_HOST_OOM_TEXTS, Reason.HOST_OOM),
        (_MISSING_KERNEL_TEXTS, Reason.MISSING_KERNEL),
        (_POISONED_TEXTS, Reason.POISONED),
    )
    for texts, reason in by_text:
        if any(text in said for text in texts):
            return reason
    return Reason.ERROR


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from; a context that ``from None`` hides stays hidden."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _detail(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RaysweepError) and lines:
        return lines[0]  # written for people already
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines else name


def _requested_bytes(said: str) -> int | None:
    match = _REQUESTED.search(said)
    return round(float(match.group(1)) * _UNIT_BYTES[match.group(2).lower()]) if match else None


def forget(error: BaseException) -> None:
    """Let go of every tensor that the traceback's frames hold, so that device memory can come back."""
    import traceback

    for part in _chain(error):
        traceback.clear_frames(part.__traceback__)
        part.__traceback__ = None
