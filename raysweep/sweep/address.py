"""``--address``: where Ray is. Looked at before anything is written or paid for."""

from __future__ import annotations

import socket

from raysweep.errors import InputError, MachineError

LOCAL = "local"
"""The address of an embedded Ray, started for this sweep alone."""
AUTO = "auto"
"""The cluster that this machine is a node of."""

REACH_SECONDS = 10.0
"""How long a cluster's head may take to accept a connection."""


def check_form(address: str) -> None:
    """Refuse what is no address of Ray; nothing is asked.

    Raises:
        InputError: it is neither local nor auto nor ``HOST:PORT``.
    """
    if address in {LOCAL, AUTO}:
        return
    host, _, port = address.rpartition(":")
    if address.startswith("ray://"):
        raise InputError(
            f"--address: expected local, auto or HOST:PORT, got {address!r}. From outside a cluster type: "
            "ray job submit --address http://HOST:8265 -- raysweep sweep SPACE --out URI --address auto"
        )
    if not host or not port.isdecimal():
        raise InputError(f"--address: expected local, auto or HOST:PORT, got {address!r}. For example: 10.0.0.5:6379")


def check_reachable(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself waits for more than five minutes to find out.

    Raises:
        InputError: the address has another form.
        MachineError: there is no Ray at the address.
    """
    check_form(address)
    if address == LOCAL:
        return
    host, _, port = (_own_cluster() if address == AUTO else address).rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address, f"nothing answers there ({error})") from None


def unreachable(address: str, why: str) -> MachineError:
    """Return the error that says what was expected at an address, and what to do."""
    return MachineError(
        f"--address {address}: expected a running Ray cluster; {why}. Start one with: ray start --head, "
        "or leave --address out to use this machine alone."
    )


def _own_cluster() -> str:
    # Where ``ray.init`` looks, too; it has no public name.
    from ray._private.services import canonicalize_bootstrap_address_or_die

    try:
        return canonicalize_bootstrap_address_or_die(AUTO)
    except (ConnectionError, ValueError) as error:
        raise unreachable(AUTO, f"this machine is no node of one ({' '.join(str(error).split())})") from None
