"""Reading a data file, in whatever format, into token counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.data import cache
from raysweep.data.counts import read_counts
from raysweep.data.histogram import histogram_items, is_histogram
from raysweep.data.hub import OTHERWISE
from raysweep.data.items import Counts, Items, Origin
from raysweep.data.rows import COLUMNS, Kind, Source, batches, first_columns, kind_of, open_source
from raysweep.data.tokenizer import HubTokenizer, LossOn, TokenCounter
from raysweep.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes of all files."""

_BATCH_ITEMS = 512
"""Texts tokenized at once: enough to keep all cores busy, few enough for progress to move."""
_HISTOGRAM_BYTES = 65_536
"""A JSON file above this size is not a histogram; not even looked at as one."""


def read_items(
    path: str | Path,
    *,
    tokenizer: str | TokenCounter | None = None,
    loss_on: LossOn = LossOn.ANSWERS,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    use_cache: bool = True,
) -> Items:
    """Return the token counts of a data file's items, in their order.

    Args:
        path: JSONL or Parquet of ``tokens`` (and ``loss_tokens``), ``input_ids`` (and ``labels``), ``text``,
            ``messages``, or ``prompt`` and ``completion``; a folder of ``Dataset.save_to_disk``; or a JSON file with a
            histogram.
        tokenizer: What to count texts with: a folder or Hub id that transformers loads, or a counter. Files of counts
            need none.
        loss_on: Which tokens of conversations and completions bear loss.
        trust_remote_code: Whether a tokenizer may run code of its own.
        progress: Called as texts are counted, first with no bytes read; not for counts that are kept or given.
        use_cache: Whether counts of texts are kept for next time.

    Raises:
        DataError: the file cannot be read, holds something else, or needs a tokenizer; the message names the line.
    """
    path = Path(path)
    source = open_source(path)
    if (histogram := _histogram(source)) is not None:
        return histogram_items(histogram, path)
    kind = kind_of(first_columns(source), str(path))
    if kind in (Kind.COUNTS, Kind.IDS):
        tokens, loss = read_counts(source, kind)
        return Items(name=path.name, tokens=tokens, loss_tokens=loss, origin=Origin.GIVEN)
    if tokenizer is None:
        raise DataError(f"{path}: expected a tokenizer to count {kind.value} with, found none. {OTHERWISE}")
    if isinstance(tokenizer, str):
        counter: TokenCounter = HubTokenizer(tokenizer, trust_remote_code=trust_remote_code, counts=f"{kind} of {path}")
    else:
        counter = tokenizer
    tokens, loss = _counted(source, kind, counter, loss_on, progress, use_cache=use_cache)
    bears_all = bool(np.array_equal(tokens, loss))
    return Items(name=path.name, tokens=tokens, loss_tokens=None if bears_all else loss, origin=Origin.COUNTED)


def _histogram(source: Source) -> dict[str, Any] | None:
    """Return the one object of a small JSON file that holds a histogram, else None."""
    if source.path.suffix.lower() != ".json" or source.size_bytes > _HISTOGRAM_BYTES:
        return None
    try:
        data = json.loads(source.path.read_bytes())
    except ValueError:
        return None
    return data if isinstance(data, dict) and is_histogram(data) else None


def _counted(
    source: Source,
    kind: Kind,
    counter: TokenCounter,
    loss_on: LossOn,
    progress: Progress | None,
    *,
    use_cache: bool,
) -> tuple[Counts, Counts]:
    key = cache.cache_key(source.files, source.format, kind, loss_on, counter.fingerprint) if use_cache else ""
    if use_cache and (kept := cache.load(key)) is not None:
        return kept
    pairs: list[tuple[int, int]] = []
    size_bytes = source.size_bytes
    if progress:
        progress(0, size_bytes)
    for batch in batches(source, COLUMNS[kind], _BATCH_ITEMS):
        if batch.rows:
            pairs.extend(counter.count(batch, kind, loss_on))
        if progress:
            progress(batch.done_bytes, size_bytes)
    if not pairs:
        raise DataError(f"{source.path}: expected at least one item, found none")
    counts = np.array(pairs, dtype=np.int64)
    tokens, loss = counts[:, 0].copy(), counts[:, 1].copy()
    if use_cache:
        cache.save(key, tokens, loss)
    return tokens, loss
