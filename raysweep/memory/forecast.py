"""The forecast: peaks, components and verdicts from programs, for every step, length and card. No torch, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cost.domain import Flavour
from cost.verdict import Fit, Verdict, judge
from raysweep.memory.program import Category, Program
from raysweep.memory.replay import Conditions, Moment, Replay, Replayer, cublas_workspace_bytes
from raysweep.setting import AllocatorSetting, StepSetting

GRID_TOKENS = 64
"""Where no lengths are given, the longest one is sought among multiples of it, then to the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A device as the forecast sees it."""

    flavour: str
    memory_bytes: int
    outside_bytes: int
    """Device memory that PyTorch's allocator does not manage."""
    outside_is_allowance: bool
    """True until a probe has measured it."""
    workspace_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(0, self.memory_bytes - self.outside_bytes)

    @classmethod
    def of(cls, flavour: Flavour, *, outside_bytes: int, outside_is_allowance: bool) -> Card:
        """Return one GPU of a flavour.

        Raises:
            cost.errors.CostError: its memory is not known.
        """
        capability = flavour.device.compute_capability if flavour.device else None
        return cls(
            flavour=flavour.name,
            memory_bytes=flavour.total_memory_bytes,
            outside_bytes=outside_bytes,
            outside_is_allowance=outside_is_allowance,
            workspace_bytes=cublas_workspace_bytes(capability),
        )


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
class Longest:
    """The longest length on one card such that it and every shorter one of the grid fit (or run at all)."""

    step: StepSetting
    flavour: str
    length_tokens: int | None
    tight_length_tokens: int | None
    limited_by: str


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
    grid: Sequence[int] | None = None,
) -> Forecast:
    """Forecast every step at every length on every card.

    Args:
        programs: by step; each must cover the lengths.
        lengths: tokens of one item, for the rows.
        cards: the devices.
        margin_share: share of a device's memory kept free.
        allocator: the allocator's setting.
        grid: lengths among which the longest is sought; by default the rows' own.

    Raises:
        KeyError: a program does not cover a length.
    """
    rows: list[ForecastRow] = []
    longest: list[Longest] = []
    for step, program in programs.items():
        study = Study(program, allocator)
        rows += [study.row(length, cards, margin_share=margin_share) for length in lengths]
        lengths_sought = sorted(set(grid if grid is not None else lengths))
        longest += [study.longest(lengths_sought, card, margin_share=margin_share) for card in cards]
    first = next(iter(programs.values()))
    return Forecast(
        model=first.model,
        rows=tuple(rows),
        longest=tuple(longest),
        outside_bytes={card.flavour: card.outside_bytes for card in cards},
        outside_is_allowance={card.flavour: card.outside_is_allowance for card in cards},
        notes=tuple(dict.fromkeys(note for program in programs.values() for note in program.notes)),
    )


class Study:
    """One program under one allocator setting; each replay is made once."""

    def __init__(self, program: Program, allocator: AllocatorSetting) -> None:
        """Nothing is replayed yet."""
        self.program = program
        self.step = program.step
        self._allocator = allocator
        self._replayer = Replayer(program)
        self._steady: dict[tuple[int, int, int | None], Replay] = {}
        self._ranges: dict[tuple[int, int], tuple[int, int]] = {}

    def steady(self, length_tokens: int, *, workspace_bytes: int, capacity_bytes: int | None = None) -> Replay:
        """Replay one length on a card's chip, at a capacity where one is given."""
        key = (length_tokens, workspace_bytes, capacity_bytes)
        if key not in self._steady:
            self._steady[key] = self._replayer.steady(
                length_tokens,
                accumulation=self.step.accumulation,
                conditions=Conditions(
                    allocator=self._allocator, workspace_bytes=workspace_bytes, capacity_bytes=capacity_bytes
                ),
            )
        return self._steady[key]

    def reserved_range(self, length_tokens: int, *, workspace_bytes: int) -> tuple[int, int]:
        """Return the least and the greatest reserved peak over what a run cannot know of its own process."""
        key = (length_tokens, workspace_bytes)
        if key not in self._ranges:
            micro_steps = min(self.step.accumulation, 2)
            self._ranges[key] = self._replayer.reserved_range(
                [length_tokens] * (2 * micro_steps),
                accumulation=micro_steps,
                conditions=Conditions(allocator=self._allocator, workspace_bytes=workspace_bytes),
            )
        return self._ranges[key]

    def fit(self, length_tokens: int, card: Card, *, margin_share: float) -> Fit:
        """Return the verdict on one length on one card, by the greatest reserved peak."""
        _, reserved = self.reserved_range(length_tokens, workspace_bytes=card.workspace_bytes)
        runs, retries = True, 0
        if reserved > card.capacity_bytes:
            # At the cap the allocator frees its cache and tries again before it fails: only a replay there can tell.
            capped = self.steady(
                length_tokens, workspace_bytes=card.workspace_bytes, capacity_bytes=card.capacity_bytes
            )
            runs, retries = capped.runs, max(capped.retries, 1)
        return judge(
            memory_bytes=card.memory_bytes,
            margin_share=margin_share,
            outside_bytes=card.outside_bytes,
            peak_reserved_bytes=reserved,
            runs=runs,
            retries=retries,
        )

    def row(self, length_tokens: int, cards: Sequence[Card], *, margin_share: float) -> ForecastRow:
        """Return the row of one length. Its own peaks are those of the first card's chip (Hopper's without cards)."""
        workspace_bytes = cards[0].workspace_bytes if cards else cublas_workspace_bytes(None)
        replay = self.steady(length_tokens, workspace_bytes=workspace_bytes)
        low, high = self.reserved_range(length_tokens, workspace_bytes=workspace_bytes)
        return ForecastRow(
            step=self.step,
            length_tokens=length_tokens,
            peak_allocated_bytes=replay.peak_allocated_bytes,
            peak_reserved_bytes=replay.peak_reserved_bytes,
            peak_reserved_range_bytes=(low, high) if low != high else None,
            components_bytes=components(replay),
            host_bytes=self.host_bytes(length_tokens),
            moment=replay.peak_moment,
            fit={card.flavour: self.fit(length_tokens, card, margin_share=margin_share) for card in cards},
        )

    def host_bytes(self, length_tokens: int) -> int:
        """Return the pinned host memory of one length: blocks are rounded up to powers of two.

        Source: c10 CachingHostAllocator.h, which serves every request from a block of the next power of two.
        """
        piece = self.program.piece(length_tokens)
        block = round(float(piece.host_block @ self.program.features(length_tokens)))
        return piece.host_blocks * (1 << (block - 1).bit_length()) if block else 0

    def longest(self, grid: Sequence[int], card: Card, *, margin_share: float) -> Longest:
        """Walk the grid upwards until a length does not run on the card."""
        fits: int | None = None
        runs: int | None = None
        all_fit = True
        for length in grid:
            verdict = self.fit(length, card, margin_share=margin_share).verdict
            if verdict is Verdict.NO:
                break
            runs = length
            all_fit = all_fit and verdict is Verdict.FITS
            fits = length if all_fit else fits
        return Longest(
            step=self.step,
            flavour=card.flavour,
            length_tokens=fits,
            tight_length_tokens=runs,
            limited_by=self._limit(grid, card, fits, margin_share=margin_share),
        )

    def longest_anywhere(self, card: Card, *, margin_share: float) -> Longest:
        """Seek the longest length among all multiples of ``GRID_TOKENS`` that the program covers, then to the token."""
        coarse = self.longest(self._coarse_grid, card, margin_share=margin_share)
        fits = self._to_the_token(coarse.length_tokens, card, {Verdict.FITS}, margin_share=margin_share)
        runs = self._to_the_token(
            coarse.tight_length_tokens, card, {Verdict.FITS, Verdict.TIGHT}, margin_share=margin_share
        )
        return Longest(
            step=self.step,
            flavour=card.flavour,
            length_tokens=fits,
            tight_length_tokens=runs,
            limited_by=coarse.limited_by,
        )

    @cached_property
    def _coarse_grid(self) -> list[int]:
        first, last = self._first_tokens, self._last_tokens
        start = -(-first // GRID_TOKENS) * GRID_TOKENS
        return sorted({*range(start, last + 1, GRID_TOKENS), last})

    @property
    def _first_tokens(self) -> int:
        return min(piece.first_tokens for piece in self.program.pieces)

    @property
    def _last_tokens(self) -> int:
        return max(piece.last_tokens for piece in self.program.pieces)

    def _to_the_token(self, length: int | None, card: Card, wanted: set[Verdict], *, margin_share: float) -> int | None:
        start = self._first_tokens - 1 if length is None else length
        found = length
        for candidate in range(start + 1, min(start + GRID_TOKENS, self._last_tokens + 1)):
            if self.fit(candidate, card, margin_share=margin_share).verdict not in wanted:
                break
            found = candidate
        return found

    def _limit(self, grid: Sequence[int], card: Card, fits: int | None, *, margin_share: float) -> str:
        if fits is not None and fits == grid[-1]:
            return "the model's longest sequence" if fits == self.program.max_tokens else "the end of the grid"
        next_length = next(length for length in grid if fits is None or length > fits)
        headroom = self.fit(next_length, card, margin_share=margin_share).headroom_bytes
        replay = self.steady(next_length, workspace_bytes=card.workspace_bytes)
        biggest = max(Category, key=lambda c: replay.components_bytes[c])
        return (
            f"memory: {next_length:,} tokens are {-headroom / 1e9:.1f} GB short; "
            f"{biggest.name.lower()} take {replay.components_bytes[biggest] / 1e9:.1f} GB"
        )


def components(replay: Replay) -> dict[str, int]:
    """Return a replay's components under the names that the forecast prints."""
    return {category.name.lower(): nbytes for category, nbytes in replay.components_bytes.items()}
