"""Project a whole run from a short sweep, then play the run itself and hold the one against the other.

    python3 -m benchmarks.projected_run SPACE.yaml --out FOLDER

Run from the repository's root, on a machine with the GPU of the space's only flavour. ``FOLDER`` gets the sweep's
artifact; ``FOLDER/run.json`` the projection as it was printed before the run began, and the run as it went. A second
call leaves alone what is there: delete ``run.json`` to play the run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.varied_run import in_its_own_process
from cost.catalogue import Catalogue
from cost.evidence import Range
from raysweep.data.batching import pad_to_multiple
from raysweep.data.limit import limit_items
from raysweep.decision.decide import decide
from raysweep.decision.findings import gather
from raysweep.records import ProbeState
from raysweep.store import Artifact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.decision.findings import Findings

log = logging.getLogger("projected_run")

RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """What the sweep says of the run, and what it cost to say so. Seconds."""

    training: Range
    """Steps and the process's warm-up; loading is left out on both sides."""
    new_lengths: float
    warm_up: float
    probes: float
    """All that the probes took on the device, loading left out."""
    probe_count: int


def projected(findings: Findings) -> Projected:
    """Return the projection of a space of one flavour, one step and one length limit from its probes.

    Raises:
        ValueError: nothing was measured that fits, or more than one thing is to be chosen among.
    """
    decision = decide(findings, Catalogue.load())
    if len(decision.cells) != 1 or decision.cells[0].projection is None or decision.cells[0].time_model is None:
        raise ValueError(f"expected one flavour, step and length with a known time; found {len(decision.cells)} cells")
    (cell,) = decision.cells
    projection = cell.projection
    assert projection is not None  # noqa: S101  told above
    done = [record for record in findings.records if record.state is ProbeState.COMPLETED]
    return Projected(
        training=projection.training_seconds.plus(projection.start_seconds),
        new_lengths=projection.new_length_seconds,
        warm_up=projection.start_seconds,
        probes=sum(record.probe_seconds - (record.load_seconds or 0.0) for record in done),
        probe_count=len(done),
    )


def run_of(findings: Findings) -> dict[str, Any]:
    """Return the whole run, as ``benchmarks.varied_run`` plays one: each item once, in the data's order."""
    space = findings.space
    (items,) = findings.items.values()
    limited = limit_items(items, max(space.lengths), space.run.over_length)
    lengths = pad_to_multiple(limited.tokens, space.run.pad_to_multiple_tokens).tolist()
    (step,) = space.steps
    return {
        "name": space.name,
        "model": space.model,
        "step": step.to_dict(),
        "lengths": lengths,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, project, run, compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("space", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the artifact; may exist")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which the run stops, unfinished")
    parser.add_argument(
        "--cpu-dry-run",
        action="store_true",
        help="tries the script: simulated probes, and the run on a two-layer model on the CPU, items cut to 16 tokens",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    if not (options.out / "probes.parquet").exists():
        device = "simulated" if options.cpu_dry_run else "cuda"
        sweep = ["sweep", str(options.space), "--yes", "--device", device, "--out", str(options.out)]
        subprocess.run([sys.executable, "-m", "raysweep.cli", *sweep], check=True)
    findings = gather([Artifact.open(str(options.out))])
    found = projected(findings)
    log.info("projected before the run: %s", found)
    file = options.out / RUN_FILE
    if not file.exists():
        result = in_its_own_process(run_of(findings), options.seconds, dry=options.cpu_dry_run)
        file.write_text(json.dumps({"projected_before": asdict(found), "run": result}) + "\n", encoding="utf-8")
    log.info("%s", compare(options.out, findings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
