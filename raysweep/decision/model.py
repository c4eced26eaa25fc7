"""A decision as data: every cell with its evidence, what to rent, why not the others, what else one could have."""

from __future__ import annotations

from dataclasses import dataclass

from cost.candidate import Candidate
from cost.choose import Decision as Choice
from cost.domain import Flavour
from cost.frontier import BreakEven, Frontier, TradeOff
from cost.money import Terms
from cost.plan import RunPlan
from cost.project import PaddingOption, Projection
from cost.throughput import TimeModel
from raysweep.data.limit_cost import LimitCost
from raysweep.decision.memory import CellMemory
from raysweep.setting import StepSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One flavour, step and length: what is known of its memory, its seconds and the whole run under it."""

    candidate: Candidate
    flavour: Flavour
    step: StepSetting
    memory: CellMemory | None
    time_model: TimeModel | None
    projection: Projection | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestFit:
    """How long the items may be on one flavour with one step, on the lengths that were looked at."""

    flavour: str
    step: StepSetting
    length_tokens: int | None
    """It and every shorter length that is known fit; None where the shortest of them does not."""
    tight_length_tokens: int | None
    """It and every shorter length that is known run at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The run that the hours and dollars are of."""

    name: str
    is_sample: bool
    """True where no data were named: a million tokens in items of each length stand for them."""
    items: int
    tokens: int
    """Of one pass over every stage's items, before any length limit."""
    longest_tokens: int
    generates: bool = False
    """Whether it is of generations, not of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to rent for a run, and the evidence."""

    model: str
    uris: tuple[str, ...]
    margin_share: float
    run: RunSummary
    cells: tuple[Cell, ...]
    choice: Choice
    frontier: Frontier
    longest: tuple[LongestFit, ...]
    trade_offs: tuple[TradeOff, ...]
    break_even: tuple[tuple[str, BreakEven], ...]
    """Per flavour that fits and was not chosen: how much faster it would have to be."""
    padding: tuple[PaddingOption, ...]
    """For the chosen cell; the most hours saved first."""
    plan: RunPlan | None
    """The run on the chosen cell."""
    terms: Terms | None
    """What the chosen flavour is paid."""
    price_per_gpu_hour: float | None = None
    """The cluster's own price of one GPU, in the choice's currency, which replaces the flavours' prices."""
    limits: tuple[LimitCost, ...] = ()
    """What each length that was looked at costs of the data, as a limit; empty where no data are named."""
    notes: tuple[str, ...] = ()
    """What to mind of some flavours, in whole sentences."""

    def cell_of(self, candidate: Candidate) -> Cell:
        """Return the cell of one of the choice's candidates."""
        return next(cell for cell in self.cells if cell.candidate is candidate)

    @property
    def chosen(self) -> Cell | None:
        """The cell to rent; None where nothing fits, or nothing that fits has a time and a price."""
        return self.cell_of(self.choice.chosen) if self.choice.chosen else None

    @property
    def best_by_flavour(self) -> tuple[Cell, ...]:
        """For each flavour the cell that was chosen, or that came nearest to it, in the space's order."""
        found: list[Cell] = []
        for name in dict.fromkeys(cell.flavour.name for cell in self.cells):
            if self.choice.chosen and self.choice.chosen.flavour == name:
                found.append(self.cell_of(self.choice.chosen))
            elif nearest := self.choice.nearest_rejection(name):
                found.append(self.cell_of(nearest.candidate))
        return tuple(found)
