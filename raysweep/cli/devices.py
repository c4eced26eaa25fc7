"""What a sweep's probes run on: this machine's GPU, a cluster's, a GPU capped to stand for others, or a simulation."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from raysweep.errors import InputError, MachineError, SpaceError, nearest
from raysweep.records import Source
from raysweep.setting import ALLOCATOR_VARIABLES, WeightsFrom
from raysweep.sweep.address import LOCAL, check_form

if TYPE_CHECKING:
    from cost.catalogue import Catalogue
    from cost.domain import Flavour
    from raysweep.report.machine import Gpu
    from raysweep.search.runner import Runner
    from raysweep.space import SearchSpace
    from raysweep.sweep.run import RunnerFactory

SAME_MEMORY_SHARE = 0.02
"""One kind of card reports up to 0.2 GiB more or less with its form and driver; kinds differ by far more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """How a sweep's flavours come to devices."""

    source: Source
    address: str
    emulated: bool
    """Whether the GPU is capped to stand for each flavour."""
    local_gpu: Gpu | None
    """The GPU of this machine, where probes run on it."""

    @property
    def is_simulated(self) -> bool:
        """Whether nothing real runs."""
        return self.source is Source.SIMULATED

    def charges(self, flavours: Sequence[Flavour]) -> dict[str, float]:
        """Return what an hour of each flavour's session costs; nothing where it is simulated or has no price.

        A GPU that stands for other cards costs what its own machine costs, which is the price of the flavour that it
        is; where none of the flavours is, it is taken to be one's own.
        """
        if self.is_simulated:
            return {}
        if self.emulated:
            own = [f.usd_per_hour for f in flavours if self.local_gpu and _is(f, self.local_gpu) and f.usd_per_hour]
            return {flavour.name: max(own) for flavour in flavours} if own else {}
        prices = {flavour.name: flavour.usd_per_hour for flavour in flavours if flavour.gpu_count == 1}
        return {name: price for name, price in prices.items() if price is not None}


def choose_devices(device: str, *, address: str, emulated: bool) -> Devices:
    """Return what ``--device`` and ``--address`` mean here.

    Raises:
        MachineError: a GPU is asked for and none is there, or torch cannot use it.
        InputError: the address is none, or a simulation is asked to stand for other cards.
    """
    check_form(address)
    if device == "simulated" and emulated:
        raise InputError("--emulate: expected a real GPU to cap; --device simulated simulates every flavour already.")
    if device == "simulated":
        return Devices(source=Source.SIMULATED, address=address, emulated=False, local_gpu=None)
    if address != LOCAL:
        return Devices(source=Source.MEASURED, address=address, emulated=emulated, local_gpu=None)
    from raysweep.report.machine import examine

    machine = examine()
    if machine.gpus and machine.torch_cuda:
        return Devices(source=Source.MEASURED, address=address, emulated=emulated, local_gpu=machine.gpus[0])
    if device == "auto" and not emulated:
        return Devices(source=Source.SIMULATED, address=address, emulated=False, local_gpu=None)
    what = "the driver lists a GPU, but torch is built without CUDA" if machine.gpus else "this machine has none"
    raise MachineError(
        f"--device cuda: expected a CUDA GPU that torch can use; {what}. "
        "Add --device simulated to see the product without one, or name a cluster with --address."
    )


def emulated_flavours(names: str, space_flavours: Sequence[Flavour], catalogue: Catalogue) -> tuple[Flavour, ...]:
    """Return the flavours that ``--emulate`` names: the space's own cards, or those of the catalogue.

    Raises:
        InputError: a name is unknown.
    """
    own = {flavour.name: flavour for flavour in space_flavours}
    found: list[Flavour] = []
    for name in (part.strip() for part in names.split(",")):
        flavour = own.get(name) or catalogue.flavours_by_name.get(name)
        if flavour is None:
            known = [*own, *catalogue.flavours_by_name]
            raise InputError(
                f"--emulate: expected a flavour of the space or of the catalogue; {name!r} came.{nearest(name, known)}"
            )
        found.append(flavour)
    return tuple(dict.fromkeys(found))


def probed_here(flavours: Sequence[Flavour], gpu: Gpu) -> tuple[tuple[Flavour, ...], dict[str, str]]:
    """Return the flavours whose GPU is this machine's, and why each other one is not probed.

    Raises:
        SpaceError: it is none's.
    """
    here = tuple(flavour for flavour in flavours if _is(flavour, gpu))
    if not here:
        raise SpaceError(
            f"flavours: expected one with this machine's GPU, {gpu.name}; "
            f"none of {', '.join(f.name for f in flavours)} has it. Add --emulate with their names to measure them "
            "capped on this GPU, or add one's own card to the space with its name and memory_bytes."
        )
    return here, {
        flavour.name: f"this machine's GPU is {gpu.name}; --emulate {flavour.name} measures it capped"
        for flavour in flavours
        if flavour not in here
    }


def device_factory(space: SearchSpace, flavour: Flavour, *, emulated: bool) -> RunnerFactory:
    """Return the factory of a flavour's runners; it travels to the session's process, which makes the runner."""
    return partial(
        _device_runner,
        model=space.model,
        weights_from=space.weights_from,
        trust_remote_code=space.trust_remote_code,
        seed=space.seed,
        memory_cap_bytes=flavour.total_memory_bytes if emulated else None,
        outside_allocator_bytes=flavour.outside_allocator_bytes if emulated else None,
        allocator_conf=space.allocator.conf,
        workspace_config=_workspace_config(flavour) if emulated else None,
    )


def _device_runner(
    *,
    model: str,
    weights_from: WeightsFrom,
    trust_remote_code: bool,
    seed: int,
    memory_cap_bytes: int | None,
    outside_allocator_bytes: int | None,
    allocator_conf: str,
    workspace_config: str | None,
) -> Runner:
    set_allocator_conf(allocator_conf)
    set_workspace_config(workspace_config)
    from raysweep.probe.device_runner import DeviceRunner
    from raysweep.step.config import load_config
    from raysweep.step.pretrained import find_checkpoint

    config = load_config(model, trust_remote_code=trust_remote_code)
    pretrained = weights_from is WeightsFrom.PRETRAINED
    return DeviceRunner(
        config,
        device="cuda",
        checkpoint=find_checkpoint(model, config, trust_remote_code=trust_remote_code) if pretrained else None,
        seed=seed,
        memory_cap_bytes=memory_cap_bytes,
        outside_allocator_bytes=outside_allocator_bytes,
    )


def check_weights(space: SearchSpace, devices: Devices) -> None:
    """Refuse a sweep of real weights that are not to be found; a simulation needs none.

    Raises:
        SpaceError: the model is unknown, or has no weights that can be loaded.
        MachineError: the Hugging Face Hub did not answer.
    """
    if space.weights_from is WeightsFrom.RANDOM or devices.is_simulated:
        return
    from raysweep.step.config import load_config
    from raysweep.step.pretrained import find_checkpoint

    config = load_config(space.model, trust_remote_code=space.trust_remote_code)
    find_checkpoint(space.model, config, trust_remote_code=space.trust_remote_code)


def set_allocator_conf(conf: str, environment: MutableMapping[str, str] | None = None) -> None:
    """Make an allocator follow the space alone, whatever the machine's environment says: both names, set or cleared.

    To be called before torch reads it, which in a session's process has not happened yet.

    Args:
        conf: as the variables are written; empty for the allocator's defaults.
        environment: of the process; by default of this one.
    """
    import os

    environment = os.environ if environment is None else environment
    for name in ALLOCATOR_VARIABLES:
        environment.pop(name, None)
        if conf:
            environment[name] = conf


def set_workspace_config(config: str | None) -> None:
    """Make cuBLAS's workspaces as large as on the card that this process's GPU stands for; the GPU's own where None.

    To be called before torch first uses cuBLAS.
    """
    import os

    if config is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = config


def _workspace_config(flavour: Flavour) -> str | None:
    from raysweep.memory.conditions import cublas_workspace_config

    return None if flavour.device is None else cublas_workspace_config(flavour.device.compute_capability)


def _is(flavour: Flavour, gpu: Gpu) -> bool:
    if flavour.device is not None and flavour.device.torch_device_name is not None:
        return flavour.device.torch_device_name == gpu.name
    if flavour.memory_bytes is None or gpu.memory_bytes is None:
        return False
    return abs(flavour.memory_bytes / gpu.memory_bytes - 1) <= SAME_MEMORY_SHARE
