"""The protocol of a search policy: ask it for the next probe, tell it what a probe found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from raysweep.records import ProbeRecord
from raysweep.search.runner import ProbeRequest


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to ask for now; what is in flight may change that."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to ask for on this flavour."""

    reason: str


class Policy(Protocol):
    """Decides which probe to buy next, from what earlier ones found.

    A policy is plain data and arithmetic, so that it can be pickled, and simulated by the hundred. A request it has
    handed out counts as in flight until its record is told. Records may be told in any order, more than once, and
    before the first ``ask``: so a sweep resumes from its artifact. Records of cells that the policy does not know
    change nothing.
    """

    def ask(self, flavour: str, loaded_key: str | None) -> ProbeRequest | Wait | Done:
        """Return the next probe of a flavour.

        Args:
            flavour: The flavour whose session asks.
            loaded_key: ``runner.load_key`` of the model that the session has loaded; None for none.
        """

    def tell(self, record: ProbeRecord) -> None:
        """Take in what a probe found."""

    def remaining(self, flavour: str) -> int:
        """Return an upper estimate of the probes that the flavour still needs, those in flight counted; 0 is none."""
