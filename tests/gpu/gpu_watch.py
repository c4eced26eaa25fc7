"""A runner in a session's process that notes, beside each probe, which GPU ran it and what was free afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from raysweep.records import Source
from raysweep.search.runner import Outcome, ProbeRequest, Runner

WAIT_SECONDS = 120.0
"""How long a session waits for the others; starting one takes some ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What was seen as a probe ended."""

    probe_id: str
    flavour: str
    gpu_uuid: str | None
    """None without a GPU."""
    free_bytes: int | None
    met_the_others: bool
    """Whether every session that it was to wait for held its device too."""


class WatchedRunner:
    """Runs probes on another runner and writes a note of each."""

    def __init__(self, make: Callable[[], Runner], *, folder: Path, flavour: str, together: Sequence[str]) -> None:
        """Make the runner.

        Args:
            make: makes it.
            folder: of the notes, shared by all sessions.
            flavour: of this session.
            together: flavours whose sessions wait for one another before their first probe.
        """
        self._runner, self._folder, self._flavour = make(), folder, flavour
        self._together = tuple(together)
        self._met = not together
        self.device_name, self.device_memory_bytes = self._runner.device_name, self._runner.device_memory_bytes
        self.memory_cap_bytes, self.source = self._runner.memory_cap_bytes, self._runner.source

    memory_cap_bytes: int | None
    source: Source

    @property
    def versions(self) -> dict[str, str]:
        """Of the runner watched."""
        return self._runner.versions

    def run(self, request: ProbeRequest) -> Outcome:
        """Run a probe and note it; before the first one wait for the others."""
        if not self._met:
            self._met = self._meet()
        outcome = self._runner.run(request)
        gpu_uuid, free_bytes = _card()
        note = Note(
            probe_id=request.probe_id,
            flavour=request.flavour,
            gpu_uuid=gpu_uuid,
            free_bytes=free_bytes,
            met_the_others=self._met,
        )
        with (self._folder / _file(self._flavour, "jsonl")).open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(asdict(note)) + "\n")
        return outcome

    def loaded_key(self) -> str | None:
        """Of the runner watched."""
        return self._runner.loaded_key()

    def close(self) -> None:
        """Close the runner watched."""
        self._runner.close()

    def _meet(self) -> bool:
        (self._folder / _file(self._flavour, "here")).touch()
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            if all((self._folder / _file(name, "here")).exists() for name in self._together):
                return True
            time.sleep(0.05)
        return False


def watched(
    make: Callable[[], Runner], *, folder: Path, flavour: str, together: Sequence[str] = ()
) -> Callable[[], Runner]:
    """Return a factory of watched runners; it travels to the session's process."""
    return partial(WatchedRunner, make, folder=folder, flavour=flavour, together=tuple(together))


def notes_of(folder: Path, flavour: str) -> tuple[Note, ...]:
    """Return the notes of a flavour's probes, in the order in which they ended."""
    lines = (folder / _file(flavour, "jsonl")).read_text(encoding="utf-8").splitlines()
    return tuple(Note(**json.loads(line)) for line in lines)


def _file(flavour: str, ending: str) -> str:
    return f"{flavour.replace('/', '-')}.{ending}"


def _card() -> tuple[str | None, int | None]:
    import torch

    if not torch.cuda.is_available():
        return None, None
    return str(torch.cuda.get_device_properties(0).uuid), torch.cuda.mem_get_info()[0]
