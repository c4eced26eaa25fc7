"""Measure reference cells on this machine's GPU, without Ray, and keep each as a probe of an artifact.

    python3 -m benchmarks.reference_cells --out FOLDER --group families --seconds 540

Run from the repository's root. Each model of the group gets an artifact of its own, ``FOLDER/GROUP.MODEL``; beside them
``FOLDER/GROUP.jsonl`` has a line a cell with what a record has no place for. A second run goes on where the first
stopped: cells that an artifact has are not measured again, and one during which the process died is kept as lost.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.cells import CARDS, GROUPS, Card, Cell, cells_of
from benchmarks.tiny import shrunk
from raysweep.cli.devices import set_workspace_config
from raysweep.memory.conditions import cublas_workspace_config
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import ProbeRecord, ProbeState, Source
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest
from raysweep.step.model import load_config
from raysweep.store import Artifact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.probe.device import Device

log = logging.getLogger("reference_cells")

PACE = Pace(warm_up_steps=2, measured_steps=3, measured_seconds=0.0, generations=1)
HYBRID_PACE = Pace(warm_up_steps=1, measured_steps=1, measured_seconds=0.0)
"""A first step that tunes takes minutes; the second shows the same peaks as a third would."""

INVALID = (
    "numerics invalid: flash-linear-attention 0.6.0 refuses this Triton on Hopper, where its backward is wrong; the "
    "refusal was switched off, since memory and time do not depend on values"
)
GRACE_SECONDS = 30.0
"""How far past its time a run may get before its process is ended: every cell that had ended is written by then."""
OUT_OF_TIME_EXIT = 4
"""The exit status of a run that was ended so."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line names and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the artifacts; may exist")
    parser.add_argument("--group", choices=GROUPS, required=True)
    parser.add_argument("--seconds", type=float, default=540.0, help="wall-clock seconds after which no cell begins")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu only to try the script with --tiny")
    parser.add_argument("--tiny", action="store_true", help="a two-layer model and items of 8 tokens: tries the script")
    parser.add_argument("--only", help="only cells whose label has this text")
    parser.add_argument("--list", action="store_true", help="name the cells and end")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    cells = [cell for cell in cells_of(options.group) if not options.only or options.only in cell.label]
    if options.list:
        for cell in cells:
            log.info("%s %s", cell.probe_id, cell.label)
        return 0
    capability = CARDS[options.group].compute_capability
    if capability is not None:
        set_workspace_config(cublas_workspace_config(capability))
    started = time.monotonic()
    try:
        Measurement(options.out, options.group, device=options.device, tiny=options.tiny).measure(
            cells, until=started + options.seconds
        )
    except PoisonedDevice:
        log.info("the device is lost to this process; a new one goes on")
        left = options.seconds - (time.monotonic() - started)
        _replace_process(options, left)
    return 0


def _replace_process(options: argparse.Namespace, seconds: float) -> None:
    """Go on in a new process, in the place of this one, with the time that is left."""
    again = ["--out", str(options.out), "--group", options.group, "--device", options.device]
    again += ["--seconds", f"{seconds:.0f}"] + (["--tiny"] if options.tiny else [])
    again += ["--only", options.only] if options.only else []
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.reference_cells", *again])  # noqa: S606  its own command, no shell


class Measurement:
    """One group's cells on one device."""

    def __init__(self, out: Path, group: str, *, device: str | Device = "cuda", tiny: bool = False) -> None:
        """Prepare; the device is taken with the first cell.

        Args:
            out: the folder of the group's artifacts.
            group: one of ``GROUPS``.
            device: where probes run.
            tiny: whether a two-layer model and items of eight tokens stand in, to try all of this on a CPU.
        """
        self._out = out
        self._group = group
        self._card: Card = CARDS[group]
        self._device = device
        self._tiny = tiny
        self._sweep_id = f"reference-{group}"
        self._session_id = f"{os.getpid()}"
        out.mkdir(parents=True, exist_ok=True)
        self._in_flight = out / f"{group}.in-flight"

    def measure(self, cells: Sequence[Cell], *, until: float) -> None:
        """Measure the cells that no artifact has yet.

        Args:
            cells: in order; those of one model stand together, or its model is loaded again.
            until: ``time.monotonic()`` after which no cell begins.

        Raises:
            PoisonedDevice: after its cell was kept; this process can measure no more.
        """
        runner: DeviceRunner | None = None
        model: str | None = None
        timer = threading.Timer(max(0.0, until - time.monotonic()) + GRACE_SECONDS, _end_process)
        timer.daemon = True
        timer.start()
        try:
            for index, cell in enumerate(cells, start=1):
                left = until - time.monotonic()
                if left < cell.expected_seconds and not self._tiny:
                    log.info("%.0f s left: %s and what follows is for another run", left, cell.label)
                    break
                if self._is_done(cell, cells):
                    continue
                if model != cell.model:
                    if runner is not None:
                        runner.close()
                    runner, model = self._runner(cell), cell.model
                assert runner is not None  # noqa: S101 - made above, since no cell's model is None
                log.info("%d/%d %s", index, len(cells), cell.label)
                self._one(runner, cell, cells)
        finally:
            timer.cancel()
        if runner is not None:
            runner.close()

    def _is_done(self, cell: Cell, cells: Sequence[Cell]) -> bool:
        artifact = self._artifact(cell, cells)
        if any(record.probe_id == cell.probe_id for record in artifact.records()):
            return True
        if self._in_flight.is_file() and self._in_flight.read_text(encoding="utf-8") == cell.probe_id:
            # An earlier process died in it and would again: it is a finding, and the rest is worth more.
            lost = Outcome(state=ProbeState.FAILED, reason="lost", detail="The process died.", probe_seconds=0.0)
            self._keep(artifact, cell, lost, datetime.now(UTC), None)
            return True
        return False

    def _one(self, runner: DeviceRunner, cell: Cell, cells: Sequence[Cell]) -> None:
        self._in_flight.write_text(cell.probe_id, encoding="utf-8")
        started_at = datetime.now(UTC)
        _reset_host_peaks()
        request = ProbeRequest(
            probe_id=cell.probe_id,
            flavour=self._card.flavour,
            step=cell.step,
            mode=cell.mode,
            length_tokens=self._tokens(cell.length_tokens),
            prompt_tokens=self._tokens(cell.prompt_tokens),
            new_tokens=self._tokens(cell.new_tokens),
        )
        poisoned: PoisonedDevice | None = None
        try:
            outcome = runner.run(request)
        except PoisonedDevice as error:
            outcome, poisoned = error.outcome, error
        if self._group == "hybrid-27b":
            outcome = replace(outcome, detail=" ".join(filter(None, (INVALID, outcome.detail))))
        self._keep(self._artifact(cell, cells), cell, outcome, started_at, runner)
        if poisoned is not None:
            raise poisoned

    def _keep(
        self, artifact: Artifact, cell: Cell, outcome: Outcome, started_at: datetime, runner: DeviceRunner | None
    ) -> None:
        artifact.append(
            ProbeRecord(
                probe_id=cell.probe_id,
                sweep_id=self._sweep_id,
                session_id=self._session_id,
                source=Source.MEASURED,
                mode=cell.mode,
                model=self._model(cell),
                step=cell.step,
                flavour=self._card.flavour,
                length_tokens=self._tokens(cell.length_tokens),
                prompt_tokens=self._tokens(cell.prompt_tokens),
                new_tokens=self._tokens(cell.new_tokens),
                state=outcome.state,
                reason=outcome.reason,
                detail=outcome.detail,
                prune=outcome.prune,
                measurement=outcome.measurement,
                device_name=runner.device_name if runner else "unknown",
                device_memory_bytes=runner.device_memory_bytes if runner else 0,
                memory_cap_bytes=runner.memory_cap_bytes if runner else self._card.memory_bytes,
                versions=runner.versions if runner else {},
                started_at=started_at,
                probe_seconds=outcome.probe_seconds,
                load_seconds=outcome.load_seconds,
            )
        )
        self._in_flight.unlink(missing_ok=True)
        line = {"probe_id": cell.probe_id, "cell": cell.label, "state": str(outcome.state), **_beside()}
        with (self._out / f"{self._group}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        _log_outcome(outcome)

    def _artifact(self, cell: Cell, cells: Sequence[Cell]) -> Artifact:
        folder = self._out / f"{self._group}.{Path(self._model(cell)).name}"
        if not folder.exists():
            return Artifact.create(folder, _space_text(self._card, cell, cells))
        return Artifact.open(folder)

    def _runner(self, cell: Cell) -> DeviceRunner:
        config = load_config(cell.model)
        if self._tiny:
            config = shrunk(config)
        if self._group == "hybrid-27b":
            _measure_in_spite_of_numerics()
        capped = self._card if not self._tiny else Card(flavour=self._card.flavour)
        return DeviceRunner(
            config,
            device=self._device,
            memory_cap_bytes=capped.memory_bytes,
            outside_allocator_bytes=capped.outside_allocator_bytes,
            pace=HYBRID_PACE if self._group == "hybrid-27b" else PACE,
        )

    def _model(self, cell: Cell) -> str:
        # A stand-in is not to be taken for what it stands for.
        return f"tiny-{Path(cell.model).name}" if self._tiny else cell.model

    def _tokens(self, tokens: int | None) -> int | None:
        return 8 if tokens is not None and self._tiny else tokens


def _end_process() -> None:
    log.info("the time is over by %.0f s: the cell in hand is given up", GRACE_SECONDS)
    os._exit(OUT_OF_TIME_EXIT)


def _space_text(card: Card, cell: Cell, cells: Sequence[Cell]) -> str:
    """Return a search space for the artifact: the model, the lengths and the card; the steps are in the records."""
    lengths = sorted({c.length_tokens for c in cells if c.model == cell.model and c.length_tokens is not None})
    fields = {"name": card.flavour, "gpu_id": card.gpu_id, "memory_bytes": card.memory_bytes}
    fields["outside_allocator_bytes"] = card.outside_allocator_bytes
    flavour = ", ".join(f"{name}: {value}" for name, value in fields.items() if value is not None)
    if card.memory_bytes is None:
        flavour += f", memory_bytes: {_device_bytes()}"
    listed = f"lengths: {lengths}\n" if lengths else ""
    return (
        f"# Cells measured one by one by benchmarks/reference_cells.py, {cell.group}; each record has its own step.\n"
        f"model: {cell.model}\n{listed}flavours:\n  - {{{flavour}}}\n"
    )


def _device_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _measure_in_spite_of_numerics() -> None:
    """Let flash-linear-attention run where it refuses to, and let no loss end a probe: only memory and time count."""
    if torch.cuda.is_available():
        import fla.ops.common.chunk_o

        fla.ops.common.chunk_o.IS_NVIDIA_HOPPER = False
    from raysweep.step.training import TrainingStep

    if getattr(TrainingStep.micro_step, "ignores_numerics", False):
        return
    original = TrainingStep.micro_step

    def micro_step(self: TrainingStep, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.nan_to_num(original(self, *args, **kwargs))

    micro_step.ignores_numerics = True  # type: ignore[attr-defined]  # a mark
    TrainingStep.micro_step = micro_step  # type: ignore[method-assign]  # meant so


def _reset_host_peaks() -> None:
    reset = getattr(torch.cuda, "reset_peak_host_memory_stats", None)
    if torch.cuda.is_available() and reset is not None:
        reset()


def _beside() -> dict[str, Any]:
    """Return what a record has no place for: the peak of pinned host memory, the device's memory afterwards."""
    found: dict[str, Any] = {}
    if not torch.cuda.is_available():
        return found
    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        found["after_probe"] = {
            "free_bytes": free_bytes,
            "total_bytes": total_bytes,
            "reserved_bytes": torch.cuda.memory_reserved(),
            "allocated_bytes": torch.cuda.memory_allocated(),
        }
        stats = torch.cuda.host_memory_stats()
    except (RuntimeError, AttributeError) as error:  # a lost context answers nothing
        return {**found, "error": str(error).splitlines()[0]}
    names = ("allocated_bytes.peak", "active_bytes.peak")
    found["pinned_host"] = {name: stats[name] for name in names if name in stats}
    return found


def _log_outcome(outcome: Outcome) -> None:
    seen = outcome.measurement
    peaks = (
        ""
        if seen is None
        else (
            f" allocated {seen.peak_allocated_bytes / 1e9:.3f} GB, reserved {seen.peak_reserved_bytes / 1e9:.3f} GB, "
            f"outside {(seen.outside_allocator_bytes or 0) / 1e9:.2f} GB, "
            f"first {[round(s, 2) for s in seen.first_step_seconds]} s, "
            f"then {[round(s, 3) for s in seen.step_seconds]} s"
        )
    )
    load = "" if outcome.load_seconds is None else f" (load {outcome.load_seconds:.1f} s)"
    why = "" if outcome.reason is None else f" {outcome.reason} {outcome.prune or ''} {outcome.detail or ''}"
    log.info("    %s in %.1f s%s%s%s", outcome.state, outcome.probe_seconds, load, peaks, why)


if __name__ == "__main__":
    sys.exit(main())
