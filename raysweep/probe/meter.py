"""Memory over one probe, and whether a device is back where it was."""

from __future__ import annotations

from dataclasses import replace

from raysweep.probe.device import Device, Usage

SLACK_BYTES = 64 * 2**20
"""What libraries may keep for good once they have run: tables, tuning results, a few partly used segments."""


class Meter:
    """Peaks and retries since it was last restarted."""

    def __init__(self, device: Device) -> None:
        """Measure from now on."""
        self._device = device
        self._retries_before = 0
        self.restart()

    def restart(self) -> None:
        """Forget what was seen so far."""
        self._device.reset_peaks()
        self._retries_before = self._device.usage().retries

    def read(self) -> Usage:
        """Return the device's usage, with the retries since the restart."""
        usage = self._device.usage()
        return replace(usage, retries=usage.retries - self._retries_before)


def is_clean(now: Usage, *, level: Usage, at_end: Usage) -> bool:
    """Return whether a device's memory is back at an earlier level.

    Args:
        now: after everything was dropped and the caches were emptied.
        level: the earlier level, caches emptied then too.
        at_end: as the probe ended. What lives outside the allocator may have grown up to then (kernels are loaded as
            they are first used), not afterwards.
    """
    if now.outside_allocator_bytes is None or at_end.outside_allocator_bytes is None:
        return True  # the CPU: its allocator keeps no account, and the operating system takes back what is freed
    return (
        now.allocated_bytes <= level.allocated_bytes + SLACK_BYTES
        and now.reserved_bytes <= level.reserved_bytes + SLACK_BYTES
        and now.outside_allocator_bytes <= at_end.outside_allocator_bytes + SLACK_BYTES
    )
