"""A library's function put aside for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Within, ``module.name`` is ``value``; afterwards it is what it was."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)
