"""In which order the driver hands out addresses: what the allocator reserves can hang on it."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from typing import Any

import torch

KEPT = 400
"""Segments listed one by one; a summary of all goes with them."""

_OTHER_ACTIONS = ["alloc", "free_requested", "free_completed"]


class SegmentOrder:
    """Records the allocator's segments as they are taken from the driver.

    Blocks are left out, of which a run has millions. An older torch cannot leave them out: there the record ends with
    ``settle``. The record is a by-product: whatever goes wrong with it ends the record, never the run, and is told in
    its place.
    """

    def __init__(self, *, enabled: bool) -> None:
        """Begin to record, if it is wished; the device is in use already, and nothing is allocated yet."""
        self._found: dict[str, Any] | None = None
        self._records = enabled
        if not enabled:
            return
        self._whole = False
        try:
            record = torch.cuda.memory._record_memory_history
            self._whole = "skip_actions" in inspect.signature(record).parameters
            if self._whole:
                record(enabled="all", context=None, skip_actions=_OTHER_ACTIONS)
            else:
                record(enabled="all", context=None)
        except Exception as error:  # torch's own, private and different in every version
            self._give_up("not recorded", error)

    def settle(self) -> None:
        """Note that the first optimizer step is done: most segments of a run are there by then."""
        if self._records and not self._whole and self._found is None:
            self._stop("to the end of the first optimizer step")

    def summary(self) -> dict[str, Any] | None:
        """Return the order of what was recorded, or None where nothing was; ends the record."""
        if self._records and self._found is None:
            self._stop("the whole run")
        return self._found

    def _stop(self, covers: str) -> None:
        try:
            traces = torch.cuda.memory._snapshot().get("device_traces") or [[]]
            torch.cuda.memory._record_memory_history(enabled=None)
            self._found = {"covers": covers, **order_of(max(traces, key=len))}
        except Exception as error:  # likewise
            self._give_up(covers, error)

    def _give_up(self, covers: str, error: Exception) -> None:
        """Turn the record off, so that it costs the run nothing more, and keep what went wrong."""
        with contextlib.suppress(Exception):
            torch.cuda.memory._record_memory_history(enabled=None)
        said = str(error).strip().splitlines()
        self._found = {"covers": covers, "error": f"{type(error).__name__}: {said[0] if said else 'without a word'}"}


def order_of(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a memory history says about the order of segments.

    Args:
        trace: entries with ``action``, ``addr`` and ``size``, in the order in which they happened.
    """
    taken = [(int(e["addr"]), int(e["size"])) for e in trace if e["action"] in {"segment_alloc", "segment_map"}]
    freed = sum(e["action"] in {"segment_free", "segment_unmap"} for e in trace)
    if not taken:
        return {"segments": 0, "freed": freed}
    least = min(address for address, _ in taken)
    pairs = list(itertools.pairwise(taken))
    return {
        "segments": len(taken),
        "freed": freed,
        "share_with_lower_address_than_before": sum(b[0] < a[0] for a, b in pairs) / len(pairs) if pairs else None,
        "share_right_below_the_one_before": sum(b[0] + b[1] == a[0] for a, b in pairs) / len(pairs) if pairs else None,
        "share_right_above_the_one_before": sum(a[0] + a[1] == b[0] for a, b in pairs) / len(pairs) if pairs else None,
        "first": [[address - least, size] for address, size in taken[:KEPT]],
    }
