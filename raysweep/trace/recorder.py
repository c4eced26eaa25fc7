"""What a step does, as events: a storage not seen before is an allocation, a storage that dies is a free."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from raysweep.memory.program import Category, Label, LabelTable, SegmentName, Work
from raysweep.step.observer import Phase
from raysweep.trace.operations import DEVICE, Known, OpKind, signature

CUBLAS_WORKSPACE = "cublas_workspace"
"""The op that stands for cuBLAS taking its workspace; replays give it the size that the device's chip has."""

_MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}
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
        self._workspaces: set[str] = set()
        self._kinds: dict[Any, OpKind] = {}
        self._known: dict[Any, Known] = {}
        self.stand_ins: dict[Any, Callable[..., Any]] = {}
        """Of operations whose kernels take more than what they return: what to run, and see, in their place."""

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
            elif self.labels.label(self.label_of[event]).op != CUBLAS_WORKSPACE:
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
        if self.stand_ins and func in self.stand_ins:
            with self:
                return self.stand_ins[func](*args, **kwargs)
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
        for tensor in (out,) if isinstance(out, torch.Tensor) else tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor, kind.name)
        work = self._work_here()
        work[Work.LAUNCHES] += 1
        work[known.unit] += known.amount
        if kind.name in _MATRIX_PRODUCTS:
            self._take_workspace()
        return out

    def _work_here(self) -> list[float]:
        return self.current.work.setdefault(len(self.current.chunks), [0.0] * len(Work))

    def add_work(self, kind: Work, amount: float) -> None:
        """Count work that no operation here shows, such as a kernel's that a stand-in stands for."""
        self._work_here()[kind] += amount

    def _take_workspace(self) -> None:
        """Record that cuBLAS takes a workspace at a thread's first product: one in the main thread, one in autograd's.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp, getCurrentCUDABlasHandle.
        """
        thread = "backward" if self._phase is Phase.BACKWARD else "main"
        if thread not in self._workspaces and self._phase is not Phase.LOAD:
            self._workspaces.add(thread)
            self.allocate(
                0, Label(category=Category.WORKSPACE, phase=self._phase.value, layer=None, op=CUBLAS_WORKSPACE)
            )


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
