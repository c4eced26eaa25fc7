"""A YAML document as nodes that remember their lines: the safe subset in which search spaces are written.

Scalars follow YAML 1.2's core schema (so ``no`` and ``1:30`` are text, not a boolean and a number of seconds). Anchors,
aliases, tags, repeated keys and several documents in one file are refused: none is needed, each can hide a surprise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from raysweep.errors import SpaceError

MAX_DEPTH = 12
"""A search space is five levels deep; the limit keeps a hostile file from exhausting the stack."""

Scalar = None | bool | int | float | str

_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*$")
_FLOAT = re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$")


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the line (from 1) on which it stands."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    key_lines: dict[str, int] = field(default_factory=dict)
    """The line of each key, where the value is a mapping."""


def read_document(text: str, name: str) -> Node:
    """Return the one document in ``text``; ``name`` is the file's name, for errors.

    Raises:
        SpaceError: the text is not YAML, holds no document or several, or uses an anchor, alias, tag or repeated key.
    """
    try:
        return _document(yaml.parse(text, Loader=yaml.SafeLoader), name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        raise SpaceError(f"{where}: expected YAML; {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise SpaceError(f"{name}: expected YAML; {' '.join(str(error).split())}.") from None


def _document(events: Iterator[yaml.Event], name: str) -> Node:
    root: Node | None = None
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if root is not None:
                raise SpaceError(f"{name}:{_line(event)}: expected one document; a second one begins here.")
            root = _node(next(events), events, name, depth=0)
    if root is None:
        raise SpaceError(f"{name}: expected a search space; the file is empty.")
    return root


def _node(event: yaml.Event, events: Iterator[yaml.Event], name: str, *, depth: int) -> Node:
    line = _line(event)
    if depth > MAX_DEPTH:
        raise SpaceError(f"{name}:{line}: expected at most {MAX_DEPTH} levels of nesting; this goes deeper.")
    if isinstance(event, yaml.AliasEvent):
        raise SpaceError(f"{name}:{line}: alias '*{event.anchor}' is not accepted here; write the value out.")
    if anchor := getattr(event, "anchor", None):
        raise SpaceError(f"{name}:{line}: anchor '&{anchor}' is not accepted here; write the value out.")
    if tag := getattr(event, "tag", None):
        raise SpaceError(f"{name}:{line}: tag '{tag}' is not accepted here; write the plain value.")
    if isinstance(event, yaml.ScalarEvent):
        return Node(_scalar(event.value) if event.implicit[0] else event.value, line)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Node] = []
        while not isinstance(inner := next(events), yaml.SequenceEndEvent):
            items.append(_node(inner, events, name, depth=depth + 1))
        return Node(items, line)
    return _mapping(line, events, name, depth=depth)


def _mapping(line: int, events: Iterator[yaml.Event], name: str, *, depth: int) -> Node:
    entries: dict[str, Node] = {}
    key_lines: dict[str, int] = {}
    while not isinstance(inner := next(events), yaml.MappingEndEvent):
        key = _node(inner, events, name, depth=depth + 1)
        if isinstance(key.value, list | dict) or not isinstance(inner, yaml.ScalarEvent):
            raise SpaceError(f"{name}:{key.line}: expected a plain key; a list or mapping came.")
        if inner.value in entries:
            raise SpaceError(
                f"{name}:{key.line}: key {inner.value!r} stands twice; the first is on line {key_lines[inner.value]}."
            )
        key_lines[inner.value] = key.line
        entries[inner.value] = _node(next(events), events, name, depth=depth + 1)
    return Node(entries, line, key_lines)


def _scalar(text: str) -> Scalar:
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    # A number of thousands of digits is text: Python refuses to convert it, and no value here is so large.
    if len(text) <= 40 and _INT.match(text):
        return int(text)
    if len(text) <= 40 and _FLOAT.match(text):
        return float(text)
    return text


def _line(event: yaml.Event) -> int:
    return int(event.start_mark.line) + 1 if event.start_mark else 1
