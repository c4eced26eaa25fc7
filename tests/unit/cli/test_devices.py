"""What a sweep's flavours come to: this machine's GPU, a capped one, a cluster, or a simulation."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from cost.catalogue import Catalogue
from cost.domain import Flavour
from raysweep.cli.devices import (
    Devices,
    check_weights,
    choose_devices,
    device_factory,
    emulated_flavours,
    probed_here,
    set_allocator_conf,
)
from raysweep.errors import InputError, MachineError, SpaceError
from raysweep.memory.conditions import configured_workspace_bytes, cublas_workspace_bytes, cublas_workspace_config
from raysweep.records import Source
from raysweep.report import machine
from raysweep.report.machine import Gpu
from raysweep.setting import WeightsFrom
from raysweep.space import parse_space

CATALOGUE = Catalogue.load()
H200, A100 = CATALOGUE.flavour("hf/h200"), CATALOGUE.flavour("hf/a100-large")
GPU = Gpu(name="NVIDIA H200", memory_bytes=150_754_820_096)


def _machine(monkeypatch: pytest.MonkeyPatch, gpus: tuple[Gpu, ...], torch_cuda: str | None) -> None:
    found = dataclasses.replace(machine.examine(), gpus=gpus, torch_cuda=torch_cuda)
    monkeypatch.setattr(machine, "examine", lambda: found)


def _devices(**changes: Any) -> Devices:
    values = {"source": Source.MEASURED, "address": "local", "emulated": False, "local_gpu": GPU, **changes}
    return Devices(**values)


def test_auto_takes_the_gpu_where_there_is_one_and_simulates_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, (GPU,), "13.0")
    assert choose_devices("auto", address="local", emulated=False).local_gpu == GPU
    _machine(monkeypatch, (), None)
    assert choose_devices("auto", address="local", emulated=False).is_simulated


@pytest.mark.parametrize(("gpus", "reason"), [((), "this machine has none"), ((GPU,), "built without CUDA")])
def test_cuda_without_a_usable_gpu_is_the_machines_failure(
    gpus: tuple[Gpu, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine(monkeypatch, gpus, None)
    with pytest.raises(MachineError, match=reason):
        choose_devices("cuda", address="local", emulated=False)


def test_a_clusters_gpus_are_not_looked_for_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, (), None)
    devices = choose_devices("auto", address="10.0.0.5:6379", emulated=False)
    assert (devices.source, devices.local_gpu) == (Source.MEASURED, None)


def test_only_flavours_with_this_machines_gpu_are_probed_on_it() -> None:
    here, rejected = probed_here((A100, H200), GPU)
    assert here == (H200,)
    assert "--emulate hf/a100-large" in rejected["hf/a100-large"]


def test_ones_own_card_is_known_by_its_memory() -> None:
    own = Flavour(name="lab/mine", provider="lab", memory_bytes=150_109_880_320)
    assert probed_here((own, A100), GPU)[0] == (own,)


def test_no_flavour_of_this_machines_gpu_says_what_to_type() -> None:
    with pytest.raises(SpaceError, match=r"NVIDIA H200.*--emulate"):
        probed_here((A100,), GPU)


def test_emulated_flavours_are_the_spaces_own_or_the_catalogues() -> None:
    own = Flavour(name="lab/mine", provider="lab", memory_bytes=42_430_000_000)
    assert emulated_flavours("lab/mine, hf/a100-large", (own,), CATALOGUE) == (own, A100)
    with pytest.raises(InputError, match=r"Did you mean 'hf/a100-large'"):
        emulated_flavours("hf/a100-larg", (), CATALOGUE)


def test_a_simulation_costs_nothing_and_a_capped_card_costs_its_machine() -> None:
    assert _devices(source=Source.SIMULATED).charges((H200,)) == {}
    assert _devices().charges((H200, CATALOGUE.flavour("hf/h200x2"))) == {"hf/h200": H200.usd_per_hour}
    assert _devices(emulated=True).charges((A100, H200)) == dict.fromkeys(("hf/a100-large", "hf/h200"), 5.0)
    assert _devices(emulated=True).charges((A100,)) == {}


def test_a_factory_travels_to_another_process() -> None:
    space = parse_space("model: qwen2.5-7b\nallocator: {expandable_segments: true, max_split_size_mb: 64}", "s")
    factory = device_factory(space, A100, emulated=True)
    copy: Any = pickle.loads(pickle.dumps(factory))  # noqa: S301 - our own bytes
    assert copy.keywords["memory_cap_bytes"] == A100.total_memory_bytes
    assert copy.keywords["allocator_conf"] == "expandable_segments:True,max_split_size_mb:64"


def test_a_card_that_is_emulated_brings_the_size_of_its_own_cublas_workspaces() -> None:
    space = parse_space("model: qwen2.5-7b", "s")
    configs = {
        (flavour.name, emulated): device_factory(space, flavour, emulated=emulated).keywords["workspace_config"]  # type: ignore[attr-defined]  # a partial
        for flavour in (A100, H200)
        for emulated in (True, False)
    }
    assert configs == {
        ("hf/a100-large", True): ":4096:2:16:8",
        ("hf/a100-large", False): None,
        ("hf/h200", True): ":4096:8",
        ("hf/h200", False): None,
    }


@pytest.mark.parametrize("capability", ["8.0", "9.0", None])
def test_a_workspace_is_as_large_as_its_configuration_says(capability: str | None) -> None:
    assert configured_workspace_bytes(cublas_workspace_config(capability)) == cublas_workspace_bytes(capability)


def test_a_workspace_configuration_that_is_no_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="4096:2:16:8"):
        configured_workspace_bytes(":4096:2:16")


def test_real_weights_that_are_not_there_are_refused_before_the_sweep() -> None:
    space = parse_space("model: qwen2.5-7b\nweights_from: pretrained", "s")
    with pytest.raises(SpaceError, match="is a shipped shape"):
        check_weights(space, _devices())


def test_a_simulation_asks_for_no_weights() -> None:
    space = parse_space("model: qwen2.5-7b\nweights_from: pretrained", "s")
    check_weights(space, _devices(source=Source.SIMULATED))


def test_the_factory_takes_along_where_weights_come_from() -> None:
    space = parse_space("model: someone/some-model\nweights_from: pretrained", "s")
    factory: Any = device_factory(space, A100, emulated=False)
    assert factory.keywords["weights_from"] is WeightsFrom.PRETRAINED


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@pytest.mark.parametrize("inherited", ALLOCATOR_VARIABLES)
@pytest.mark.parametrize("conf", ["max_split_size_mb:64", ""])
def test_a_probes_allocator_follows_the_space_and_not_the_environment(
    inherited: str, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(inherited, "max_split_size_mb:99")
    set_allocator_conf(conf)
    assert {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES} == dict.fromkeys(
        ALLOCATOR_VARIABLES, conf or None
    )


@pytest.mark.parametrize("inherited", ALLOCATOR_VARIABLES)
def test_torch_takes_the_spaces_setting_whichever_name_it_prefers(inherited: str) -> None:
    code = (
        "from raysweep.cli.devices import set_allocator_conf\n"
        "set_allocator_conf('max_split_size_mb:64')\n"
        "import torch\n"
        "print(torch._C._accelerator_getAllocatorSettings())\n"
    )
    environment = {**os.environ, inherited: "max_split_size_mb:99"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "max_split_size_mb:64"
