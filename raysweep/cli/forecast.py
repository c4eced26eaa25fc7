"""``raysweep forecast``: both memory peaks and the verdict for every step, length and flavour; no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import (
    data_option,
    lengths_option,
    margin_option,
    prices_option,
    read_catalogue,
    read_data,
    read_flavours,
    read_lengths,
    read_margin,
    read_names,
    read_stages,
)

if TYPE_CHECKING:
    from cost.domain import Flavour
    from raysweep.memory.forecast import Forecast
    from raysweep.space import SearchSpace


@click.command("forecast")
@click.argument("space_name", metavar="SPACE")
@click.option("--flavours", "flavour_names", metavar="NAME,…", help="Flavours of the catalogue instead of the space's.")
@lengths_option
@data_option
@click.option("--no-data", is_flag=True, help="Leave the space's own data out: peaks and longest lengths alone.")
@click.option(
    "--limit",
    "limit_tokens",
    type=click.IntRange(min=2),
    metavar="TOKENS",
    help="Cut, drop or split longer items of the data, as the space's run.over_length says.",
)
@click.option(
    "--advice/--no-advice",
    "with_advice",
    default=None,
    help="Try what would make the data fit where they do not. By default with --data.",
)
@click.option(
    "--changes/--no-changes",
    "with_changes",
    default=True,
    show_default=True,
    help="Forecast the largest peak's step with one thing changed, too: what frees most.",
)
@margin_option
@prices_option
@common_options
def command(
    *,
    space_name: str,
    flavour_names: str | None,
    lengths_text: str | None,
    data_files: tuple[str, ...],
    tokenizer: str | None,
    no_data: bool,
    limit_tokens: int | None,
    with_advice: bool | None,
    with_changes: bool,
    margin_text: str | None,
    prices_csv: Path | None,
    as_json: bool,
) -> Exit:
    """Forecast both memory peaks of the steps in SPACE, and whether they fit each flavour, without a GPU.

    SPACE is a YAML file or the bare name of a shipped space. Without lengths, the longest one that fits is sought among
    all up to the model's own longest. The items of --data, or of the space's data, are played in their order through
    one allocator; each change that is suggested where they do not fit was itself forecast. Exit code 1 where nothing
    fits any flavour.
    """
    from raysweep.cli.forecast_job import ForecastJob
    from raysweep.cli.output import emit
    from raysweep.report.forecast import forecast_json, forecast_page
    from raysweep.space import load_space

    space = load_space(space_name)
    job = ForecastJob(
        space=space,
        flavours=_flavours(space, flavour_names, prices_csv),
        lengths=space.lengths if lengths_text is None else read_lengths(lengths_text),
        lengths_from=f"{space.name}: lengths" if lengths_text is None else "--lengths",
        items=(
            read_data(data_files, space, tokenizer=tokenizer, quiet=as_json)
            if data_files or no_data
            else read_stages(space, tokenizer=tokenizer, quiet=as_json)
        ),
        limit_tokens=limit_tokens,
        items_from_space=not data_files,
        margin_share=space.margin_share if margin_text is None else read_margin(margin_text),
        with_advice=bool(data_files) if with_advice is None else with_advice,
        with_changes=with_changes,
    )
    found = job.run(quiet=as_json)
    limits = job.limits(found)
    emit(forecast_page(found, limits), forecast_json(found, limits), as_json=as_json)
    return Exit.DONE if _fits_somewhere(found) or not job.flavours else Exit.NEGATIVE


def _fits_somewhere(found: Forecast) -> bool:
    """Whether any flavour takes the data; any length, where there are no data."""
    from cost.verdict import Verdict

    if found.data:
        return any(fit.verdict is Verdict.FITS for data in found.data for fit in data.fit.values())
    rows = any(fit.verdict is Verdict.FITS for row in found.rows for fit in row.fit.values())
    return rows or any(longest.length_tokens is not None for longest in found.longest)


def _flavours(space: SearchSpace, names: str | None, prices_csv: Path | None) -> tuple[Flavour, ...]:
    catalogue = read_catalogue(prices_csv)
    if names is None:
        return read_flavours(space, catalogue)
    return tuple(catalogue.flavour(name) for name in read_names(names, "--flavours", "hf/h200,hf/a100-large"))
