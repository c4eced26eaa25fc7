"""How autograd adds up the gradients that reach one tensor on several ways.

On a device it adds to the first of them in place, where nothing but it holds that one. Tensors without storage, and all
tensors while a dispatch mode looks on, it takes for subclasses, of which it makes a new sum each time: the trace would
show memory that no run takes.

Source: torch/csrc/autograd/input_buffer.cpp, accumulate and can_accumulate_inplace; ATen/TensorSubclassLikeUtils.h.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd import graph
from torch.utils._python_dispatch import TorchDispatchMode

ADD = torch.ops.aten.add.Tensor
ADD_IN_PLACE = torch.ops.aten.add_.Tensor
_ENGINE = graph._engine_run_backward.__code__


@dataclass(frozen=True, slots=True)
class Holders:
    """How many hold a tensor, and how many its storage."""

    tensor: int
    storage: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Holders:
        """Count them."""
        counted: Any = tensor  # torch's stubs leave the method out
        return cls(counted._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def is_added_in_place(gradient: torch.Tensor, alone: Holders) -> bool:
    """Return whether ``ADD``, seen by a dispatch mode, is autograd's own and would be in place on a device.

    To be called from the mode's ``__torch_dispatch__``.

    Args:
        gradient: the operation's first argument, which is what autograd holds.
        alone: what ``holders_of_an_unshared_gradient`` returns.
    """
    # An addition within some function's backward has Python's frames of that function in between.
    if torch.is_grad_enabled() or sys._getframe(2).f_code is not _ENGINE:
        return False
    holders = Holders.of(gradient)
    return holders.tensor <= alone.tensor and holders.storage <= alone.storage and _is_dense(gradient)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor fills its memory, in whatever order of its dimensions."""
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.size(d)), reverse=True)
    return tensor.permute(order).is_contiguous()


@cache
def holders_of_an_unshared_gradient() -> Holders:
    """Return who holds a gradient that nothing but autograd does, as a mode sees it: the dispatch does, in passing."""
    counting = _Counting()  # type: ignore[no-untyped-call]  # torch's __init__ has no types
    with counting, torch.enable_grad():
        leaf = torch.empty(1, device="meta", requires_grad=True)
        # Of a sine and a cosine the gradients are each made anew.
        torch.autograd.backward(leaf.sin() + leaf.cos(), torch.empty(1, device="meta"))
    return counting.holders


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__ has no types
    """Counts the holders of the gradient to which autograd adds."""

    holders: Holders

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is ADD and sys._getframe(1).f_code is _ENGINE:
            self.holders = Holders.of(args[0])
        return func(*args, **(kwargs or {}))
