"""The spaces of real sweeps, as far as they can be followed without a GPU."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from transformers import PretrainedConfig

from benchmarks.tiny import shrunk
from raysweep.cli.devices import Devices, device_factory
from raysweep.cli.sweep_job import SweepJob, prepare
from raysweep.probe import device_runner
from raysweep.probe.device import CpuDevice, Usage
from raysweep.probe.device_runner import DeviceRunner
from raysweep.records import ProbeState, Source
from raysweep.report.machine import Gpu
from raysweep.search.runner import ProbeRequest
from raysweep.space import load_space
from raysweep.step import config as step_config

FOLDER = Path(__file__).parents[3] / "benchmarks"
H200_BYTES = 150_109_880_320
OUTSIDE_BYTES = 800_000_000


class FakeH200(CpuDevice):
    """The CPU with an H200's memory; keeps the limits that it was given."""

    def __init__(self) -> None:
        self.limits: list[int | None] = []

    @property
    def total_bytes(self) -> int:
        return H200_BYTES

    def usage(self) -> Usage:
        return Usage(
            allocated_bytes=1000,
            reserved_bytes=2000,
            peak_allocated_bytes=7000,
            peak_reserved_bytes=9000,
            outside_allocator_bytes=OUTSIDE_BYTES,
            free_bytes=H200_BYTES - OUTSIDE_BYTES - 2000,
            retries=0,
        )

    def limit(self, allocator_bytes: int | None) -> None:
        self.limits.append(allocator_bytes)


def job(name: str, emulate: str) -> SweepJob:
    gpu = Gpu(name="NVIDIA H200", memory_bytes=H200_BYTES)
    devices = Devices(source=Source.MEASURED, address="local", emulated=True, local_gpu=gpu)
    return prepare(
        load_space(str(FOLDER / name)), devices, strategy="grid", emulate=emulate, prices_csv=None, out="unused"
    )


def test_the_emulated_sweep_has_three_cards_and_at_least_twelve_probes_and_costs_nothing() -> None:
    plan = job("emulated.yaml", "hf/l40sx1,hf/a100-large,lab/a100-40").plan()
    assert set(plan.probes_at_most) == {"hf/l40sx1", "hf/a100-large", "lab/a100-40"}
    assert sum(plan.probes_at_most.values()) >= 12
    assert not plan.costs_money


def test_two_gpus_hold_a_flavour_each() -> None:
    plan = job("two_gpus.yaml", "hf/l40sx1,lab/a100-40").plan()
    assert plan.probes_at_most == {"hf/l40sx1": 3, "lab/a100-40": 3}


@pytest.mark.parametrize(
    ("flavour", "limit_bytes"),
    [("lab/a100-40", 42_430_000_000 - 550_000_000), ("hf/l40sx1", 47_704_965_120 - OUTSIDE_BYTES)],
)
def test_a_sessions_runner_is_capped_at_its_cards_memory_less_what_lives_outside(
    flavour: str, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeH200()
    load = step_config.load_config

    def tiny(model: str, *, trust_remote_code: bool = False) -> PretrainedConfig:
        return shrunk(load(model, trust_remote_code=trust_remote_code))

    monkeypatch.setattr(step_config, "load_config", tiny)
    monkeypatch.setattr(device_runner, "take_device", lambda kind: card)
    made = job("emulated.yaml", "hf/l40sx1,hf/a100-large,lab/a100-40")
    (chosen,) = (f for f in made.flavours if f.name == flavour)
    # The factory travels to the session's process.
    factory = pickle.loads(pickle.dumps(device_factory(made.space, chosen, emulated=True)))  # noqa: S301
    runner = factory()
    assert isinstance(runner, DeviceRunner)
    step = made.space.steps[0]
    outcome = runner.run(ProbeRequest(probe_id="p", flavour=flavour, step=step, length_tokens=8))
    assert outcome.state is ProbeState.COMPLETED, outcome
    assert set(card.limits) == {limit_bytes}
    assert runner.memory_cap_bytes == chosen.total_memory_bytes
