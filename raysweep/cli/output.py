"""Printing a result: a page of text, or one JSON object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from raysweep.report import JSON_SCHEMA_VERSION

if TYPE_CHECKING:
    from raysweep.report.page import Page


def emit(page: Page, data: dict[str, Any], *, as_json: bool) -> None:
    """Print the page, or the data as one JSON object with ``schema_version`` first."""
    if as_json:
        click.echo(json.dumps({"schema_version": JSON_SCHEMA_VERSION, **data}, indent=2, allow_nan=False))
        return
    from raysweep.report.text import print_page

    print_page(page)
