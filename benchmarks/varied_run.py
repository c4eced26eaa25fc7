"""Play sequences of varied lengths on this machine's GPU, each run in a process of its own, and write what was seen.

    python3 -m benchmarks.varied_run --plan PLAN.json --out RUNS.jsonl --seconds 540

Run from the repository's root. PLAN is a list of runs::

    {"name": "1b", "model": "llama-3.2-1b", "step": {…a step's fields…}, "lengths": [812, 64, …],
     "cap_bytes": null, "allocator": {"expandable_segments": false}}

``cap_bytes`` is what the allocator may reserve; null is no cap. A second run skips the names that RUNS.jsonl has.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lengths import lengths_of
from raysweep.cli.devices import set_allocator_conf
from raysweep.setting import AllocatorSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("varied_run")

GRACE_SECONDS = 60.0
"""How long past its time a run's process may take to load and to end by itself."""
LEAST_SECONDS = 30.0
"""With less time left no run begins: loading alone takes about as long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the plan and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", type=Path, required=True, help="a JSON list of runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run; may exist")
    parser.add_argument("--seconds", type=float, default=540.0, help="wall-clock seconds after which all stops")
    parser.add_argument("--only", help="only runs whose name has this text")
    parser.add_argument(
        "--cpu-dry-run", action="store_true", help="a two-layer model on the CPU, items cut to 16 tokens"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    until = time.monotonic() + options.seconds
    done = _done(options.out)
    for run in plan:
        left = until - time.monotonic()
        if run["name"] in done or (options.only and options.only not in run["name"]):
            continue
        if left < LEAST_SECONDS and not options.cpu_dry_run:
            log.info("%.0f s left: %s and what follows is for another call", left, run["name"])
            break
        log.info("%s: %s, %d items, cap %s", run["name"], run["model"], len(lengths_of(run)), run.get("cap_bytes"))
        result = in_its_own_process(run, left, dry=options.cpu_dry_run)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": run["name"], "plan": run, **result}) + "\n")
        log.info("    %s", summary(result))
    return 0


def summary(result: dict[str, Any]) -> str:
    """Return one line about a result."""
    parts = [f"{result['ended']}"]
    if result.get("died"):
        parts.append(f"at {result['died']}")
    if result.get("peak_reserved_bytes"):
        parts.append(f"allocated {result['peak_allocated_bytes'] / 1e9:.3f} GB")
        parts.append(f"reserved {result['peak_reserved_bytes'] / 1e9:.3f} GB, {result['retries']} retries")
        parts.append(f"{len(result['micro_step_seconds'])} micro-steps in {result['run_seconds']:.1f} s")
    if result.get("detail"):
        parts.append(str(result["detail"]))
    return ", ".join(parts)


def _done(out: Path) -> set[str]:
    if not out.is_file():
        return set()
    return {json.loads(line)["name"] for line in out.read_text(encoding="utf-8").splitlines() if line.strip()}


def in_its_own_process(run: dict[str, Any], seconds: float, *, dry: bool) -> dict[str, Any]:
    """Play one run; whatever becomes of its process, a result comes back."""
    environment = dict(os.environ)
    set_allocator_conf(AllocatorSetting(**run.get("allocator", {})).conf, environment)
    command = [sys.executable, "-m", "benchmarks.varied_child", f"{seconds:.0f}", "dry" if dry else "cuda"]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(run),
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            timeout=seconds + GRACE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ended": "timeout", "detail": f"no end within {seconds + GRACE_SECONDS:.0f} s"}
    # The child's result is its last line: libraries may have written before it.
    last = process.stdout.strip().splitlines()[-1:] or [""]
    try:
        result: dict[str, Any] = json.loads(last[0])
    except ValueError:
        return {"ended": "lost", "detail": f"the process ended with {process.returncode} and no result"}
    return result


if __name__ == "__main__":
    sys.exit(main())
