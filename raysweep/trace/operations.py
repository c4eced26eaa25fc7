"""What an operation is, and what its arguments decide: the tensors that come out of it, and its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from raysweep.memory.program import Work

DEVICE = "meta"
"""Tensors of this device stand for the GPU's; all others are the host's."""


@dataclass(frozen=True, slots=True)
class OpKind:
    """What is known of an operation once and for all."""

    name: str
    is_view: bool
    is_functional: bool
    """Writes to none of its arguments."""
    flops: Callable[..., float] | None

    @classmethod
    def of(cls, func: Any) -> OpKind:
        """Read it off an operation's schema."""
        schema = func._schema
        aliases = [r.alias_info for r in schema.returns]
        return cls(
            name=str(func.overloadpacket).removeprefix("aten."),
            is_view=bool(aliases) and all(a is not None and not a.is_write for a in aliases),
            is_functional=not schema.is_mutable,
            flops=flop_registry.get(func.overloadpacket),
        )


class Known:
    """What an operation's arguments decide: the tensors that come out, and the work."""

    __slots__ = ("amount", "outputs", "single", "unit")

    def __init__(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Keep what came out of a call, and count its work."""
        self.single = isinstance(out, torch.Tensor)
        tensors = (out,) if self.single else out
        self.outputs: list[tuple[Any, Any, torch.dtype]] | None = None
        if isinstance(tensors, tuple) and tensors and all(_on_device(t) for t in tensors):
            self.outputs = [(t.shape, t.stride(), t.dtype) for t in tensors]
        if kind.flops is not None:
            fp32 = self.outputs is not None and self.outputs[0][2] is torch.float32
            self.unit = Work.FP32_FLOPS if fp32 else Work.FLOPS
            self.amount = float(kind.flops(*args, **kwargs, out_val=out))
        else:
            self.unit = Work.BYTES
            seen = (t for t in tree_iter((args, out)) if isinstance(t, torch.Tensor))
            self.amount = float(sum(t.numel() * t.element_size() for t in seen))

    def is_new(self, args: tuple[Any, ...], out: Any) -> bool:
        """True where every output has a storage of its own, as some operations' schemas do not tell."""
        if self.outputs is None:
            return False
        made = [t.untyped_storage()._cdata for t in ((out,) if self.single else out)]
        given = {t.untyped_storage()._cdata for t in tree_iter(args) if isinstance(t, torch.Tensor)}
        return len(set(made)) == len(made) and given.isdisjoint(made)

    def again(self) -> Any:
        """Return new tensors like those that came out before."""
        made = [
            torch.empty_strided(size, stride, dtype=dtype, device=DEVICE) for size, stride, dtype in self.outputs or ()
        ]
        return made[0] if self.single else tuple(made)


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def signature(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return all of the arguments that an output's shape can hang on, or None where a value may matter."""
    parts: list[Any] = [func]
    for value in (*args, *kwargs.items()):
        part = _part(value)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _part(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # A host tensor may stand for a number, whose type promotes otherwise.
        return (value.shape, value.stride(), value.dtype) if value.device.type == DEVICE else None
    if isinstance(value, (list, tuple)):
        parts = [_part(v) for v in value]
        return None if any(p is None for p in parts) else tuple(parts)
    # True == 1 == 1.0 as keys, but they promote differently.
    return (type(value), value)
