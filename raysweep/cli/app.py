"""The group of commands. A command's module is imported when the command runs, so that ``--help`` stays quick."""

from __future__ import annotations

import importlib

import click

from raysweep.cli.edge import EdgeGroup
from raysweep.errors import nearest

COMMANDS = {
    "forecast": "Both memory peaks and the verdict for every step, length and flavour. No GPU needed.",
    "sweep": "Run short probes with Ray Tune, on GPUs or simulated, and keep what they find.",
    "choose": "The cheapest flavour and the longest length that fit, and why each other one lost.",
    "project": "Hours and dollars of the whole run, from the data's token counts.",
    "verify": "Forecast every measured probe again: forecast against measured, worst first.",
    "report": "Everything an artifact holds, as text, JSON or an HTML page.",
    "prices": "The catalogue of flavours: prices with their dates and sources.",
    "doctor": "What is installed on this machine, what is missing, and what to type.",
}


class LazyGroup(EdgeGroup):
    """Knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which one meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"raysweep.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or name the nearest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            known = ", ".join(COMMANDS)
            raise click.UsageError(
                f"Unknown command {args[0]!r}; expected one of {known}.{nearest(args[0], COMMANDS)}", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="raysweep", message="raysweep %(version)s")
def app() -> None:
    """Which GPU, what sequence length, how many hours and how many dollars a fine-tune takes, and whether it fits.

    Exit codes: 0 done; 1 a valid negative answer (nothing fits, over budget); 2 bad input or usage; 3 the machine or
    the cluster failed; 130 interrupted.
    """
