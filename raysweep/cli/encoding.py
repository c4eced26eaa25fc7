"""Output where the terminal's or the file's encoding lacks a character: a plainer one stands for it."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

_NAME = "raysweep-plainer"
_PLAINER = {"─": "-", "…": "...", "\u2013": "-", "·": "-", "\u00d7": "x", "≤": "<=", "≥": ">=", "≈": "~", "±": "+-"}


def _plainer(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAINER.get(character, "?") for character in text), error.end


codecs.register_error(_NAME, _plainer)


def write_what_can_be_encoded(*streams: TextIO) -> None:
    """Let streams write a plainer character, or ``?``, for each that their encoding lacks, instead of failing."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)
