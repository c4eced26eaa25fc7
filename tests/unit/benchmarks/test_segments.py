"""The order of segments is a by-product: nothing that goes wrong with it may end a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.segments import SegmentOrder


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Every ``enabled`` that torch's recorder was called with, where torch's recorder is one of ours."""
    calls: list[str | None] = []

    def record(enabled: str | None = "all", context: str | None = "all", skip_actions: Any = None) -> None:
        calls.append(enabled)

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    return calls


@pytest.mark.parametrize("error", [RuntimeError("Unknown TraceEntry action: free"), KeyError("x"), ValueError()])
def test_a_refused_record_is_turned_off_and_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    calls = []

    def record(enabled: str | None = "all", context: str | None = "all", skip_actions: Any = None) -> None:
        calls.append(enabled)
        if enabled is not None:
            raise error

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    order = SegmentOrder(enabled=True)
    order.settle()
    told = order.summary()
    assert told is not None
    assert told["error"].startswith(type(error).__name__)
    assert calls == ["all", None]


def test_a_torch_without_the_recorder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    assert "AttributeError" in (SegmentOrder(enabled=True).summary() or {})["error"]


def test_a_snapshot_that_cannot_be_read_is_told_and_the_record_turned_off(
    monkeypatch: pytest.MonkeyPatch, history: list[str | None]
) -> None:
    def snapshot() -> dict[str, Any]:
        raise IndexError("no trace")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    assert SegmentOrder(enabled=True).summary() == {"covers": "the whole run", "error": "IndexError: no trace"}
    assert history == ["all", None]


def test_what_was_recorded_is_told_in_order(monkeypatch: pytest.MonkeyPatch, history: list[str | None]) -> None:
    entries = [{"action": "segment_alloc", "addr": address, "size": 2} for address in (10, 8, 12)]
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [entries]})
    told = SegmentOrder(enabled=True).summary()
    assert told is not None
    assert told["segments"] == 3
    assert told["first"] == [[2, 2], [0, 2], [4, 2]]
    assert history == ["all", None]


def test_no_record_was_wished() -> None:
    assert SegmentOrder(enabled=False).summary() is None
