"""Writes ``docs/reference/commands.md`` from the commands' own ``--help``: ``make docs``.

With ``--check`` nothing is written, and the exit code is 1 where the file is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from raysweep.cli.app import app

REFERENCE = Path(__file__).parent / "reference" / "commands.md"
WIDTH = 110


def reference() -> str:
    """Return the whole reference as Markdown."""
    root = click.Context(app, info_name="raysweep", **app.context_settings)
    parts = [
        "# Commands",
        "Written by `make docs` from each command's `--help`; a test fails when it is stale.",
        _section(app, root, "raysweep"),
    ]
    parts += _sections(app, root)
    return "\n\n".join(parts) + "\n"


def _sections(group: click.Group, parent: click.Context) -> list[str]:
    sections: list[str] = []
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
        sections.append(_section(command, context, context.command_path))
        if isinstance(command, click.Group):
            sections += _sections(command, context)
    return sections


def _section(command: click.Command, context: click.Context, title: str) -> str:
    context.terminal_width = context.max_content_width = WIDTH
    return f"## {title}\n\n```text\n{command.get_help(context)}\n```"


def main(arguments: list[str]) -> int:
    """Write the reference, or check it."""
    text = reference()
    if "--check" in arguments:
        return int(not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != text)
    REFERENCE.parent.mkdir(parents=True, exist_ok=True)
    REFERENCE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
