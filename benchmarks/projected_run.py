"""Project whole runs from short sweeps, then play the runs themselves and hold the one against the other.

    python3 -m benchmarks.projected_run benchmarks/projected/*.yaml --out FOLDER --seconds 580

Run from the repository's root, on a machine with the GPU of the spaces' only flavour. All sweeps come first. For each
space ``FOLDER/NAME`` gets the sweep's artifact; ``FOLDER/NAME/run.json`` the projection as it was before the run began,
and the run as it went. A run whose projection does not fit the seconds left is not begun; another call does it, since
each leaves alone what is there.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.varied_run import in_its_own_process
from cost.catalogue import Catalogue
from cost.evidence import Range
from raysweep.decision.decide import decide
from raysweep.decision.findings import gather
from raysweep.decision.plan import trained_tokens
from raysweep.records import ProbeState
from raysweep.store import Artifact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.decision.findings import Findings

log = logging.getLogger("projected_run")

RUN_FILE = "run.json"
LOADING_SECONDS = 30.0
"""What a run's process may take before its first step, its start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """What the sweep says of the run, and what it cost to say so. Seconds."""

    training: Range
    """Steps and the process's warm-up; loading is left out on both sides."""
    new_lengths: float
    before_steady: float
    """Warm-up and one-off steps, within ``training``."""
    probes: float
    """All that the probes took on the device, loading left out."""
    probe_count: int


def projected(findings: Findings) -> Projected:
    """Return the projection of a space of one flavour, one step and one length limit from its probes.

    Raises:
        ValueError: nothing was measured that fits, or more than one thing is to be chosen among.
    """
    cells = decide(findings, Catalogue.load()).cells
    projection = cells[0].projection if len(cells) == 1 else None
    if projection is None:
        raise ValueError(f"expected one flavour, step and length with a known time; found {len(cells)} cells")
    done = [record for record in findings.records if record.state is ProbeState.COMPLETED]
    return Projected(
        training=projection.training_seconds.plus(projection.start_seconds),
        new_lengths=projection.new_length_seconds,
        before_steady=projection.start_seconds,
        probes=sum(record.probe_seconds - (record.load_seconds or 0.0) for record in done),
        probe_count=len(done),
    )


def run_of(findings: Findings) -> dict[str, Any]:
    """Return the whole run, as ``benchmarks.varied_run`` plays one: each item once, in the data's order."""
    space = findings.space
    (items,) = findings.items.values()
    (step,) = space.steps
    return {
        "name": space.name,
        "model": space.model,
        "step": step.to_dict(),
        "lengths": trained_tokens(items, space).tolist(),
        "record_segments": False,
    }


def compare(folder: Path, findings: Findings) -> str:
    """Return one line: projected against true seconds, from the artifact as the present code reads it."""
    run = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))["run"]
    found, true_seconds = projected(findings), run["run_seconds"]
    inside = found.training.low <= true_seconds <= found.training.high
    return (
        f"projected {found.training.expected:.1f} s ({found.training.low:.1f} to {found.training.high:.1f}) from "
        f"{found.probe_count} probes of {found.probes:.1f} s; true {true_seconds:.1f} s: "
        f"{found.training.expected / true_seconds - 1:+.1%}, {'inside' if inside else 'OUTSIDE'} the range; "
        f"the probes took {found.probes / true_seconds:.1%} of it"
    )


def sweep(space: Path, folder: Path, *, dry: bool) -> None:
    """Run the space's sweep, unless the folder has it."""
    if (folder / "probes.parquet").exists():
        return
    device = "simulated" if dry else "cuda"
    command = ["sweep", str(space), "--yes", "--device", device, "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "raysweep.cli", *command], check=True)


def play(folder: Path, *, until: float, dry: bool) -> None:
    """Project the run, then play it, unless it was played or the time does not suffice."""
    file = folder / RUN_FILE
    findings = gather([Artifact.open(str(folder))])
    if not file.exists():
        found = projected(findings)
        log.info("%s, projected before the run: %s", folder.name, found)
        left = until - time.monotonic() - LOADING_SECONDS
        if left < found.training.high and not dry:
            log.info("%.0f s left: the run is for another call", left)
            return
        result = in_its_own_process(run_of(findings), left, dry=dry)
        file.write_text(json.dumps({"projected_before": asdict(found), "run": result}) + "\n", encoding="utf-8")
    log.info("%s: %s", folder.name, compare(folder, findings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, project, run, compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("spaces", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="folder of the artifacts; may exist")
    parser.add_argument("--seconds", type=float, default=580.0, help="wall-clock seconds in which all is to end")
    parser.add_argument(
        "--cpu-dry-run",
        action="store_true",
        help="tries the script: simulated probes, and the run on a two-layer model on the CPU, items cut to 16 tokens",
    )
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.seconds
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    folders = [options.out / space.stem for space in options.spaces]
    for space, folder in zip(options.spaces, folders, strict=True):
        sweep(space, folder, dry=options.cpu_dry_run)
    for folder in folders:
        play(folder, until=until, dry=options.cpu_dry_run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
