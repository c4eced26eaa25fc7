"""The command line: a command parses, calls and renders. Heavy libraries are imported inside functions."""

from raysweep.cli.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command line; the console script's entry point."""
    app(prog_name="raysweep")
