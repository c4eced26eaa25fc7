"""What a program is played under: the allocator's setting, its capacity, and what is there before the model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raysweep.memory.blocks import KIB, MIB
from raysweep.memory.heap import Placement
from raysweep.setting import AllocatorSetting

WORKSPACES = 2
"""cuBLAS takes one in the main thread and one in autograd's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a program is played under."""

    allocator: AllocatorSetting = field(default_factory=AllocatorSetting)
    capacity_bytes: int | None = None
    """What the allocator may reserve: the device's memory less what lives outside it. None is no limit."""
    placement: Placement = Placement.DESCENDING
    seed: int = 1
    workspace_bytes: int = 32 * MIB
    """Of one cuBLAS workspace: 32 MiB on Hopper, see ``cublas_workspace_bytes``."""
    warm_process: bool = False
    """True where the process ran a step before it loaded this model: libraries' workspaces are then there already."""


def cublas_workspace_bytes(compute_capability: str | None) -> int:
    """Return the bytes of one of cuBLAS's workspaces on a chip, such as "8.0"; Hopper's where the chip is not known.

    Source: aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize: 4096 KiB x 2 + 16 KiB x 8, and 32 MiB on
    Hopper and Blackwell.
    """
    if compute_capability is None or int(compute_capability.split(".")[0]) >= _HOPPER:
        return 32 * MIB
    return 4096 * 2 * KIB + 16 * 8 * KIB


def cublas_workspace_config(compute_capability: str | None) -> str:
    """Return what makes any chip take the workspace of another, as ``CUBLAS_WORKSPACE_CONFIG`` is written."""
    return ":4096:8" if cublas_workspace_bytes(compute_capability) == 32 * MIB else ":4096:2:16:8"


def configured_workspace_bytes(config: str) -> int:
    """Return the bytes of one workspace under ``CUBLAS_WORKSPACE_CONFIG``: KiB and how many, pair after pair.

    Raises:
        ValueError: it is not written so.
    """
    numbers = [int(part) for part in config.strip(":").split(":")]
    if not numbers or len(numbers) % 2:
        raise ValueError(f"CUBLAS_WORKSPACE_CONFIG: expected pairs such as :4096:2:16:8; {config!r} came")
    return sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True)) * KIB


_HOPPER = 9
"""Major compute capability."""


def possible_conditions(conditions: Conditions) -> tuple[Conditions, ...]:
    """Return what a run cannot know of its own process, the likeliest first: each a variant of the conditions given.

    The order in which the device places segments, and whether cuBLAS's workspaces were there before the model.
    """
    orders = [(Placement.DESCENDING, 1), (Placement.ASCENDING, 1), (Placement.RANDOM, 1), (Placement.RANDOM, 2)]
    return tuple(
        replace(conditions, placement=placement, seed=seed, warm_process=warm)
        for placement, seed in orders
        for warm in (False, True)
    )
