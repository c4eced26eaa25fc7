"""Typed reading of a document: every refusal names the file, the line, the path, the value and what was expected."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, TypeVar

from raysweep.errors import SpaceError, nearest
from raysweep.space.document import Node

E = TypeVar("E", bound=StrEnum)

_MOST = 1e12
"""Of seconds, dollars or gigabytes: more is a slip of the pen, and products of such numbers would be infinite."""
_PERCENT = re.compile(r"^\s*([-+]?[0-9]*\.?[0-9]+)\s*%\s*$")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A node and where it stands; its methods return the value as the type asked for, or raise ``SpaceError``."""

    node: Node
    file: str
    path: str = ""

    @property
    def where(self) -> str:
        """File, line and dotted path, as errors begin."""
        place = f"{self.file}:{self.node.line}"
        return f"{place}: {self.path}" if self.path else place

    @property
    def is_null(self) -> bool:
        """Whether nothing (or ``null``) was written."""
        return self.node.value is None

    def refuse(self, expected: str, hint: str = "") -> NoReturn:
        """Raise the error that says what was expected, what came, and the hint."""
        raise SpaceError(f"{self.where}: expected {expected}; {_shown(self.node)} came.{hint}")

    def keys(self, known: tuple[str, ...], *, required: tuple[str, ...] = ()) -> dict[str, Cursor]:
        """Return the mapping's entries, in file order, all among ``known`` and none of ``required`` missing."""
        if not isinstance(self.node.value, dict):
            self.refuse(f"a mapping with the keys {', '.join(known)}")
        for key, line in self.node.key_lines.items():
            if key not in known:
                dotted = f"{self.path}.{key}" if self.path else key
                raise SpaceError(
                    f"{self.file}:{line}: {dotted}: unknown key {key!r}; expected one of {', '.join(known)}."
                    f"{nearest(key, known)}"
                )
        missing = [key for key in required if key not in self.node.value]
        if missing:
            raise SpaceError(f"{self.where}: expected the key {missing[0]!r}, which is missing.")
        prefix = f"{self.path}." if self.path else ""
        return {key: Cursor(node, self.file, prefix + key) for key, node in self.node.value.items()}

    def has(self, key: str) -> bool:
        """Whether this is a mapping with the key."""
        return isinstance(self.node.value, dict) and key in self.node.value

    def items(self, expected: str) -> tuple[Cursor, ...]:
        """Return the list's entries; an empty list is refused."""
        if not isinstance(self.node.value, list) or not self.node.value:
            self.refuse(expected)
        return tuple(Cursor(node, self.file, f"{self.path}[{i}]") for i, node in enumerate(self.node.value))

    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.node.value, list)

    def text(self, expected: str) -> str:
        """Return a text that is not blank."""
        value = self.node.value
        if not isinstance(value, str) or not value.strip():
            self.refuse(expected)
        return value

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self.node.value, bool):
            self.refuse("true or false")
        return self.node.value

    def integer(self, *, least: int, most: int | None = None, unit: str = "") -> int:
        """Return a whole number between ``least`` and ``most``."""
        value = self.node.value
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            span = f"of {least} or more" if most is None else f"from {least} to {most}"
            self.refuse(f"a whole number{unit and ' of ' + unit} {span}")
        return value

    def number(
        self, expected: str, *, above: float | None = None, least: float | None = None, below: float = math.inf
    ) -> float:
        """Return a number above ``above`` (or of ``least`` and more), under ``below`` at most a trillion."""
        value = self.node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(expected)
        if (above is not None and value <= above) or (least is not None and value < least) or value >= below:
            self.refuse(expected)
        if value > _MOST:
            self.refuse(f"{expected}, at most {_MOST:,.0f}")
        return float(value)

    def share(self, expected: str, *, zero: bool) -> float:
        """Return a share from 0 (if ``zero``) to under 1, written ``8%`` or ``0.08``."""
        value = self.node.value
        share = math.nan
        if isinstance(value, str) and (match := _PERCENT.match(value)):
            share = float(match[1]) / 100
        elif isinstance(value, int | float) and not isinstance(value, bool):
            share = float(value)
        if not (0 <= share < 1) or (share == 0 and not zero):
            bare = isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < 100
            self.refuse(expected, f" Write {value}% for percent." if bare else "")
        return share

    def choice(self, kind: type[E]) -> E:
        """Return the member of the enum whose name is written."""
        value = self.node.value
        names = [str(member) for member in kind]
        if not isinstance(value, str) or value not in names:
            self.refuse(f"one of {', '.join(names)}", nearest(value, names))
        return kind(value)


def _shown(node: Node) -> str:
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"a mapping ({', '.join(value) or 'empty'})"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
