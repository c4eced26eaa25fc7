"""The forecast: peaks, components and verdicts from programs, for every step, length and card. No torch, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cost.verdict import Fit
from raysweep.memory.longest import Longest, longest_anywhere, longest_of_grid
from raysweep.memory.program import Program
from raysweep.memory.replay import Moment, Replay, cublas_workspace_bytes
from raysweep.memory.study import Card, Study, side_by_side
from raysweep.setting import AllocatorSetting, StepSetting

__all__ = ["Card", "Forecast", "ForecastRow", "Longest", "Study", "components", "forecast"]


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
class Forecast:
    """What the programs say."""

    model: str
    rows: tuple[ForecastRow, ...]
    longest: tuple[Longest, ...]
    outside_bytes: dict[str, int]
    outside_is_allowance: dict[str, bool]
    notes: tuple[str, ...] = ()


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
    )


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
        host_bytes=study.host_bytes(length_tokens),
        moment=replay.peak_moment,
        fit={card.flavour: study.fit(length_tokens, card, margin_share=margin_share) for card in cards},
    )


def components(replay: Replay) -> dict[str, int]:
    """Return a replay's components under the names that the forecast prints."""
    return {category.name.lower(): nbytes for category, nbytes in replay.components_bytes.items()}
