"""The edge of the program: the one place where errors become a message on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from textwrap import shorten
from typing import Any, NoReturn, TypeVar

import click

from cost.errors import CostError
from raysweep.cli.encoding import write_what_can_be_encoded
from raysweep.errors import RaysweepError

F = TypeVar("F", bound=Callable[..., Any])

_MESSAGE_COLUMNS = 400
"""Of an error that was not foreseen: some libraries write the reason on their second line, some write pages."""


class Exit(IntEnum):
    """What the shell learns."""

    DONE = 0
    NEGATIVE = 1
    """A valid answer, and it is no: nothing fits, over budget, a refusal to pay."""
    BAD_INPUT = 2
    MACHINE = 3
    """The machine or the cluster failed, or raysweep itself did."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells have it."""


class EdgeGroup(click.Group):
    """A group whose commands return an ``Exit`` (or None for ``DONE``) and raise; nothing below it prints an error."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run a command and leave with its exit code."""
        words = list(args) if args is not None else sys.argv[1:]
        options["standalone_mode"] = False
        write_what_can_be_encoded(sys.stdout, sys.stderr)
        try:
            code = super().main(words, *rest, **options)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader (head, less) left: no error. Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = Exit.DONE
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo(" ".join(["Interrupted.", *_what_is_kept(error)]), err=True)
            code = Exit.INTERRUPTED
        except Exception as error:
            if "--debug" in words:
                raise
            code = _report(error)
        sys.exit(int(code or 0))


def _what_is_kept(error: BaseException) -> list[str]:
    """Return what the interrupted command says of what it leaves; click passes an interrupt on as its own Abort."""
    interrupt = error if isinstance(error, KeyboardInterrupt) else error.__cause__
    return [str(word) for word in interrupt.args] if isinstance(interrupt, KeyboardInterrupt) else []


def _report(error: Exception) -> int:
    if isinstance(error, click.ClickException):
        error.show()
        return Exit.BAD_INPUT
    if isinstance(error, RaysweepError | CostError):
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    message = shorten(f"{type(error).__name__}: {error}", _MESSAGE_COLUMNS, placeholder=" …")
    click.echo(f"Error: raysweep itself failed ({message}). For the traceback, run it again with --debug.", err=True)
    return Exit.MACHINE


def common_options(command: F) -> F:
    """Add what every command takes: ``--json`` and ``--debug``."""
    debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object: bytes, seconds and USD as plain numbers."
    )
    return as_json(debug(command))
