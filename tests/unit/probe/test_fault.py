from __future__ import annotations

import errno
import gc
import weakref

import pytest
import torch

from raysweep.errors import SpaceError
from raysweep.probe.fault import NotFiniteError, Reason, classify, forget
from raysweep.step.packages import MissingKernelError

CUDA_OOM = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1.10 GiB "
    "is free. Including non-PyTorch memory, this process has 138.69 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError(CUDA_OOM), Reason.OOM),
        (torch.OutOfMemoryError("worded in a way nobody has seen yet"), Reason.OOM),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), Reason.OOM),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), Reason.OOM),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Reason.OOM),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Reason.OOM),
        (RuntimeError("Error out of memory at line 380 in file /src/csrc/ops.cu"), Reason.OOM),
        (MemoryError("no host memory"), Reason.HOST_OOM),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"), Reason.HOST_OOM),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Reason.HOST_OOM),
        (NotFiniteError("the loss is not a finite number"), Reason.NAN),
        (MissingKernelError("pip install liger-kernel"), Reason.MISSING_KERNEL),
        (ModuleNotFoundError("No module named 'fla'"), Reason.MISSING_KERNEL),
        (RuntimeError("CUDA error: no kernel image is available for execution"), Reason.MISSING_KERNEL),
        (RuntimeError("\"addmm_impl\" not implemented for 'Half'"), Reason.MISSING_KERNEL),
        (RuntimeError("Triton >= 3.4.0 and < 3.7.1 on Hopper GPUs produces incorrect results"), Reason.MISSING_KERNEL),
        (RuntimeError("CUDA error: device-side assert triggered"), Reason.POISONED),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Reason.POISONED),
        (SpaceError("step.adapter.targets: 'foo' is no linear layer"), Reason.UNSUPPORTED),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), Reason.ERROR),
        (ValueError("memory"), Reason.ERROR),
    ],
)
def test_an_error_has_one_reason(error: Exception, reason: Reason) -> None:
    assert classify(error).reason is reason


def test_class_goes_before_text() -> None:
    assert classify(MemoryError("CUDA out of memory")).reason is Reason.HOST_OOM


def test_an_error_that_another_library_wrapped_keeps_its_reason() -> None:
    try:
        try:
            raise torch.OutOfMemoryError(CUDA_OOM)
        except RuntimeError as inner:
            raise ValueError("the kernel failed") from inner
    except ValueError as error:
        fault = classify(error)
    assert fault.reason is Reason.OOM
    assert fault.requested_bytes == round(2.25 * 2**30)


@pytest.mark.parametrize(
    ("text", "requested_bytes"),
    [
        (CUDA_OOM, round(2.25 * 2**30)),
        ("Tried to allocate 20.00 MiB.", 20 * 2**20),
        ("Tried to allocate 1.50 KiB.", 1536),
        ("Tried to allocate 512 bytes.", 512),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_request_is_read_where_the_message_names_it(text: str, requested_bytes: int | None) -> None:
    assert classify(torch.OutOfMemoryError(text)).requested_bytes == requested_bytes


def test_the_detail_is_one_line() -> None:
    assert classify(RuntimeError("first\nsecond")).detail == "RuntimeError: first"
    assert classify(SpaceError("for people")).detail == "for people"


def test_forgetting_an_error_frees_what_its_frames_hold() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        tensor = torch.zeros(3)
        alive.append(weakref.ref(tensor))
        raise RuntimeError("while holding a tensor")

    kept: list[Exception] = []
    try:
        try:
            fail()
        except RuntimeError as inner:
            raise ValueError("again") from inner
    except ValueError as error:
        kept.append(error)  # as a log handler or a debugger would
        assert alive[0]() is not None
        forget(error)
    gc.collect()
    assert alive[0]() is None
    assert kept[0].__traceback__ is None
