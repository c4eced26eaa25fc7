"""Paths that people write, where looking raises nothing whatever the text, and the folder that commands share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CACHE_VARIABLE = "RAYSWEEP_CACHE"
"""Environment variable that names another folder for what is kept between commands."""


def cache_folder() -> Path:
    """Return where counts, programs and prices are kept: ``RAYSWEEP_CACHE``, else ``~/.cache/raysweep``."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "raysweep"


def expanded(text: str) -> Path:
    """Return the path with ``~`` resolved; as written where no such user is known."""
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def is_file(path: Path) -> bool:
    """Whether a file is there; a name too long for a path is none."""
    with suppress(OSError):
        return path.is_file()
    return False


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a name too long for a path is none."""
    with suppress(OSError):
        return path.is_dir()
    return False


def exists(path: Path) -> bool:
    """Whether anything is there; a name too long for a path is nothing."""
    with suppress(OSError):
        return path.exists()
    return False
