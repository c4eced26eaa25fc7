"""``raysweep prices``: the catalogue of flavours, with each price's date and source."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import prices_option, read_catalogue
from raysweep.cli.price_lists import SOURCES, refresh


@click.group("prices", invoke_without_command=True)
@common_options
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> Exit:
    """Show the catalogue of flavours: prices with their dates and sources. Alone, it lists them.

    A price is that of the whole machine with all its GPUs. Nothing is fetched unless you refresh.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_flavours, provider=None, gpu_id=None, prices_csv=None, as_json=as_json)
    return Exit.DONE


@command.command("list")
@click.option("--provider", help="Only this provider's flavours, such as hf.")
@click.option("--gpu", "gpu_id", help="Only flavours with this GPU, such as h200.")
@prices_option
@common_options
def list_flavours(provider: str | None, gpu_id: str | None, prices_csv: Path | None, as_json: bool) -> Exit:
    """List the flavours, one a line."""
    from raysweep.cli.output import emit
    from raysweep.errors import InputError, nearest
    from raysweep.report.prices import flavours_json, flavours_page

    flavours = read_catalogue(prices_csv).flavours
    for option, wanted, known in (
        ("--provider", provider, sorted({f.provider for f in flavours})),
        ("--gpu", gpu_id, sorted({f.gpu_id for f in flavours if f.gpu_id})),
    ):
        if wanted is not None and wanted not in known:
            raise InputError(f"{option}: expected one of {', '.join(known)}; {wanted!r} came.{nearest(wanted, known)}")
    chosen = [f for f in flavours if provider in (None, f.provider) and gpu_id in (None, f.gpu_id)]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    emit(flavours_page(chosen, today), flavours_json(chosen, today), as_json=as_json)
    return Exit.DONE


@command.command("show")
@click.argument("flavour")
@prices_option
@common_options
def show(flavour: str, prices_csv: Path | None, as_json: bool) -> Exit:
    """Show one flavour: its device, and every price with its source."""
    from raysweep.cli.output import emit
    from raysweep.report.prices import flavour_page, flavours_json

    found = read_catalogue(prices_csv).flavour(flavour)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    emit(flavour_page(found, today), flavours_json([found], today), as_json=as_json)
    return Exit.DONE


@command.command("check")
@click.option(
    "--all", "everything", is_flag=True, help="Name each old or undated price and the sources that agree, too."
)
@prices_option
@common_options
def check(everything: bool, prices_csv: Path | None, as_json: bool) -> Exit:
    """Count prices to distrust, old or undated ones and sources more than 10 % apart, and name the latter.

    With --json everything is there. Exit code 1 where there is any.
    """
    from cost.price_check import check_prices
    from raysweep.cli.output import emit
    from raysweep.report.price_check import check_json, check_page

    found = check_prices(read_catalogue(prices_csv).flavours, today=datetime.datetime.now(tz=datetime.UTC).date())
    emit(check_page(found, everything=everything), check_json(found), as_json=as_json)
    return Exit.NEGATIVE if found.old or found.disagreements else Exit.DONE


@command.command("refresh")
@click.option("--from", "source", type=click.Choice(SOURCES), default="hf", show_default=True, help="Where to look.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Of gpuhunt's or SkyPilot's CSV files."
)
@common_options
def refresh_prices(source: str, folder: Path | None, as_json: bool) -> Exit:
    """Fetch prices, or read another tool's files, and keep them for every later command.

    hf asks Hugging Face's jobs hardware endpoint; gpuhunt asks other providers, where it is installed. The other two
    read catalogues that lie on this disk.
    """
    from raysweep.cli.output import emit
    from raysweep.report.price_check import refresh_json, refresh_page

    listing, kept = refresh(source, folder)
    emit(refresh_page(listing, str(kept)), refresh_json(listing, str(kept)), as_json=as_json)
    return Exit.DONE
