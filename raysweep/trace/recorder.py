"""What a step does, as events: a storage not seen before is an allocation, a storage that dies is a free."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from raysweep.memory.program import Category, Label, LabelTable, SegmentName, Work
from raysweep.step.observer import Phase
from raysweep.trace.gradients import ADD, ADD_IN_PLACE, holders_of_an_unshared_gradient, is_added_in_place
from raysweep.trace.operations import DEVICE, Known, OpKind, signature

CUBLAS_WORKSPACE = "cublas_workspace"
"""The op that stands for cuBLAS taking its workspace; replays give it the size that the device's chip has."""
CUBLASLT_WORKSPACE = "cublaslt_workspace"
"""The op that stands for cuBLASLt taking its own, ``CUBLASLT_WORKSPACE_BYTES``."""
WORKSPACES = (CUBLAS_WORKSPACE, CUBLASLT_WORKSPACE)
CUBLASLT_WORKSPACE_BYTES = 1 << 20
"""On every chip, unless ``CUBLASLT_WORKSPACE_SIZE`` says otherwise.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseCUDABlasLtWorkspaceSize; measured with torch 2.11: layers with a
bias hold 1 MiB more in each thread that runs them.
"""

_MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}
_LAST_FIRST = {"native_dropout", "bitsandbytes.quantize_4bit", "bitsandbytes.quantize_blockwise"}
"""Kernels that take memory for the last of what they return first.

Source: aten/src/ATen/native/cuda/Dropout.cu, dropout_cuda: the mask, then the output. Of bitsandbytes
backends/cuda/ops.py, quantize_4bit and quantize_blockwise: the scales, then what is scaled.
"""
_LOSS_LAYER = -1

EMPTY_CACHE = -1
"""The event that stands for ``torch.cuda.empty_cache()``."""


_Number = TypeVar("_Number", int, NDArray[np.int64])


def freed(number: _Number) -> _Number:
    """Return the event by which an object is freed, and of such an event the object."""
    return -2 - number


@dataclass(slots=True)
class Recorded:
    """One segment's events."""

    events: list[int] = field(default_factory=list)
    """An object's number where it is allocated, ``freed(number)`` where it dies, or ``EMPTY_CACHE``.

    Objects are numbered as they are allocated, over the whole recording.
    """
    chunks: list[tuple[int, int, int]] = field(default_factory=list)
    """(place among the events, chunk, number of chunks) at the start of each loss chunk's computation."""
    work: dict[int, list[float]] = field(default_factory=dict)
    """By stretch between chunk marks: the ``Work`` done."""
    host_blocks: list[int] = field(default_factory=list)
    """Bytes of each pinned host block that was asked for."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__ has no types
    """Sees every operation; also the step's ``Observer``, which tells it phases and loss chunks."""

    def __init__(self) -> None:
        """Start with an empty loading segment."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.labels = LabelTable()
        self.nbytes: list[int] = []
        """Of every object, by number."""
        self.label_of: list[int] = []
        """Every object's label: its place in ``labels``."""
        self.segments: dict[SegmentName, Recorded] = {}
        self.current = Recorded()
        self.category = Category.WEIGHTS
        self._phase = Phase.LOAD
        self._alive: dict[int, _Reference] = {}
        self._layer_starts: list[int] = []
        self._layers: list[int] = []
        self._layer: int | None = None
        self._workspaces: set[tuple[str, str]] = set()
        self._adds_in_place = False
        self._alone = holders_of_an_unshared_gradient()
        self._kinds: dict[Any, OpKind] = {}
        self._known: dict[Any, Known] = {}
        self._stand_ins: dict[Any, Callable[..., Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare every operation a detour: torch would keep its compiler off the dispatch, and nothing is compiled."""
        return False

    # --- the step's observer

    def phase(self, name: Phase) -> None:
        """Note that a phase begins."""
        self._phase = name
        if name is Phase.FORWARD:
            self._layer_starts, self._layers = [], []
            self._layer = None
        elif name is Phase.LOSS:
            self._mark_layer(_LOSS_LAYER)

    def loss_chunk(self, index: int, count: int) -> None:
        """Note that a loss chunk's computation begins."""
        self.current.chunks.append((len(self.current.events), index, count))

    def enter_layer(self, layer: int) -> None:
        """Note that the forward pass enters a decoder layer (a recomputation in the backward pass does not count)."""
        if self._phase is Phase.FORWARD:
            self._mark_layer(layer)

    def _mark_layer(self, layer: int) -> None:
        self._layer = layer
        self._layer_starts.append(torch._C._autograd._get_sequence_nr())
        self._layers.append(layer)

    # --- segments

    def end(self, name: SegmentName) -> None:
        """Close the current segment under a name."""
        self.segments[name] = self.current
        self.current = Recorded()

    def repeat(self, name: SegmentName, again: SegmentName) -> None:
        """Add a segment that does what another did, with objects of its own, but takes no workspace: those are kept."""
        done = self.segments[name]
        copies: dict[int, int] = {}
        repeated = Recorded(work=done.work, host_blocks=done.host_blocks)
        places = []
        for event in done.events:
            places.append(len(repeated.events))
            if event == EMPTY_CACHE:
                repeated.events.append(event)
            elif event < 0:
                number = freed(event)
                repeated.events.append(freed(copies.get(number, number)))
            elif self.labels.label(self.label_of[event]).op not in WORKSPACES:
                copies[event] = len(self.nbytes)
                repeated.events.append(len(self.nbytes))
                self.nbytes.append(self.nbytes[event])
                self.label_of.append(self.label_of[event])
        places.append(len(repeated.events))
        repeated.chunks = [(places[place], index, count) for place, index, count in done.chunks]
        self.segments[again] = repeated

    def drop(self) -> None:
        """Forget the current segment's events."""
        self.current = Recorded()

    # --- events

    def allocate(self, nbytes: int, label: Label) -> int:
        """Record an allocation without a tensor; return its number for ``release``."""
        number = len(self.nbytes)
        self.nbytes.append(nbytes)
        self.label_of.append(self.labels.index(label))
        self.current.events.append(number)
        return number

    def release(self, number: int) -> None:
        """Record that an object is freed."""
        self.current.events.append(freed(number))

    def empty_cache(self) -> None:
        """Record a ``torch.cuda.empty_cache()``."""
        self.current.events.append(EMPTY_CACHE)

    def retag(self, tensor: torch.Tensor, category: Category) -> None:
        """Say what a live tensor is for, now that it is known."""
        number = self._number(tensor)
        if number is not None:
            known = self.labels.label(self.label_of[number])
            self.label_of[number] = self.labels.index(replace(known, category=category))

    def _number(self, tensor: torch.Tensor) -> int | None:
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return None if known is None else known.number

    def see(self, tensor: torch.Tensor, op: str) -> bool:
        """Record the tensor's storage if it is new; return whether it was."""
        if tensor.device.type != DEVICE:
            return False
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return False
        nbytes = storage.nbytes()
        if not nbytes:
            return False
        number = self.allocate(nbytes, self.label(op))
        self._alive[key] = _Reference(storage, self._gone, key, number)
        return True

    def _gone(self, reference: _Reference) -> None:
        if self._alive.pop(reference.key, None) is not None:
            self.release(reference.number)

    def label(self, op: str) -> Label:
        """Return the label of an allocation made now by ``op``."""
        layer = self._layer
        if self._phase is Phase.BACKWARD:
            layer = self._backward_layer()
        category = self.category
        if self._phase in (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD):
            category = Category.LOSS if layer == _LOSS_LAYER else Category.ACTIVATIONS
        elif self._phase is Phase.OPTIMIZER:
            category, layer = Category.OPTIMIZER, None
        shown = None if layer == _LOSS_LAYER or self._phase is Phase.LOAD else layer
        return Label(category=category, phase=self._phase.value, layer=shown, op=op)

    def _backward_layer(self) -> int | None:
        """The layer whose forward pass made the autograd node that runs now."""
        node = torch._C._current_autograd_node()
        if node is None or not self._layers:
            return None
        place = bisect.bisect_right(self._layer_starts, node._sequence_nr()) - 1
        # An AccumulateGrad node has the highest number of all: it belongs to no layer.
        return self._layers[place] if place >= 0 and node._sequence_nr() < _ACCUMULATE_GRAD else None

    # --- operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and record what it allocated.

        What comes out of an operation, and what it costs, hangs on its arguments' shapes alone, and a model's layers
        ask for the same again and again: what was computed once is kept, since most operations on meta tensors are
        slow Python.
        """
        kwargs = kwargs or {}
        in_place = func is ADD and (self._adds_in_place or is_added_in_place(args[0], self._alone))
        if in_place:
            func = ADD_IN_PLACE
        if func in self._stand_ins:
            with self:
                return self._stand_ins[func](*args, **kwargs)
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = OpKind.of(func)
        if kind.is_view:
            return func(*args, **kwargs)
        key = signature(func, args, kwargs) if kind.is_functional else None
        known = self._known.get(key) if key is not None else None
        if known is None:
            out = func(*args, **kwargs)
            known = Known(kind, args, kwargs, out)
            if key is not None and known.is_new(args, out):
                self._known[key] = known
        else:
            out = known.again()
        made = (out,) if isinstance(out, torch.Tensor) else tree_iter(out)
        for tensor in reversed(tuple(made)) if kind.name in _LAST_FIRST else made:
            if isinstance(tensor, torch.Tensor):
                self.see(tensor, kind.name)
        work = self._work_here()
        work[Work.LAUNCHES] += 1
        work[known.unit] += known.amount
        if kind.name in _MATRIX_PRODUCTS:
            if _adds_a_bias(kind.name, args):
                self._take_workspace(CUBLASLT_WORKSPACE, CUBLASLT_WORKSPACE_BYTES)
            else:
                self._take_workspace(CUBLAS_WORKSPACE, 0)
        # Autograd asked for a new tensor: it gets one, of the same memory.
        return out.detach() if in_place else out

    @contextmanager
    def standing_in(self, stand_ins: dict[Any, Callable[..., Any]]) -> Iterator[None]:
        """Within, see what stands in for operations whose kernels take more than what they return."""
        before, self._stand_ins = self._stand_ins, self._stand_ins | stand_ins
        try:
            yield
        finally:
            self._stand_ins = before

    @contextmanager
    def adding_in_place(self) -> Iterator[None]:
        """Within, sums are made in place, as kernels make them that take another way where a dispatch mode looks on."""
        before, self._adds_in_place = self._adds_in_place, True
        try:
            yield
        finally:
            self._adds_in_place = before

    def _work_here(self) -> list[float]:
        return self.current.work.setdefault(len(self.current.chunks), [0.0] * len(Work))

    def add_work(self, kind: Work, amount: float) -> None:
        """Count work that no operation here shows, such as a kernel's that a stand-in stands for."""
        self._work_here()[kind] += amount

    def _take_workspace(self, op: str, nbytes: int) -> None:
        """Record that a library takes a workspace at a thread's first product: in the main thread, and in autograd's.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, getCurrentCUDABlasHandle and getCUDABlasLtWorkspace.
        """
        taken = op, "backward" if self._phase is Phase.BACKWARD else "main"
        if taken not in self._workspaces and self._phase is not Phase.LOAD:
            self._workspaces.add(taken)
            self.allocate(nbytes, Label(category=Category.WORKSPACE, phase=self._phase.value, layer=None, op=op))


def _adds_a_bias(op: str, args: tuple[Any, ...]) -> bool:
    """Return whether a product goes to cuBLASLt, which adds a layer's bias on the way.

    Source: aten/src/ATen/native/cuda/Blas.cpp, addmm_out_cuda_impl.
    """
    return op == "addmm" and args[0].dim() == 1


_ACCUMULATE_GRAD = 1 << 62


class _Reference(weakref.ref[Any]):
    """A weak reference to a storage that knows its key and its object's number."""

    __slots__ = ("key", "number")
    key: int
    number: int

    def __new__(cls, storage: Any, callback: Callable[[Any], None], key: int, number: int) -> _Reference:
        self = super().__new__(cls, storage, callback)
        self.key = key
        self.number = number
        return self

    def __init__(self, *_: Any) -> None:
        """Take the arguments that ``__new__`` has used: the parent's own would refuse them."""
