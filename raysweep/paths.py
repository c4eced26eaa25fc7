"""Paths that people write: whatever the text, looking whether it is there raises nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


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
