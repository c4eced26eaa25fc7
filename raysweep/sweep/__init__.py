"""Sweeps on Ray Tune: sessions that hold devices, a planner that hands out probes, an artifact that keeps them."""

from raysweep.sweep.events import (
    Event,
    FlavourSkipped,
    ProbeEnded,
    ProbeStarted,
    SessionEnded,
    SessionLost,
    SessionStarted,
    SweepStarted,
    SweepSummary,
)
from raysweep.sweep.run import SweepOptions, run_sweep

__all__ = [
    "Event",
    "FlavourSkipped",
    "ProbeEnded",
    "ProbeStarted",
    "SessionEnded",
    "SessionLost",
    "SessionStarted",
    "SweepOptions",
    "SweepStarted",
    "SweepSummary",
    "run_sweep",
]
