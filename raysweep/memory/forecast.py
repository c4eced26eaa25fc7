"""The forecast: peaks, components and verdicts from programs, for every step, length and card. No torch, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cost.lengths import OverLength
from cost.verdict import Fit
from raysweep.memory.advice import Advice, advise
from raysweep.memory.conditions import cublas_workspace_bytes
from raysweep.memory.data_run import DataFit, DataRun, DataStage
from raysweep.memory.longest import Longest, longest_anywhere, longest_of_grid
from raysweep.memory.one_change import WhatFrees
from raysweep.memory.outcome import Moment, Replay
from raysweep.memory.program import Program
from raysweep.memory.study import Card, Study, side_by_side
from raysweep.setting import AllocatorSetting, StepSetting

__all__ = [
    "Advice",
    "Card",
    "DataFit",
    "DataForecast",
    "DataStage",
    "Forecast",
    "ForecastRow",
    "Longest",
    "Rejected",
    "Study",
    "components",
    "forecast",
    "forecast_data",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """One step at one length, in a steady state."""

    step: StepSetting
    length_tokens: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None
    """Least and greatest, where the peak hangs on where the device places segments; verdicts take the greatest."""
    components_bytes: dict[str, int]
    """By ``Category``, in lower case; they add up to the allocated peak."""
    host_bytes: int
    """Pinned host memory."""
    moment: Moment | None
    """When the allocated peak comes; None where it is what loading left."""
    fit: dict[str, Fit]
    """By flavour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataForecast:
    """One step over one's own data, item by item, in one process."""

    step: StepSetting
    name: str
    """The stages, in order."""
    items: int
    """In one epoch of all stages."""
    items_played: int
    """Fewer than ``items`` where the data are so many that a part was replayed."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_reserved_range_bytes: tuple[int, int] | None
    fit: dict[str, DataFit]
    """By flavour."""
    advice: tuple[Advice, ...] = ()
    advice_complete: bool = True
    """False where the run is so long that not every change was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A flavour that is not forecast."""

    reason: str
    usd_per_hour: float | None
    """Of the whole machine; None where its price is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the programs say."""

    model: str
    rows: tuple[ForecastRow, ...]
    longest: tuple[Longest, ...]
    outside_bytes: dict[str, int]
    outside_is_allowance: dict[str, bool]
    notes: tuple[str, ...] = ()
    data: tuple[DataForecast, ...] = ()
    """Of one's own data, where there are any."""
    rejected: dict[str, Rejected] = field(default_factory=dict)
    """Flavours that are not forecast."""
    refused: dict[StepSetting, str] = field(default_factory=dict)
    """Steps that are not forecast, and what of them is not modelled."""
    peaks_flavours: tuple[str, ...] = ()
    """Whose chips the rows' own peaks are of; empty where no card is named: they are a Hopper's then."""
    frees: WhatFrees | None = None
    """What single changes would leave of the largest peak, where that was asked for."""


def forecast(
    programs: Mapping[StepSetting, Program],
    lengths: Sequence[int],
    cards: Sequence[Card],
    *,
    margin_share: float,
    allocator: AllocatorSetting,
    anywhere: bool = False,
) -> Forecast:
    """Forecast every step at every length on every card.

    Args:
        programs: by step; each must cover the lengths.
        lengths: tokens of one item, for the rows.
        cards: the devices.
        margin_share: share of a device's memory kept free.
        allocator: the allocator's setting.
        anywhere: seek the longest length among all that the programs cover; by default among ``lengths``.

    Raises:
        KeyError: a program does not cover a length.
    """
    rows: list[ForecastRow] = []
    longest: list[Longest] = []
    chips = {card.workspace_bytes for card in cards} or {cublas_workspace_bytes(None)}
    for program in programs.values():
        study = Study(program, allocator)
        study.play_ranges({(length, chip) for length in lengths for chip in chips})
        rows += side_by_side(partial(_row_of, study, cards, margin_share), lengths)
        if anywhere:
            longest += longest_anywhere(study, cards, margin_share=margin_share)
        elif lengths:
            longest += longest_of_grid(study, sorted(set(lengths)), cards, margin_share=margin_share)
    first = next(iter(programs.values()))
    return Forecast(
        model=first.model,
        rows=tuple(rows),
        longest=tuple(longest),
        outside_bytes={card.flavour: card.outside_bytes for card in cards},
        outside_is_allowance={card.flavour: card.outside_is_allowance for card in cards},
        notes=tuple(dict.fromkeys(note for program in programs.values() for note in program.notes)),
        peaks_flavours=tuple(card.flavour for card in cards if card.workspace_bytes == cards[0].workspace_bytes),
    )


def forecast_data(
    programs: Mapping[StepSetting, Program],
    stages: Sequence[DataStage],
    cards: Sequence[Card],
    *,
    margin_share: float,
    allocator: AllocatorSetting,
    over_length: OverLength = OverLength.TRUNCATE,
    with_advice: bool = True,
) -> tuple[DataForecast, ...]:
    """Forecast every step over one's own data on every card, the stages one after another in one process.

    Args:
        programs: by step; each must cover every item's length.
        stages: at least one.
        cards: the devices.
        margin_share: share of a device's memory kept free.
        allocator: the allocator's setting.
        over_length: what becomes of items beyond a limit that is suggested.
        with_advice: try changes where a card is tight or too small.

    Raises:
        KeyError: a program does not cover a length.
    """
    runs = {step: DataRun(program, stages, allocator) for step, program in programs.items()}
    for run in runs.values():
        run.prepare(cards, margin_share=margin_share)
    found = []
    for step, run in runs.items():
        advice: tuple[Advice, ...] = ()
        complete = True
        if with_advice:
            advice, complete = advise(run, cards, runs, margin_share=margin_share, over_length=over_length)
        peaks = run.peaks()
        found.append(
            DataForecast(
                step=step,
                name=" + ".join(stage.name for stage in stages),
                items=peaks.items,
                items_played=peaks.items_played,
                peak_allocated_bytes=peaks.peak_allocated_bytes,
                peak_reserved_bytes=peaks.peak_reserved_bytes,
                peak_reserved_range_bytes=peaks.peak_reserved_range_bytes,
                fit={card.flavour: run.fit(card, margin_share=margin_share) for card in cards},
                advice=advice,
                advice_complete=complete,
            )
        )
    return tuple(found)


def _row_of(study: Study, cards: Sequence[Card], margin_share: float, length_tokens: int) -> ForecastRow:
    """Return the row of one length. Its own peaks are those of the first card's chip (Hopper's without cards)."""
    workspace_bytes = cards[0].workspace_bytes if cards else cublas_workspace_bytes(None)
    replay = study.steady(length_tokens, workspace_bytes=workspace_bytes)
    low, high = study.reserved_range(length_tokens, workspace_bytes=workspace_bytes)
    return ForecastRow(
        step=study.step,
        length_tokens=length_tokens,
        peak_allocated_bytes=replay.peak_allocated_bytes,
        peak_reserved_bytes=replay.peak_reserved_bytes,
        peak_reserved_range_bytes=(low, high) if low != high else None,
        components_bytes=components(replay),
        host_bytes=study.program.host_bytes(length_tokens),
        moment=replay.peak_moment,
        fit={card.flavour: study.fit(length_tokens, card, margin_share=margin_share) for card in cards},
    )


def components(replay: Replay) -> dict[str, int]:
    """Return a replay's components under the names that the forecast prints."""
    return {category.name.lower(): nbytes for category, nbytes in replay.components_bytes.items()}
