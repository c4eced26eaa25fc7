"""Where sessions can run: an embedded Ray on this machine, or a cluster that is there already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import ray

from cost.domain import Flavour
from raysweep.sweep.address import LOCAL, check_form, check_reachable, unreachable
from raysweep.sweep.quiet import no_worker_logs

ACCELERATOR_SHARE = 0.001
"""How much of a node's ``accelerator_type:X`` a session asks for: the resource only names the type, each node has 1."""

OBJECT_STORE_BYTES = 200 * 10**6
"""Of an embedded Ray: sessions pass records and programs, which are small; Ray's default is 30 % of the memory."""


_PLAIN = "".join(map(chr, range(0x20, 0x7F))).translate(str.maketrans("", "", "%'\"\\"))
"""What a resource's name holds as it is: Ray takes ASCII alone, and the name stands in quotes on a command line."""


def flavour_resource(name: str) -> str:
    """Return the custom resource that a node of this flavour carries, such as ``flavour:hf/h200``.

    Other letters than ASCII's are written as in a URL: that of ``lab/ü`` is ``flavour:lab/%C3%BC``.
    """
    return f"flavour:{quote(name, safe=_PLAIN)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a flavour's sessions can run."""

    flavour: str
    resources: Mapping[str, float]
    """What one session asks for."""
    slots: int
    """Sessions that fit on the alive nodes; 0 while no node is there."""
    missing: str = ""
    """Why no alive node will do, and what to do about it."""
    may_come: bool = False
    """Whether the cluster says that it can start such a node."""


@contextmanager
def connected(address: str, flavours: Iterable[str], sessions_per_flavour: int) -> Iterator[None]:
    """Connect to Ray for the length of a block; a connection that the caller holds already is used and kept.

    Args:
        address: ``local``, ``auto`` or ``HOST:PORT``.
        flavours: For ``local``: flavours whose resources this machine is given.
        sessions_per_flavour: For ``local``: how many sessions of each may run.

    Raises:
        InputError: The address has another form.
        MachineError: There is no Ray at the address, or none can be started.
    """
    check_form(address)
    if ray.is_initialized():
        with no_worker_logs():
            yield
        return
    check_reachable(address)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:
            made_up = {flavour_resource(name): float(sessions_per_flavour) for name in flavours}
            ray.init(
                address=LOCAL,
                resources=made_up,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **common,
            )
        else:
            ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise unreachable(address, str(error)) from error
    with no_worker_logs():
        try:
            yield
        finally:
            # Within the block: Ray prints what it has gathered when it shuts down.
            ray.shutdown()


def alive_nodes() -> list[dict[str, float]]:
    """Return the resources of each alive node."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # ray's
    return [node["Resources"] for node in nodes if node["Alive"]]


def startable_resources() -> frozenset[str]:
    """Return the names of resources that the cluster's autoscaler says it can start nodes with."""
    # The autoscaler publishes its node groups in Ray's own store; where there is none, this is empty.
    from ray._private.state import state

    return frozenset(state.get_max_resources_from_cluster_config() or {})


def place_of(
    flavour: Flavour,
    nodes: Iterable[Mapping[str, float]],
    *,
    gpus_per_session: float,
    cpus_per_session: float,
    startable: frozenset[str] = frozenset(),
) -> Place:
    """Return where a flavour's sessions can run.

    A node carries ``flavour:NAME``. Where no node does, one with the flavour's ``accelerator_type`` is taken: that
    cannot tell an A100 of 40 GB from one of 80, so the probe's record has the memory that the device itself reports.

    Args:
        flavour: The flavour.
        nodes: Resources of each alive node.
        gpus_per_session: GPUs that a session asks for; 0 where the device is simulated.
        cpus_per_session: CPUs that a session asks for.
        startable: Resources that an autoscaler can start nodes with.
    """
    nodes = list(nodes)
    base = {"CPU": cpus_per_session, "GPU": gpus_per_session}
    base = {name: amount for name, amount in base.items() if amount > 0}
    own = flavour_resource(flavour.name)
    accelerator = flavour.device.ray_accelerator_type if flavour.device else None
    named = {**base, own: 1.0}
    by_type = {**base, f"accelerator_type:{accelerator}": ACCELERATOR_SHARE} if accelerator else None
    if (slots := _slots(named, nodes)) > 0:
        return Place(flavour=flavour.name, resources=named, slots=slots)
    if by_type and (slots := _slots(by_type, nodes)) > 0:
        return Place(flavour=flavour.name, resources=by_type, slots=slots)
    if own in startable:
        return Place(flavour=flavour.name, resources=named, slots=0, may_come=True, missing=_missing(named, nodes))
    if by_type and f"accelerator_type:{accelerator}" in startable:
        return Place(flavour=flavour.name, resources=by_type, slots=0, may_come=True, missing=_missing(by_type, nodes))
    return Place(flavour=flavour.name, resources=named, slots=0, missing=_missing(named, nodes))


def _slots(ask: Mapping[str, float], nodes: Iterable[Mapping[str, float]]) -> int:
    return sum(min(int(node.get(name, 0) / amount + 1e-9) for name, amount in ask.items()) for node in nodes)


def _missing(ask: Mapping[str, float], nodes: list[Mapping[str, float]]) -> str:
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in ask.items())
    own = next(name for name in ask if name.startswith(("flavour:", "accelerator_type:")))
    types = sorted({name for node in nodes for name in node if name.startswith(("flavour:", "accelerator_type:"))})
    if any(own in node for node in nodes):
        have = f"a node has {own}, but not enough of the rest"
    else:
        have = f"the {len(nodes)} alive nodes have {', '.join(types) or 'no flavour and no GPU type'}"
    return (
        f"no alive node has {wanted}; {have}. Start one with: "
        f"ray start --address HOST:PORT --resources '{{\"{own}\": 1}}'"
    )
