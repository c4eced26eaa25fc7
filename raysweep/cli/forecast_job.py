"""A forecast made ready: which lengths, items and cards it is asked for, and which of them it can answer for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from raysweep.errors import DataError, InputError, NotForecastError
from raysweep.records import Mode

if TYPE_CHECKING:
    from cost.domain import Flavour
    from raysweep.data import Items
    from raysweep.data.limit_cost import LimitCost
    from raysweep.memory.forecast import Card, DataStage, Forecast
    from raysweep.memory.one_change import WhatFrees
    from raysweep.memory.program import Program
    from raysweep.setting import StepSetting
    from raysweep.space import SearchSpace

SHORTEST_TOKENS = 2
"""A next token needs one before it."""
LONGEST_TOKENS = 131_072
"""Where the model's configuration names no longest sequence."""
PADDED_TOKENS = 1024
"""Programs reach to the next multiple beyond the longest item, so that padding can be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastJob:
    """What is asked of a forecast."""

    space: SearchSpace
    flavours: tuple[Flavour, ...]
    lengths: tuple[int, ...]
    """As the command or the space names them; empty where the longest length is sought among all."""
    lengths_from: str
    """Where the lengths stand, for errors."""
    items: Mapping[str, Items]
    """By stage; none where no data are forecast."""
    limit_tokens: int | None
    """Of an item, as the command names it."""
    items_from_space: bool
    """True where the items are the space's own: those are limited as its run is, to the longest of its lengths."""
    margin_share: float
    with_advice: bool
    with_changes: bool
    """Whether to forecast the largest peak's step with one thing changed, too."""

    def run(self, *, quiet: bool) -> Forecast:
        """Trace the steps and forecast them.

        Raises:
            InputError: a length is none, or longer than the model's own longest sequence.
            DataError: an item is.
            NotForecastError: no step of the space can be traced, or it generates.
        """
        from cost.candidate import Reason
        from raysweep.cli.programs import quantisation_notes, trace_programs
        from raysweep.data.batching import differ_in_length
        from raysweep.memory.forecast import Rejected, forecast, forecast_data
        from raysweep.memory.native_bf16 import bf16_notes

        space = self.space
        if space.mode is Mode.GENERATE:
            raise NotForecastError("mode generate is not forecast: measure it with raysweep sweep SPACE --device cuda.")
        most = self._model_tokens()
        self._check_lengths(most)
        stages = self._stages(most)
        rows = self.lengths or _doubling(most or LONGEST_TOKENS)
        reach = _reach(rows, stages, most or LONGEST_TOKENS, anywhere=not self.lengths)
        programs, refused = trace_programs(
            space.model,
            space.steps,
            reach,
            padded=differ_in_length(stage.tokens for stage in stages),
            trust_remote_code=space.trust_remote_code,
            quiet=quiet,
        )
        if not programs:
            raise NotForecastError(next(iter(refused.values())))
        several = [flavour for flavour in self.flavours if flavour.gpu_count > 1]
        single = [flavour for flavour in self.flavours if flavour.gpu_count == 1]
        cards = _cards(single, programs)
        found = forecast(
            programs,
            rows,
            cards,
            margin_share=self.margin_share,
            allocator=space.allocator,
            anywhere=not self.lengths,
        )
        if stages and not quiet:
            items, plural = sum(len(stage.tokens) for stage in stages), "s" if len(programs) > 1 else ""
            click.echo(f"Playing {items:,} items through the allocator, for {len(programs)} step{plural} …", err=True)
        data = (
            forecast_data(
                programs,
                stages,
                cards,
                margin_share=self.margin_share,
                allocator=space.allocator,
                over_length=space.run.over_length,
                with_advice=self.with_advice,
            )
            if stages
            else ()
        )
        rejected = {f.name: Rejected(reason=Reason.MULTI_GPU.value, usd_per_hour=f.usd_per_hour) for f in several}
        notes = (
            *quantisation_notes(space),
            *found.notes,
            *bf16_notes(single, programs),
            *self._data_notes(most, data_played=bool(data)),
        )
        frees = self._what_frees(found, programs, cards, quiet=quiet) if self.with_changes else None
        return replace(found, data=data, rejected=rejected, refused=refused, notes=notes, frees=frees)

    def limits(self, found: Forecast) -> tuple[LimitCost, ...]:
        """Return what each length of a forecast, and the limit that the command names, cost of the data as they are."""
        from raysweep.data.limit_cost import limit_costs
        from raysweep.decision.plan import length_counts

        lengths = [row.length_tokens for row in found.rows]
        named = [] if self.limit_tokens is None else [self.limit_tokens]
        counts = {name: length_counts(one) for name, one in self.items.items()}
        return limit_costs(counts, lengths + named, self.space.run.over_length)

    def _what_frees(
        self, found: Forecast, programs: Mapping[StepSetting, Program], cards: Sequence[Card], *, quiet: bool
    ) -> WhatFrees:
        """Forecast the step of the largest peak with one thing changed, at that length alone."""
        from raysweep.cli.programs import trace_programs
        from raysweep.memory.conditions import cublas_workspace_bytes
        from raysweep.memory.one_change import single_changes, what_frees
        from raysweep.memory.study import Study

        space = self.space
        row = max(found.rows, key=lambda row: row.peak_reserved_bytes)
        wanted = single_changes(row.step)
        changed = {step: programs[step] for step in wanted if step in programs}
        missing = [step for step in wanted if step not in changed]
        if missing:
            traced, _ = trace_programs(
                space.model, missing, [row.length_tokens], trust_remote_code=space.trust_remote_code, quiet=quiet
            )
            changed |= traced
        return what_frees(
            Study(programs[row.step], space.allocator),
            row.length_tokens,
            changed,
            space.allocator,
            workspace_bytes=cards[0].workspace_bytes if cards else cublas_workspace_bytes(None),
        )

    def _model_tokens(self) -> int | None:
        from raysweep.step.config import load_config

        config = load_config(self.space.model, trust_remote_code=self.space.trust_remote_code).get_text_config()
        return getattr(config, "max_position_embeddings", None)

    def _check_lengths(self, most: int | None) -> None:
        for length in self.lengths:
            if length < SHORTEST_TOKENS:
                raise InputError(
                    f"{self.lengths_from}: expected lengths of {SHORTEST_TOKENS} tokens or more, since a next token "
                    f"needs one before it; {length} came."
                )
            if most is not None and length > most:
                raise InputError(
                    f"{self.lengths_from}: expected lengths of at most {most:,} tokens, the longest sequence of "
                    f"{self.space.model} (its max_position_embeddings); {length:,} came."
                )

    def _stages(self, most: int | None) -> tuple[DataStage, ...]:
        """The data in the order in which the run sees them, under the limit."""
        from cost.plan import resolved_epochs
        from raysweep.data.limit import limit_items
        from raysweep.decision.plan import length_counts, stages_of

        run = self.space.run
        if not self.items or run.packing is not None:
            return ()
        items = self.items
        limit = self._limit(most)
        if limit is not None:
            items = {name: limit_items(one, limit, run.over_length) for name, one in items.items()}
        if most is not None:
            for one in items.values():
                self._check_items(one, most)
        epochs = resolved_epochs(stages_of({name: length_counts(one) for name, one in items.items()}, self.space))
        return tuple(
            _stage(name, one, times, self.space, most) for (name, one), times in zip(items.items(), epochs, strict=True)
        )

    def _limit(self, most: int | None) -> int | None:
        """The longest item that the run takes; None where it takes the data as they are."""
        if self.limit_tokens is not None:
            return self.limit_tokens
        return max(self.lengths, default=most) if self.items_from_space else None

    def _check_items(self, items: Items, most: int) -> None:
        beyond = int((items.tokens > most).sum())
        if beyond:
            raise DataError(
                f"{items.name}: expected items of at most {most:,} tokens, the longest sequence of {self.space.model}; "
                f"{beyond:,} of {len(items):,} are longer, the longest of {items.longest_tokens:,} tokens. Add "
                f"--limit {most} to {self.space.run.over_length.value} them (run.over_length of the space says which "
                "of drop, truncate and split)."
            )

    def _data_notes(self, most: int | None, *, data_played: bool) -> list[str]:
        run = self.space.run
        if self.items and run.packing is not None:
            return ["Packed sequences are all as long as the length limit: the rows above answer for them."]
        if not data_played:
            return []
        notes = []
        limit = self._limit(most)
        beyond = 0 if limit is None else sum(int((one.tokens > limit).sum()) for one in self.items.values())
        if beyond:
            notes.append(
                f"{beyond:,} items of more than {limit:,} tokens are beyond the length limit: the data are played with "
                f"run.over_length {run.over_length.value}."
            )
        short = sum(int((items.tokens < SHORTEST_TOKENS).sum()) for items in self.items.values())
        if short:
            notes.append(f"{short:,} items of 1 token are played as items of {SHORTEST_TOKENS}.")
        if not self.with_advice:
            notes.append("Where the data do not fit, --advice tries what would make them fit.")
        return notes


def _stage(name: str, items: Items, epochs: float, space: SearchSpace, most: int | None) -> DataStage:
    import numpy as np

    from raysweep.data.batching import pad_to_multiple
    from raysweep.memory.forecast import DataStage

    run = space.run
    tokens = np.maximum(items.tokens, SHORTEST_TOKENS)
    index = None
    if run.sorted_by_length:
        index = np.argsort(-tokens, kind="stable")
        tokens = tokens[index]
    padded = pad_to_multiple(tokens, run.pad_to_multiple_tokens)
    return DataStage(name=name, tokens=padded if most is None else np.minimum(padded, most), epochs=epochs, index=index)


def _reach(rows: Sequence[int], stages: Sequence[DataStage], most: int, *, anywhere: bool) -> tuple[int, int]:
    """The shortest and the longest length that programs must cover."""
    wanted = [*rows]
    if anywhere:
        wanted += [SHORTEST_TOKENS, most]
    for stage in stages:
        longest = int(stage.tokens.max())
        padded = -(-longest // PADDED_TOKENS) * PADDED_TOKENS
        wanted += [int(stage.tokens.min()), max(longest, min(padded, most))]
    return min(wanted), max(wanted)


def _cards(flavours: Sequence[Flavour], programs: Mapping[StepSetting, Program]) -> list[Card]:
    from raysweep.decision.outside import ALLOWANCE_BYTES
    from raysweep.memory.forecast import Card

    allowance = max(ALLOWANCE_BYTES[program.outside_kind] for program in programs.values())
    return [
        Card.of(
            flavour,
            outside_bytes=allowance if flavour.outside_allocator_bytes is None else flavour.outside_allocator_bytes,
            outside_is_allowance=flavour.outside_allocator_bytes is None,
        )
        for flavour in flavours
    ]


def _doubling(most: int) -> tuple[int, ...]:
    """Lengths for the table where none are named: doubling up to the model's own longest."""
    lengths = [1024]
    while lengths[-1] * 2 <= most:
        lengths.append(lengths[-1] * 2)
    return tuple(length for length in lengths if length <= most) or (most,)
