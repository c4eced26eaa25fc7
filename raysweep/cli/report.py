"""``raysweep report``: everything an artifact holds, as text, JSON or an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import prices_option, read_catalogue

if TYPE_CHECKING:
    from raysweep.store import Artifact


@click.command("report")
@click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT…")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here instead."
)
@prices_option
@common_options
def command(artifacts: tuple[str, ...], html_file: Path | None, prices_csv: Path | None, as_json: bool) -> Exit:
    """Print what an artifact holds: the decision, the projection and every probe; and write it as an HTML page.

    The page goes to report.html in the (first) artifact, or where --html says. It needs no network to read.
    """
    from raysweep.cli.output import emit
    from raysweep.decision.decide import decide
    from raysweep.decision.findings import gather
    from raysweep.report.html import page_html
    from raysweep.report.whole import whole_json, whole_page
    from raysweep.store import Artifact

    opened = [Artifact.open(uri) for uri in artifacts]
    findings = gather(opened)
    decision = decide(findings, read_catalogue(prices_csv, findings.price_lists))
    page = whole_page(findings, decision)
    html = page_html(page)
    written = _keep(opened[0], html) if html_file is None else _write(html_file, html)
    emit(page, {"html": written, **whole_json(findings, decision)}, as_json=as_json)
    click.echo(f"The page: {written}", err=True)
    return Exit.DONE


def _keep(artifact: Artifact, html: str) -> str:
    from raysweep.errors import ArtifactError

    try:
        return artifact.write_report(html)
    except ArtifactError as error:
        raise ArtifactError(f"{error} Name another place for the page with --html FILE.") from None


def _write(file: Path, html: str) -> str:
    from raysweep.errors import InputError

    try:
        file.write_text(html, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--html: {file} cannot be written: {error.strerror}.") from None
    return str(file)
