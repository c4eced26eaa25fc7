"""What is rented and what it costs: devices, prices and flavours. A value that no source gave is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from cost.errors import CostError


class Origin(StrEnum):
    """Which list a price came from."""

    USER = "user"
    """The user's own file: it wins over every other list."""
    LIVE = "live"
    """Asked of the provider, or through gpuhunt, when the list was refreshed."""
    DISK = "disk"
    """A catalogue that another tool left on this disk."""
    BUILT_IN = "built-in"
    """The dated catalogue that ships with this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, as its driver and its data sheet describe it. Peaks are dense ones, never those with sparsity."""

    gpu_id: str
    name: str
    torch_device_name: str | None = None
    """As ``torch.cuda.get_device_name`` gives it."""
    ray_accelerator_type: str | None = None
    """As Ray names it among a node's resources (``accelerator_type:H200``)."""
    memory_bytes: int | None = None
    """As torch reports it; it varies by up to 0.2 GiB with form and driver, and the device's own reading wins."""
    memory_bandwidth_bytes_per_second: float | None = None
    dense_bf16_flops_per_second: float | None = None
    fp32_flops_per_second: float | None = None
    tf32_flops_per_second: float | None = None
    compute_capability: str | None = None
    note: str = ""
    source: str = ""

    @property
    def has_native_bf16(self) -> bool | None:
        """Whether it computes in bf16 by itself; None where its compute capability is not known.

        Source: torch.cuda.is_bf16_supported without emulation, for NVIDIA's chips.
        """
        return None if self.compute_capability is None else int(self.compute_capability.split(".")[0]) >= _AMPERE


_AMPERE = 8
"""Major compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a whole machine costs an hour, with all its GPUs; it is never multiplied by their count."""

    usd_per_hour: float
    spot: bool = False
    region: str = ""
    as_of: date | None = None
    """When the source showed it; None where the source is not dated."""
    basis: str = ""
    """How the source gave it, such as ``as printed`` or ``8 x printed per-GPU price``."""
    note: str = ""
    source: str = ""
    origin: Origin = Origin.BUILT_IN
    listed_in: str = ""
    """What of the user's own gave it, such as a file's name; empty for other lists."""

    @property
    def list_name(self) -> str:
        """What people know the list by that it came from."""
        return self.listed_in or self.origin.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What one rents: a provider's machine type, its GPUs and its prices."""

    name: str
    """Provider and machine type: ``hf/h200``."""
    provider: str
    gpu_id: str | None = None
    gpu_count: int = 1
    device: Device | None = None
    prices: tuple[Price, ...] = ()
    memory_bytes: int | None = None
    """Bytes of one GPU, where the owner gave them: they win over the device's."""
    outside_allocator_bytes: int | None = None
    """Device memory in use that PyTorch's allocator does not manage, where the owner measured it."""
    listed_gpu_memory_gb: float | None = None
    """Nominal memory of one GPU as the price list prints it: a label, not a number to compute with."""

    @property
    def total_memory_bytes(self) -> int:
        """Bytes of one GPU: the owner's, else the device's.

        Raises:
            CostError: Neither is known.
        """
        if self.memory_bytes is not None:
            return self.memory_bytes
        if self.device is not None and self.device.memory_bytes is not None:
            return self.device.memory_bytes
        raise CostError(
            f"The memory of {self.name} is not known"
            + (f" (no source gives the bytes of {self.gpu_id!r})" if self.gpu_id else "")
            + ". Give memory_bytes for it, as torch.cuda.get_device_properties(0).total_memory shows it."
        )

    @property
    def usd_per_hour(self) -> float | None:
        """The on-demand price of the whole machine; None where no list has one."""
        price = self.price()
        return price.usd_per_hour if price else None

    def price(self, *, spot: bool = False, region: str | None = None) -> Price | None:
        """Return the price to count with: the user's own, else the newest dated one, else an undated one.

        Where several are equally good (two regions on one day) the dearest is taken, so that a budget holds.

        Args:
            spot: Interruptible machines instead of on-demand ones.
            region: Only this region's prices, and those that name no region.
        """
        fitting = [p for p in self.prices if p.spot == spot and (region is None or p.region in ("", region))]
        return max(fitting, key=_preference, default=None)


def _preference(price: Price) -> tuple[bool, date, float]:
    return (price.origin is Origin.USER, price.as_of or date.min, price.usd_per_hour)
