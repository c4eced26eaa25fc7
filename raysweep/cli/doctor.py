"""``raysweep doctor``: what is installed on this machine, what is missing, and what to type."""

from __future__ import annotations

import click

from raysweep.cli.edge import Exit, common_options


@click.command("doctor")
@common_options
def command(as_json: bool) -> Exit:
    """Say what is installed on this machine, what is missing, and what to type.

    Nothing is changed and nothing is asked of the network. Exit code 3 where a library that raysweep needs is missing.
    """
    from raysweep.cli.output import emit
    from raysweep.report.machine import examine, machine_json, machine_page

    machine = examine()
    emit(machine_page(machine), machine_json(machine), as_json=as_json)
    return Exit.DONE if machine.is_complete else Exit.MACHINE
