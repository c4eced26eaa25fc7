"""From a search space and a strategy's name to a policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raysweep.errors import InputError, SpaceError, nearest
from raysweep.records import Mode
from raysweep.search.bisect import Bisect
from raysweep.search.cell import generation_cells, training_cells
from raysweep.search.grid import Grid

if TYPE_CHECKING:
    from raysweep.search.policy import Policy
    from raysweep.space import SearchSpace

STRATEGIES = ("grid", "bisect")
"""Names that ``make_policy`` knows."""


def make_policy(
    name: str, space: SearchSpace, flavours: Iterable[str] | None = None, item_tokens: tuple[int, ...] = ()
) -> Policy:
    """Return the policy of that name over a search space.

    Args:
        name: One of ``STRATEGIES``.
        space: What is searched.
        flavours: Names of the flavours to probe; all of the space's where None.
        item_tokens: Lengths of the data's own items, in its own order: the grid probes a sample of them once per
            flavour and step, beside the lengths.

    Raises:
        InputError: The name is not known.
        SpaceError: The space names no length, or the strategy cannot search it.
    """
    names = tuple(flavours) if flavours is not None else tuple(choice.name for choice in space.flavours)
    if name not in STRATEGIES:
        raise InputError(
            f"strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}.{nearest(name, STRATEGIES)}"
            " Type: raysweep sweep SPACE --strategy grid"
        )
    if space.mode is Mode.GENERATE:
        if name != "grid":
            raise SpaceError(f"mode generate has no lengths to {name}: use --strategy grid")
        if space.prompt_tokens is None or space.new_tokens is None:
            raise SpaceError("mode generate: expected prompt_tokens and new_tokens in the space")
        return Grid(
            generation_cells(names, space.steps, prompt_tokens=space.prompt_tokens, new_tokens=space.new_tokens)
        )
    if not space.lengths and (name == "bisect" or not item_tokens):
        raise SpaceError("lengths: a sweep needs the lengths to probe. Add, for example: lengths: [4096, 8192]")
    if name == "bisect":
        return Bisect(names, space.steps, space.lengths)
    return Grid(training_cells(names, space.steps, space.lengths, item_tokens))
