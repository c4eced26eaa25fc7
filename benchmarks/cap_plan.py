"""Forecast the edge of each varied run and write a plan of the same runs capped a little below and above it. No GPU.

    python3 -m benchmarks.cap_plan --plan benchmarks/plans/memory.json --out caps.json

The edge is the smallest memory for the allocator with which the forecast run finishes. Each run of the new plan has
what is forecast for it, so that the plan and its measurements say together whether a forecast came true.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lengths import lengths_of
from raysweep.memory.conditions import Conditions
from raysweep.memory.outcome import Replay
from raysweep.memory.replay import Replayer
from raysweep.setting import AllocatorSetting, StepSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger("cap_plan")

STEP_BYTES = 2 * 2**20
"""The allocator takes memory from the driver in multiples of this."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the plan and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", type=Path, required=True, help="a JSON list of runs; those without a cap count")
    parser.add_argument("--out", type=Path, required=True, help="the new plan")
    parser.add_argument("--share", type=float, default=0.01, help="how far below and above the edge, as a share of it")
    parser.add_argument("--only", help="only runs whose name has this text")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    capped: list[dict[str, Any]] = []
    for run in plan:
        if run.get("cap_bytes") is not None or (options.only and options.only not in run["name"]):
            continue
        capped += capped_runs(run, share=options.share)
    options.out.write_text(json.dumps(capped, indent=1), encoding="utf-8")
    return 0


def capped_runs(run: dict[str, Any], *, share: float) -> list[dict[str, Any]]:
    """Return a run capped below and above its forecast edge, with what is forecast for each.

    Args:
        run: of a plan, without a cap.
        share: how far from the edge.
    """
    player = _player(run)
    whole = player(None)
    edge_bytes = edge(whole.peak_allocated_bytes, whole.peak_reserved_bytes, lambda cap: player(cap).runs)
    log.info(
        "%s: allocated %.3f GB, reserved %.3f GB, edge %.3f GB",
        run["name"],
        whole.peak_allocated_bytes / 1e9,
        whole.peak_reserved_bytes / 1e9,
        edge_bytes / 1e9,
    )
    runs = []
    for word, factor in (("below", 1 - share), ("above", 1 + share)):
        cap_bytes = int(edge_bytes * factor)
        forecast = _told(player(cap_bytes))
        log.info("    %s: %s", word, forecast)
        runs.append({**run, "name": f"{run['name']}-{word}", "cap_bytes": cap_bytes, "forecast": forecast})
    return runs


def edge(least_bytes: int, most_bytes: int, finishes: Callable[[int], bool]) -> int:
    """Return, to ``STEP_BYTES``, a capacity with which a run finishes while it does not with one step less.

    Args:
        least_bytes: what the run needs at least: its allocated peak.
        most_bytes: with which it finishes.
        finishes: asked of a capacity; not always monotone, so that there may be more than one edge.
    """
    low, high = least_bytes // STEP_BYTES, -(-most_bytes // STEP_BYTES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if finishes(middle * STEP_BYTES) else (middle, high)
    return high * STEP_BYTES


def _player(run: dict[str, Any]) -> Callable[[int | None], Replay]:
    from raysweep.probe.batches import micro_batches
    from raysweep.step.model import load_config
    from raysweep.trace.build import model_program

    setting = StepSetting.from_dict(run["step"])
    batches = micro_batches(tuple(max(tokens, 2) for tokens in lengths_of(run)), setting.micro_batch)
    padded = [max(batch) for batch in batches]
    uneven = [len(set(batch)) > 1 for batch in batches]
    config = load_config(run["model"])
    replayer = Replayer(model_program(run["model"], config, setting, padded, padded=any(uneven)))
    allocator = AllocatorSetting(**run.get("allocator", {}))

    def play(capacity_bytes: int | None) -> Replay:
        conditions = Conditions(allocator=allocator, capacity_bytes=capacity_bytes)
        return replayer.run(padded, accumulation=setting.accumulation, conditions=conditions, padded=uneven)

    return play


def _told(replay: Replay) -> dict[str, Any]:
    told: dict[str, Any] = {
        "peak_allocated_bytes": replay.peak_allocated_bytes,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
        "retries": replay.retries,
        "finishes": replay.runs,
    }
    if replay.failure is not None:
        told["failure"] = asdict(replay.failure)
    return told


if __name__ == "__main__":
    sys.exit(main())
