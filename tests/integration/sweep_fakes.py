"""A runner with a made-up memory rule, and everything that can go wrong with one, by length."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cost.domain import Flavour, Origin, Price
from raysweep.records import Measurement, ProbeState, Prune, Source
from raysweep.search.runner import Outcome, PoisonedDevice, ProbeRequest, load_key

BYTES_PER_TOKEN = 1000


def flavour(name: str, usd_per_hour: float = 1.0, gpu_count: int = 1) -> Flavour:
    price = Price(usd_per_hour=usd_per_hour, origin=Origin.USER)
    return Flavour(name=name, provider="lab", prices=(price,), memory_bytes=10**9, gpu_count=gpu_count)


@dataclass(frozen=True)
class Factory:
    """Makes a ``FakeRunner``; picklable, as a real factory is."""

    folder: Path
    """Every load and every probe leaves a line here."""
    flavour: str
    most_tokens: int = 4096
    seconds: float = 0.0
    source: Source = Source.MEASURED
    faults: Mapping[int, str] = field(default_factory=dict)
    """What happens at a length: failed, raised, poisoned, killed once, killed, unready."""

    def __call__(self) -> FakeRunner:
        if "unready" in self.faults.values():
            raise RuntimeError("no driver on this machine")
        return FakeRunner(self)


class FakeRunner:
    device_name = "Fake GPU"
    device_memory_bytes = 10**9
    memory_cap_bytes = None
    versions = {"fake": "1"}  # noqa: RUF012 - read only

    def __init__(self, factory: Factory) -> None:
        self.factory = factory
        self.source = factory.source
        self.key: str | None = None
        self.note("made")

    def note(self, line: str) -> None:
        with (self.factory.folder / f"{self.factory.flavour.replace('/', '-')}.log").open("a") as log:
            log.write(f"{time.time():.6f} {os.getpid()} {line}\n")

    def loaded_key(self) -> str | None:
        return self.key

    def run(self, request: ProbeRequest) -> Outcome:
        started = time.monotonic()
        load_seconds = None
        if self.key != load_key(request.step):
            self.key, load_seconds = load_key(request.step), 0.001
            self.note("loaded")
        length = request.length_tokens or max(request.item_tokens)
        self.note(f"began {length}")
        time.sleep(self.factory.seconds)
        peak = length * BYTES_PER_TOKEN
        seen = Measurement(
            peak_allocated_bytes=peak, peak_reserved_bytes=peak, step_seconds=(0.1,), tokens_per_second=10.0 * length
        )
        common = {"load_seconds": load_seconds, "probe_seconds": time.monotonic() - started}
        failed = {"state": ProbeState.FAILED, "reason": "nan", "detail": "the loss is not a number", **common}
        match self.factory.faults.get(length):
            case "failed":
                return Outcome(**failed)
            case "raised":
                raise ValueError("a fault of the runner itself")
            case "poisoned":
                raise PoisonedDevice(Outcome(**{**failed, "reason": "error", "detail": "illegal memory access"}))
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "killed once":
                marker = self.factory.folder / f"killed-{length}"
                if not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            case "hung":
                time.sleep(3600)
        if length > self.factory.most_tokens:
            prune = Prune(phase="backward", requested_bytes=peak)
            return Outcome(state=ProbeState.PRUNED, reason="oom", prune=prune, measurement=seen, **common)
        return Outcome(state=ProbeState.COMPLETED, measurement=seen, **common)

    def close(self) -> None:
        self.note("closed")


def log_of(folder: Path, name: str) -> list[list[str]]:
    """Return the lines that the runners of a flavour left: time, process, word, length."""
    path = folder / f"{name.replace('/', '-')}.log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def began(folder: Path, name: str) -> list[int]:
    """Return the lengths that were begun, in order."""
    return [int(line[3]) for line in log_of(folder, name) if line[2] == "began"]
