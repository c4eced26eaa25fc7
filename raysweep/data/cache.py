"""Counts kept by the content they were counted from, so that a data set is counted once for each tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from raysweep.data.items import Counts
from raysweep.paths import cache_folder

_VERSION = "1"
"""Part of every key: counting rules that change make older entries unused."""


def cache_key(files: Iterable[Path], *rules: str) -> str:
    """Return a digest of the files' content, in order, and of the rules that they are counted by."""
    digest = hashlib.sha256("\0".join((_VERSION, *rules)).encode())
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def load(key: str) -> tuple[Counts, Counts] | None:
    """Return the tokens and loss-bearing tokens kept under a key, or None where there are none, or no longer whole."""
    try:
        with np.load(_path(key), allow_pickle=False) as kept:
            return kept["tokens"], kept["loss_tokens"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def save(key: str, tokens: Counts, loss_tokens: Counts) -> None:
    """Keep counts under a key; in a folder that cannot be written nothing is kept, and next time is as the first."""
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, tokens=tokens, loss_tokens=loss_tokens)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def _path(key: str) -> Path:
    return cache_folder() / "tokens" / f"{key}.npz"
