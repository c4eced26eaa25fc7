"""Finding and reading a search space: a file, or one that ships with the product by its bare name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from raysweep.errors import SpaceError
from raysweep.paths import is_file, is_folder
from raysweep.space.model import SearchSpace
from raysweep.space.parse import parse_space, unknown_space

MAX_FILE_BYTES = 4_000_000
"""A search space is a page; whatever is larger is another kind of file."""


def shipped_spaces() -> tuple[str, ...]:
    """Return the bare names of the search spaces that ship, sorted."""
    folder = resources.files("search_spaces")
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def load_space(path: str | Path) -> SearchSpace:
    """Return the search space in a file, or the shipped one of that bare name.

    Raises:
        SpaceError: no such file or name, or the file is malformed.
    """
    file = Path(path)
    if not is_file(file):
        name = str(path)
        if name not in shipped_spaces():
            kind = (
                f"{name}: expected a file; it is a folder."
                if is_folder(file)
                else unknown_space(name, shipped_spaces())
            )
            raise SpaceError(kind)
        file = Path(str(resources.files("search_spaces") / f"{name}.yaml"))
    return parse_space(_text(file), str(path), folder=file.absolute().parent, path=file)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise SpaceError(f"{file}: expected a search space of at most {MAX_FILE_BYTES} bytes; this file is larger.")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpaceError(f"{file}: expected YAML text in UTF-8; the file holds other bytes.") from None
    except OSError as error:
        raise SpaceError(f"{file}: cannot be read: {error.strerror}.") from None
