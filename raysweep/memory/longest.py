"""The longest length on each card: every shorter length of the grid is looked at, none is taken for granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost.verdict import Verdict
from raysweep.memory.program import Category, Program
from raysweep.memory.study import Card, Study
from raysweep.setting import StepSetting

GRID_TOKENS = 64
"""Where no lengths are given, the longest one is sought among multiples of it, then to the token."""

BATCH_LENGTHS = 32
"""Lengths looked at at once: few enough that little is computed beyond the last card's edge."""

RUNS = frozenset({Verdict.FITS, Verdict.TIGHT})
FITS = frozenset({Verdict.FITS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """The longest length on one card such that it and every shorter one of the grid fit (or run at all)."""

    step: StepSetting
    flavour: str
    length_tokens: int | None
    tight_length_tokens: int | None
    limited_by: str


@dataclass(slots=True, kw_only=True)
class _Walk:
    """How far one card has come on the grid."""

    card: Card
    fits: int | None = None
    runs: int | None = None
    fits_no_more: int | None = None
    """The first length of the grid that does not fit."""
    ended: bool = False

    def take(self, length: int, verdict: Verdict) -> None:
        if self.ended:
            return
        if verdict is not Verdict.FITS and self.fits_no_more is None:
            self.fits_no_more = length
        if verdict is Verdict.NO:
            self.ended = True
            return
        self.runs = length
        if self.fits_no_more is None:
            self.fits = length


def longest_of_grid(
    study: Study, grid: Sequence[int], cards: Sequence[Card], *, margin_share: float
) -> tuple[Longest, ...]:
    """Walk an ascending grid of lengths until one does not run, for every card at once.

    Raises:
        KeyError: the program does not cover a length.
    """
    walks = _walk(study, grid, cards, margin_share=margin_share)
    return tuple(_longest(study, walk, margin_share=margin_share) for walk in walks)


def longest_anywhere(study: Study, cards: Sequence[Card], *, margin_share: float) -> tuple[Longest, ...]:
    """Seek each card's longest length among all multiples of ``GRID_TOKENS`` that are covered, then to the token."""
    walks = _walk(study, coarse_grid(study.program), cards, margin_share=margin_share)
    for walk in walks:
        walk.fits, refused = _to_the_token(study, walk, walk.fits, FITS, margin_share=margin_share)
        walk.fits_no_more = walk.fits_no_more if refused is None else refused
        walk.runs, _ = _to_the_token(study, walk, walk.runs, RUNS, margin_share=margin_share)
    return tuple(_longest(study, walk, margin_share=margin_share) for walk in walks)


def coarse_grid(program: Program) -> list[int]:
    """Return the multiples of ``GRID_TOKENS`` that a program covers, and its longest length."""
    first, last = _covered(program)
    start = -(-first // GRID_TOKENS) * GRID_TOKENS
    return sorted({*range(start, last + 1, GRID_TOKENS), last})


def _covered(program: Program) -> tuple[int, int]:
    return min(p.first_tokens for p in program.pieces), max(p.last_tokens for p in program.pieces)


def _walk(study: Study, grid: Sequence[int], cards: Sequence[Card], *, margin_share: float) -> list[_Walk]:
    walks = [_Walk(card=card) for card in cards]
    for lengths in _batches(grid):
        going = [walk for walk in walks if not walk.ended]
        if not going:
            break
        verdicts = study.verdicts(lengths, [walk.card for walk in going], margin_share=margin_share)
        for walk in going:
            for length in lengths:
                walk.take(length, verdicts[length, walk.card.flavour])
    return walks


def _batches(grid: Sequence[int]) -> list[Sequence[int]]:
    return [grid[i : i + BATCH_LENGTHS] for i in range(0, len(grid), BATCH_LENGTHS)]


def _to_the_token(
    study: Study, walk: _Walk, coarse: int | None, wanted: frozenset[Verdict], *, margin_share: float
) -> tuple[int | None, int | None]:
    """Go on from a length of the grid token by token; return the last one wanted and the first one not.

    On the way each length is played under the conditions that decided at the start; where it ends, under all.
    """
    first, last = _covered(study.program)
    start = first if coarse is None else coarse + 1
    candidates = range(start, min((coarse or 0) + GRID_TOKENS, last + 1))
    if not candidates:
        return coarse, None
    conditions = study.likely_conditions(candidates[0], walk.card.workspace_bytes)
    found: int | None = coarse
    for length in candidates:
        verdict = study.fit(length, walk.card, margin_share=margin_share, conditions=conditions).verdict
        if verdict not in wanted:
            break
        found = length
    while found is not None and found != coarse:
        if study.fit(found, walk.card, margin_share=margin_share).verdict in wanted:
            break
        found = found - 1 if found > start else coarse
    refused = start if found is None else found + 1
    return found, refused if refused <= last else None


def _longest(study: Study, walk: _Walk, *, margin_share: float) -> Longest:
    return Longest(
        step=study.step,
        flavour=walk.card.flavour,
        length_tokens=walk.fits,
        tight_length_tokens=walk.runs,
        limited_by=_limit(study, walk, margin_share=margin_share),
    )


def _limit(study: Study, walk: _Walk, *, margin_share: float) -> str:
    """Say in words what keeps longer lengths from fitting."""
    refused = walk.fits_no_more
    if refused is None:
        return "the model's longest sequence" if walk.fits == study.program.max_tokens else "the end of the grid"
    fit = study.fit(refused, walk.card, margin_share=margin_share)
    replay = study.steady(refused, workspace_bytes=walk.card.workspace_bytes)
    biggest = max(Category, key=lambda c: replay.components_bytes[c])
    part = f"{biggest.name.lower()} alone {replay.components_bytes[biggest] / 1e9:.1f} GB"
    if fit.headroom_bytes >= 0:
        return f"memory: {refused:,} tokens run only where the allocator frees its cache and tries again; {part}"
    return f"memory: {refused:,} tokens are {-fit.headroom_bytes / 1e9:.2f} GB short; {part}"
