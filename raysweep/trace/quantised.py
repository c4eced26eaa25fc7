"""bitsandbytes on a device that has no storage: what its CUDA kernels, and the Python around them, take and free.

Its own Python runs: nf4 layers, their autograd function and the 8-bit optimizers. Of its kernels only those that take
more than what they return need a stand-in; of the others torch's own fake kernels tell what comes out.

Source: bitsandbytes 0.50.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from raysweep.memory.program import Work
from raysweep.setting import Optimizer, StepSetting, Weights
from raysweep.step.packages import require
from raysweep.step.quantised import DTYPE, require_quantisation
from raysweep.trace.operations import DEVICE
from raysweep.trace.replaced import replaced

if TYPE_CHECKING:
    from raysweep.trace.recorder import Recorder


def needs_bitsandbytes(setting: StepSetting) -> bool:
    """Return whether a step runs bitsandbytes' code."""
    return setting.weights is Weights.NF4 or setting.optimizer is not Optimizer.ADAMW


def require_bitsandbytes(setting: StepSetting) -> None:
    """Import what a step needs of bitsandbytes.

    Raises:
        MissingKernelError: it is not installed, or for weights in nf4 accelerate is not.
    """
    log = logging.getLogger("bitsandbytes")
    level = log.level
    log.setLevel(logging.ERROR)  # its import warns of kernels for the CPU, which no trace calls
    try:
        if setting.weights is Weights.NF4:
            require_quantisation(setting.weights)
        elif needs_bitsandbytes(setting):
            require("bitsandbytes", f"step.optimizer: {setting.optimizer.value!r}")
    finally:
        log.setLevel(level)


@contextmanager
def bitsandbytes_paths(recorder: Recorder, setting: StepSetting) -> Iterator[None]:
    """Within, bitsandbytes acts on tensors without storage as it would on CUDA; nothing changes where it is not used.

    What it keeps for a whole process is made anew: the table of 256 floats by which scales are quantised, which lies on
    the device from the first layer that is quantised.

    Args:
        recorder: sees what the kernels take.
        setting: the step.
    """
    if not needs_bitsandbytes(setting):
        yield
        return
    from bitsandbytes import functional as kernels

    pages: Any = kernels.GlobalPageManager
    paged = pages.get_instance().paged_tensors
    before = len(paged)
    with ExitStack() as stack:
        for name, value in (
            ("name2qmap", {}),
            ("get_4bit_type", _levels),
            ("get_paged", _paged_state),
            ("fill", _no_kernel),
            ("prefetch_tensor", _no_kernel),
        ):
            stack.enter_context(replaced(kernels, name, value))
        stack.enter_context(recorder.standing_in({torch.ops.bitsandbytes.gemm_4bit.default: _gemm_4bit(recorder)}))
        try:
            yield
        finally:
            del paged[before:]  # bitsandbytes keeps every paged state for good


def quantise(layer: Any) -> None:
    """Give an nf4 layer its packed weight and scales, from a weight in bf16 that goes afterwards.

    What stays, of a weight of n elements: n / 2 bytes, one byte for each 64 elements, one float for each 16,384, the
    tables of 16 and of 256 floats, and a float by which the scales are shifted.

    Source: bitsandbytes/nn/modules.py, Params4bit._quantize, and functional.py, quantize_4bit; the weight as
    ``raysweep.step.quantised`` makes it.

    Args:
        layer: a ``bitsandbytes.nn.Linear4bit`` on ``meta``, quantised already or not.
    """
    from bitsandbytes.nn.modules import Params4bit

    old = layer.weight
    weight = torch.empty(layer.out_features, layer.in_features, dtype=DTYPE, device=DEVICE)
    kept = {name: getattr(old, name) for name in ("blocksize", "compress_statistics", "quant_type", "quant_storage")}
    parameter: Any = Params4bit(weight, module=layer, **kept)
    # ``to`` quantises on any device but this one.
    layer.weight = parameter._quantize(DEVICE)


def is_nf4(module: torch.nn.Module) -> bool:
    """Return whether a module is one of bitsandbytes' layers of 4 bits."""
    from bitsandbytes.nn.modules import Linear4bit

    return isinstance(module, Linear4bit)


def _gemm_4bit(recorder: Recorder) -> Callable[..., torch.Tensor]:
    """A product with a weight in 4 bits: scales and weight are dequantised, and live until the product is there.

    Left out: micro-batches of few tokens (on an H200 up to some tens, as the layer's shape has it) take a kernel that
    dequantises nothing in the forward pass. The backward pass dequantises whatever the number of tokens.

    Source: bitsandbytes/backends/cuda/ops.py, gemm_4bit and _dequant_linear_fallback.
    """

    def run(  # noqa: PLR0917  the operation's own signature
        a: torch.Tensor,
        b: torch.Tensor,
        shape_b: list[int],
        absmax: torch.Tensor,
        blocksize: int,
        quant_type: str,
        bias: torch.Tensor | None = None,
        absmax_8bit: torch.Tensor | None = None,
        absmax_code: torch.Tensor | None = None,
        absmax_offset: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Of ``a``, (..., inputs), with a packed weight of shape ``shape_b``, (outputs, inputs)."""
        del absmax_code, quant_type, blocksize
        if absmax_8bit is not None and absmax_offset is not None:
            scales = torch.empty_like(absmax_8bit, dtype=torch.float32)
            shifted = scales + absmax_offset  # noqa: F841  alive until the product is there
        weight = torch.empty(shape_b, dtype=a.dtype, device=a.device)
        recorder.add_work(Work.BYTES, float(b.numel() * b.element_size()))
        # What linear comes to; called here, below autograd, it would be seen as an operation of unknown work.
        rows = (a if a.is_contiguous() else a.clone(memory_format=torch.contiguous_format)).view(-1, a.shape[-1])
        product = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
        return product.view(*a.shape[:-1], shape_b[0])

    return run


def _levels(_: str, device: torch.device, **__: Any) -> torch.Tensor:
    """The table of 16 floats, which torch.tensor would make unseen.

    Source: bitsandbytes/functional.py, get_4bit_type.
    """
    levels = torch.empty(16, device=device)
    levels.div_(levels.abs().max())
    return levels


def _paged_state(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An optimizer's state in CUDA's managed memory, which is the host's here: the allocator never sees it.

    Source: bitsandbytes/functional.py, get_paged; optim/optimizer.py, get_state_buffer, asks for it from 100,000
    elements on.
    """
    state = torch.empty(prod(shape), dtype=dtype).view(shape)
    state.is_paged = True  # type: ignore[attr-defined]  # bitsandbytes' own mark
    return state


def _no_kernel(*_: Any, **__: Any) -> None:
    """Fill, or move, a paged state: no memory of the allocator's is taken."""
