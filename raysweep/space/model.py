"""A search space: what is searched, on what, and how much may be spent. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.records import Mode
from raysweep.setting import AllocatorSetting, StepSetting, WeightsFrom
from raysweep.space.run import RunSetting

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_MARGIN_SHARE = 0.08
"""Share of a device's memory kept free where a space names none: room for fragmentation, drivers, a next version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavourChoice:
    """A flavour as the space names it: of the catalogue, or one's own card."""

    name: str
    gpu_id: str | None = None
    memory_bytes: int | None = None
    outside_allocator_bytes: int | None = None
    price_usd_per_hour: float | None = None
    """Of the whole machine."""
    where: str = field(default="", compare=False)
    """File, line and path, for an error found once names are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of the run: items, and either how often they are seen or their share of the loss-bearing tokens."""

    name: str
    items: Path
    epochs: float | None = None
    loss_share: float | None = None
    """This stage's own share of all loss-bearing tokens; its epochs follow from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """The data of the run, in the order in which its stages run."""

    stages: tuple[Stage, ...]
    tokenizer: str | None = None
    """What texts are counted with, a folder or a Hub id; None for the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the sweep itself may cost; None is no limit."""

    usd: float | None = None
    hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """A whole search space; ``steps`` is the product of the searched values, in the file's order."""

    source_text: str
    path: Path | None
    model: str
    steps: tuple[StepSetting, ...]
    searched: tuple[str, ...]
    """Dotted names of the searched values, such as ``adapter.rank``."""
    lengths: tuple[int, ...]
    """Tokens in one item, ascending, each once; empty where the space names none."""
    flavours: tuple[FlavourChoice, ...]
    weights_from: WeightsFrom = WeightsFrom.RANDOM
    """What the probes load; forecasts and simulated probes hold no weights."""
    margin_share: float = DEFAULT_MARGIN_SHARE
    data: DataPlan | None = None
    run: RunSetting = field(default_factory=RunSetting)
    budget: Budget = Budget()
    mode: Mode = Mode.TRAIN
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    allocator: AllocatorSetting = field(default_factory=AllocatorSetting)
    seed: int = 0
    trust_remote_code: bool = False

    @property
    def name(self) -> str:
        """The space's file name, for headings."""
        return self.path.name if self.path else "space"

    @property
    def tokenizer(self) -> str:
        """What texts are counted with: the data's tokenizer, else the model's own."""
        return (self.data.tokenizer if self.data else None) or self.model

    def stages(self) -> Iterator[Stage]:
        """Return the data's stages; none where the space names no data."""
        return iter(self.data.stages if self.data else ())
