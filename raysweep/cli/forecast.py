"""``raysweep forecast``: both memory peaks and the verdict for every step, length and flavour; no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import (
    lengths_option,
    margin_option,
    prices_option,
    read_catalogue,
    read_flavours,
    read_lengths,
    read_margin,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost.domain import Flavour
    from raysweep.memory.forecast import Card, Forecast
    from raysweep.memory.program import Program
    from raysweep.setting import StepSetting
    from raysweep.space import SearchSpace

SHORTEST_TOKENS = 64
LONGEST_TOKENS = 131_072
"""Where neither the space nor the model names a longest length."""


@click.command("forecast")
@click.argument("space_name", metavar="SPACE")
@click.option("--flavours", "flavour_names", metavar="NAME,…", help="Flavours of the catalogue instead of the space's.")
@lengths_option
@margin_option
@prices_option
@common_options
def command(
    *,
    space_name: str,
    flavour_names: str | None,
    lengths_text: str | None,
    margin_text: str | None,
    prices_csv: Path | None,
    as_json: bool,
) -> Exit:
    """Forecast both memory peaks of the steps in SPACE, and whether they fit each flavour, without a GPU.

    SPACE is a YAML file or the bare name of a shipped space. Without lengths, they double from 1,024 up to the model's
    own longest. Exit code 1 where nothing fits any flavour.
    """
    from cost.verdict import Verdict
    from raysweep.cli.output import emit
    from raysweep.report.forecast import forecast_json, forecast_page
    from raysweep.space import load_space

    space = load_space(space_name)
    margin_share = read_margin(margin_text) if margin_text else space.margin_share
    lengths = read_lengths(lengths_text) if lengths_text else space.lengths
    flavours = _flavours(space, flavour_names, prices_csv)
    found = _forecast(space, flavours, lengths, margin_share=margin_share, quiet=as_json)
    emit(forecast_page(found), forecast_json(found), as_json=as_json)
    verdicts = {fit.verdict for row in found.rows for fit in row.fit.values()}
    return Exit.NEGATIVE if flavours and Verdict.FITS not in verdicts else Exit.DONE


def _flavours(space: SearchSpace, names: str | None, prices_csv: Path | None) -> tuple[Flavour, ...]:
    catalogue = read_catalogue(prices_csv)
    if names is None:
        return read_flavours(space, catalogue)
    return tuple(catalogue.flavour(name.strip()) for name in names.split(","))


def _forecast(
    space: SearchSpace, flavours: tuple[Flavour, ...], lengths: tuple[int, ...], *, margin_share: float, quiet: bool
) -> Forecast:
    from raysweep.cli.programs import trace_programs
    from raysweep.errors import NotForecastError
    from raysweep.memory.forecast import forecast
    from raysweep.records import Mode

    if space.mode is Mode.GENERATE:
        raise NotForecastError("mode generate is not forecast: measure it with raysweep sweep SPACE --device cuda.")
    rows = lengths or _doubling(_model_tokens(space))
    programs, reasons = trace_programs(
        space.model, space.steps, rows, trust_remote_code=space.trust_remote_code, quiet=quiet
    )
    if not programs:
        raise NotForecastError(next(iter(reasons.values())))
    found = forecast(programs, rows, _cards(flavours, programs), margin_share=margin_share, allocator=space.allocator)
    return _with_notes(found, reasons)


def _cards(flavours: tuple[Flavour, ...], programs: Mapping[StepSetting, Program]) -> list[Card]:
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


def _model_tokens(space: SearchSpace) -> int:
    from raysweep.step.config import load_config

    config = load_config(space.model, trust_remote_code=space.trust_remote_code).get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or LONGEST_TOKENS)


def _doubling(most: int) -> tuple[int, ...]:
    """Lengths for the table where none are named: doubling up to the model's own longest."""
    lengths = [1024]
    while lengths[-1] * 2 <= most:
        lengths.append(lengths[-1] * 2)
    return tuple(length for length in lengths if length <= most) or (most,)


def _with_notes(found: Forecast, reasons: Mapping[StepSetting, str]) -> Forecast:
    import dataclasses

    return dataclasses.replace(found, notes=(*found.notes, *dict.fromkeys(reasons.values())))
