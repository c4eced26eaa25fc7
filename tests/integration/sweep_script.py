"""A sweep in a process of its own, which a test may kill: python sweep_script.py ARGUMENTS-AS-JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sweep_fakes import Factory, flavour

from raysweep.records import Source
from raysweep.search.cell import training_cells
from raysweep.search.grid import Grid
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace
from raysweep.store import Artifact
from raysweep.sweep import ProbeEnded, SweepOptions, run_sweep


def say(line: str) -> None:
    """Write a line that the test reads at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(folder: str, names: list[str], lengths: list[int], seconds: float) -> None:
    """Run a grid of simulated probes into ``folder/artifact``; print a line a probe, then the figures."""
    step = StepSetting()
    space = SearchSpace(
        source_text="model: tiny\n",
        path=None,
        model="tiny",
        steps=(step,),
        searched=(),
        lengths=tuple(lengths),
        flavours=(),
    )
    summary = run_sweep(
        space,
        Artifact.create(f"{folder}/artifact", "model: tiny\n"),
        flavours=[flavour(name) for name in names],
        runners=lambda f: Factory(folder=Path(folder), flavour=f.name, seconds=seconds, source=Source.SIMULATED),
        policy=Grid(training_cells(names, [step], lengths)),
        options=SweepOptions.simulated(),
        on_event=lambda event: say("probe") if isinstance(event, ProbeEnded) else None,
    )
    figures = {
        "probes": len(summary.records),
        "wall_seconds": summary.wall_seconds,
        "overhead_seconds": summary.overhead_seconds,
        "spent_usd": summary.spent_usd,
    }
    say(json.dumps(figures))


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
