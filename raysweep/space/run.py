"""The run that is paid for once a choice is made: how its data become steps, what else takes time, how it is billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cost.batches import PackingMethod
from cost.errors import CostError
from cost.lengths import OverLength
from cost.money import Billing, BillingStep, Spot, Storage
from cost.plan import Pause, StartUp
from raysweep.space.cursor import Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """Everything of the run besides its data and its step. Each default is the plainest run."""

    over_length: OverLength = OverLength.TRUNCATE
    """What the run does with an item longer than the length limit."""
    pad_to_multiple_tokens: int = 1
    sorted_by_length: bool = False
    packing: PackingMethod | None = None
    """Several items a sequence, each sequence as long as the length limit."""
    packing_attends_across_items: bool = True
    process_per_stage: bool = False
    warm_up_seconds: float | None = None
    """Of a process; None for what probes measured of it, and nothing where none did."""
    start_up: StartUp = field(default_factory=StartUp)
    pauses: tuple[Pause, ...] = ()
    billing: Billing = field(default_factory=Billing)
    spot: Spot | None = None
    storage: Storage | None = None
    currency: str = "USD"
    """A label: prices are not converted."""
    price_per_gpu_hour: float | None = None
    """Of a cluster that prices its GPUs one by one; it replaces the flavours' prices."""
    slurm_time_margin_share: float = 0.2
    """What a value for Slurm's ``--time`` adds to the projection's upper end."""


_START_UP = ("image_seconds", "model_bytes", "download_bytes_per_second", "load_seconds")
RUN_KEYS = (
    "over_length",
    "pad_to_multiple",
    "sorted_by_length",
    "packing",
    "packing_attends_across_items",
    "process_per_stage",
    "warm_up_seconds",
    "start_up",
    "evaluation",
    "checkpoint",
    "billing",
    "spot",
    "storage",
    "currency",
    "price_per_gpu_hour",
    "slurm_time_margin",
)


def read_run(at: Cursor) -> RunSetting:
    """Return the ``run`` part of a search space.

    Raises:
        SpaceError: it is malformed.
    """
    parts = {key: part for key, part in at.keys(RUN_KEYS).items() if not part.is_null}
    readers: dict[str, tuple[str, Callable[[Cursor], Any]]] = {
        "over_length": ("over_length", lambda c: c.choice(OverLength)),
        "pad_to_multiple": ("pad_to_multiple_tokens", lambda c: c.integer(least=1, most=1_000_000, unit="tokens")),
        "sorted_by_length": ("sorted_by_length", lambda c: c.boolean()),
        "packing": ("packing", lambda c: c.choice(PackingMethod)),
        "packing_attends_across_items": ("packing_attends_across_items", lambda c: c.boolean()),
        "process_per_stage": ("process_per_stage", lambda c: c.boolean()),
        "warm_up_seconds": ("warm_up_seconds", _seconds),
        "start_up": ("start_up", _start_up),
        "billing": ("billing", _billing),
        "spot": ("spot", _spot),
        "storage": ("storage", _storage),
        "currency": ("currency", lambda c: c.text("a currency's label such as USD")),
        "price_per_gpu_hour": ("price_per_gpu_hour", lambda c: c.number("a price of 0 or more", least=0)),
        "slurm_time_margin": ("slurm_time_margin_share", lambda c: c.share("a share such as 20%", zero=True)),
    }
    values = {field_name: read(parts[key]) for key, (field_name, read) in readers.items() if key in parts}
    pauses = tuple(_pause(parts[name], name) for name in ("evaluation", "checkpoint") if name in parts)
    return RunSetting(**values, pauses=pauses)


def _seconds(at: Cursor) -> float:
    return at.number("a number of seconds of 0 or more", least=0)


def _start_up(at: Cursor) -> StartUp:
    parts = at.keys(_START_UP)
    values: dict[str, Any] = {
        key: _seconds(part) for key, part in parts.items() if key in ("image_seconds", "load_seconds")
    }
    if "model_bytes" in parts:
        values["model_bytes"] = parts["model_bytes"].integer(least=0, unit="bytes")
    if "download_bytes_per_second" in parts:
        values["download_bytes_per_second"] = parts["download_bytes_per_second"].number("a rate above 0", above=0)
    start_up = StartUp(**values)
    _checked(at, lambda: start_up.seconds)
    return start_up


def _pause(at: Cursor, name: str) -> Pause:
    parts = at.keys(("seconds", "every_optimizer_steps", "at_stage_end"), required=("seconds",))
    every = parts["every_optimizer_steps"].integer(least=1) if "every_optimizer_steps" in parts else None
    at_end = parts["at_stage_end"].boolean() if "at_stage_end" in parts else every is None
    return Pause(name=name, seconds=_seconds(parts["seconds"]), every_optimizer_steps=every, at_stage_end=at_end)


def _billing(at: Cursor) -> Billing:
    parts = at.keys(("step", "minimum_seconds"))
    return Billing(
        step=parts["step"].choice(BillingStep) if "step" in parts else BillingStep.SECOND,
        minimum_seconds=_seconds(parts["minimum_seconds"]) if "minimum_seconds" in parts else 0.0,
    )


def _spot(at: Cursor) -> Spot:
    names = ("interruptions_per_hour", "checkpoint_every_seconds", "restart_seconds", "wait_seconds")
    parts = at.keys(names, required=("interruptions_per_hour",))
    values: dict[str, Any] = {
        "interruptions_per_hour": parts["interruptions_per_hour"].number("a rate of 0 or more", least=0)
    }
    if "checkpoint_every_seconds" in parts:
        values["checkpoint_every_seconds"] = parts["checkpoint_every_seconds"].number("seconds above 0", above=0)
    values |= {key: _seconds(parts[key]) for key in ("restart_seconds", "wait_seconds") if key in parts}
    return Spot(**values)


def _storage(at: Cursor) -> Storage:
    names = ("size_gb", "price_per_gb_month", "stopped_hours")
    parts = at.keys(names, required=names)
    sizes = {name: parts[name].number("a number of 0 or more", least=0) for name in names}
    return Storage(**sizes)


def _checked(at: Cursor, compute: Callable[[], Any]) -> None:
    try:
        compute()
    except CostError as error:
        at.refuse("settings that go together", f" {error}")
