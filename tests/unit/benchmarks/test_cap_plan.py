from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import cap_plan
from benchmarks.cap_plan import STEP_BYTES, edge
from raysweep.memory.outcome import Replay

GB = 10**9


@given(need=st.integers(1 * GB, 40 * GB), slack=st.integers(0, 5 * GB))
def test_the_edge_finishes_and_a_step_less_does_not(need: int, slack: int) -> None:
    found = edge(GB // 2, need + slack + STEP_BYTES, lambda capacity: capacity >= need)
    assert found >= need
    assert found - STEP_BYTES < need


def replay(runs: bool) -> Replay:
    # The failure's own fields are forecast's business: a plan repeats them.
    from raysweep.memory.outcome import Failure, Moment

    died = Failure(moment=Moment(phase="loss", layer=None, op="mm", item=7), requested_bytes=5)
    return Replay(
        peak_allocated_bytes=2 * GB,
        peak_reserved_bytes=4 * GB,
        retries=0,
        components_bytes={},
        peak_moment=None,
        failure=None if runs else died,
    )


def test_a_run_is_capped_below_and_above_its_edge_with_what_is_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def player(run: dict[str, Any]) -> Any:
        return lambda capacity: replay(capacity is None or capacity >= 3 * GB)

    monkeypatch.setattr(cap_plan, "_player", player)
    plan, out = tmp_path / "plan.json", tmp_path / "caps.json"
    runs = [{"name": "a", "lengths": [9]}, {"name": "b", "lengths": [9], "cap_bytes": 1}]
    plan.write_text(json.dumps(runs))
    cap_plan.main(["--plan", str(plan), "--out", str(out)])
    below, above = json.loads(out.read_text())
    assert (below["name"], above["name"]) == ("a-below", "a-above")
    assert below["cap_bytes"] == pytest.approx(2.97 * GB, rel=1e-3)
    assert above["cap_bytes"] == pytest.approx(3.03 * GB, rel=1e-3)
    assert below["forecast"]["failure"]["moment"]["item"] == 7
    assert above["forecast"]["finishes"]
