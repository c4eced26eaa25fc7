"""What a probe runs on: the protocol between a sweep and a device, real or simulated.

A session holds one runner for as long as it holds its flavour, so that the model is loaded once and many probes use it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from raysweep.records import Measurement, Mode, ProbeState, Prune, Source
from raysweep.setting import StepSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """One probe to run: a step at one length, at a sequence of lengths, or a generation.

    Raises:
        ValueError: The request names no length, both kinds of lengths, or a generation without its tokens.
    """

    probe_id: str
    flavour: str
    step: StepSetting
    mode: Mode = Mode.TRAIN
    length_tokens: int | None = None
    """Tokens in one item; None for a data probe."""
    item_tokens: tuple[int, ...] = ()
    """The items of a data probe, in the data's order."""
    prompt_tokens: int | None = None
    new_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a request that says too little or contradicts itself."""
        if self.mode is Mode.GENERATE:
            if self.prompt_tokens is None or self.new_tokens is None or self.item_tokens:
                raise ValueError("a generation probe has prompt_tokens and new_tokens, and no item_tokens")
        elif (self.length_tokens is None) == (not self.item_tokens):
            raise ValueError("a training probe has either length_tokens or item_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one request ended on a runner: the part of a ``ProbeRecord`` that the device knows."""

    state: ProbeState
    reason: str | None = None
    detail: str | None = None
    prune: Prune | None = None
    measurement: Measurement | None = None
    load_seconds: float | None = None
    """Time to build and load the model; None where the loaded one served."""
    probe_seconds: float
    """Wall time of the whole request, loading included."""

    def __post_init__(self) -> None:
        """Refuse outcomes that no record could hold."""
        if self.state is ProbeState.COMPLETED and self.measurement is None:
            raise ValueError("a completed probe has a measurement")
        if self.state is not ProbeState.COMPLETED and not self.reason:
            raise ValueError(f"a {self.state} probe has a reason")


class PoisonedDevice(Exception):  # noqa: N818 - it names the state of the device; the probe's own error is in the outcome
    """The process can no longer use its device and must be replaced; ``outcome`` says how the probe in hand ended."""

    def __init__(self, outcome: Outcome) -> None:
        """Keep the outcome of the probe during which the device was lost."""
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        """Return the probe's own reason and detail."""
        return f"{self.outcome.reason}: {self.outcome.detail or 'the device must be given up'}"


class Runner(Protocol):
    """Runs probes on one device of one flavour, and keeps the model between them."""

    @property
    def device_name(self) -> str:
        """The device's own name; a simulated runner's is the name of the device that it simulates."""

    @property
    def device_memory_bytes(self) -> int:
        """Memory of the device that runs or is simulated."""

    @property
    def memory_cap_bytes(self) -> int | None:
        """Memory that probes may use, where the device stands for a smaller one."""

    @property
    def source(self) -> Source:
        """``measured`` or ``simulated``."""

    @property
    def versions(self) -> dict[str, str]:
        """Versions of everything that the numbers hang on."""

    def run(self, request: ProbeRequest) -> Outcome:
        """Run one probe, loading the model first where the loaded one cannot serve the request.

        Out of memory is a pruned outcome, any other fault of the probe a failed one; neither is raised.

        Raises:
            PoisonedDevice: The outcome is known, but the process must be replaced before another probe.
        """

    def loaded_key(self) -> str | None:
        """Return ``load_key`` of the setting whose model is loaded, or None."""

    def close(self) -> None:
        """Give the device back. No request follows."""


def load_key(step: StepSetting) -> str:
    """Return the part of a setting on which the loaded model hangs, as a stable text.

    Two settings of the same key share one loaded model with its adapter; checkpointing, loss, optimizer, batch and
    accumulation may differ.
    """
    data = step.to_dict()
    return json.dumps({name: data[name] for name in ("weights", "attention", "adapter")}, sort_keys=True)
