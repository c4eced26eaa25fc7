"""A sweep of watched runners over emulated cards, from a model's folder to an artifact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_models import llama
from gpu_watch import Note, notes_of, watched

from cost.catalogue import Catalogue
from cost.domain import Flavour
from raysweep.cli.options import read_stages
from raysweep.decision.items import items_table
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import ProbeRecord
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.search.runner import Runner
from raysweep.space import SearchSpace, parse_space, resolve
from raysweep.step.config import load_config
from raysweep.store import Artifact
from raysweep.sweep import SweepOptions, SweepSummary, run_sweep

RunnerMaker = Callable[[SearchSpace, Flavour], Callable[[], Runner]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card to stand for."""

    name: str
    memory_bytes: int
    outside_allocator_bytes: int
    price_usd_per_hour: float
    gpu_id: str | None

    @property
    def text(self) -> str:
        """As a space writes it."""
        gpu_id = f"gpu_id: {self.gpu_id}, " if self.gpu_id else ""
        return (
            f"{{name: {self.name}, {gpu_id}memory_bytes: {self.memory_bytes}, "
            f"outside_allocator_bytes: {self.outside_allocator_bytes}, price_usd_per_hour: {self.price_usd_per_hour}}}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep that has ended."""

    artifact: Artifact
    summary: SweepSummary
    notes: Mapping[str, tuple[Note, ...]]
    """By flavour."""
    charged_usd_per_hour: float

    def records_of(self, flavour: str) -> list[ProbeRecord]:
        """Return a flavour's probes in the order in which they began."""
        mine = [record for record in self.artifact.records() if record.flavour == flavour]
        return sorted(mine, key=lambda record: record.started_at)


def capped(space: SearchSpace, flavour: Flavour) -> Callable[[], Runner]:
    """Return the factory of a device that stands for a flavour."""
    return partial(
        DeviceRunner,
        load_config(space.model),
        memory_cap_bytes=flavour.total_memory_bytes,
        outside_allocator_bytes=flavour.outside_allocator_bytes,
        pace=Pace(measured_seconds=0),
    )


def write_space(
    folder: Path, cards: Sequence[Card], *, step: str, lengths: Sequence[int], item_tokens: Sequence[int] = ()
) -> str:
    """Write the model, the items and the space into a folder; return the space's text."""
    llama().save_pretrained(folder / "small")
    data = ""
    if item_tokens:
        lines = "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in item_tokens)
        (folder / "items.jsonl").write_text(lines, encoding="utf-8")
        data = f"data: {{items: {folder / 'items.jsonl'}, epochs: 1}}\n"
    flavours = "".join(f"  - {card.text}\n" for card in cards)
    return f"model: {folder / 'small'}\nstep: {step}\nlengths: {list(lengths)}\nflavours:\n{flavours}margin: 8%\n{data}"


def sweep(
    folder: Path,
    text: str,
    *,
    item_tokens: tuple[int, ...] = (),
    at_once: bool = False,
    make: RunnerMaker = capped,
    options: SweepOptions | None = None,
) -> Swept:
    """Run the whole grid of a space into ``folder/artifact``.

    Args:
        folder: where the model lies, and where notes and artifact go.
        text: the space's.
        item_tokens: of the data probes.
        at_once: whether the flavours' sessions wait for one another before their first probe.
        make: makes each flavour's factory of runners.
        options: how to run; by default a GPU a session.
    """
    space = parse_space(text, "space.yaml", folder=folder)
    flavours = tuple(resolve(choice, Catalogue.load()) for choice in space.flavours)
    names = [flavour.name for flavour in flavours]
    artifact = Artifact.create(str(folder / "artifact"), text)
    if item_tokens:
        artifact.write_items(items_table(read_stages(space, quiet=True)))
    price = 2.0
    summary = run_sweep(
        space,
        artifact,
        flavours=flavours,
        runners=lambda flavour: watched(
            make(space, flavour), folder=folder, flavour=flavour.name, together=names if at_once else ()
        ),
        policy=Grid(training_cells(names, space.steps, space.lengths, item_tokens)),
        options=options or SweepOptions(charges_usd_per_hour=dict.fromkeys(names, price)),
    )
    return Swept(
        artifact=Artifact.open(artifact.uri),
        summary=summary,
        notes={name: notes_of(folder, name) for name in names},
        charged_usd_per_hour=price,
    )
