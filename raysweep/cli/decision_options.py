"""What ``choose`` and ``project`` have in common: the options of a decision, and the decision that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from raysweep.cli.options import (
    data_option,
    lengths_option,
    margin_option,
    prices_option,
    read_catalogue,
    read_lengths,
    read_margin,
)

if TYPE_CHECKING:
    from cost.choose import RunBudget
    from raysweep.data import Items
    from raysweep.decision.findings import Findings
    from raysweep.decision.model import Decision

F = TypeVar("F", bound=Callable[..., Any])


class DecisionOptions(TypedDict):
    """The options as click hands them to a command."""

    artifacts: tuple[str, ...]
    at_least_tokens: int | None
    lengths_text: str | None
    margin_text: str | None
    data_files: tuple[str, ...]
    tokenizer: str | None
    prices_csv: Path | None


def decision_options(command: F) -> F:
    """Add the artifacts, ``--at-least``, ``--lengths``, ``--margin``, ``--data``, ``--tokenizer`` and ``--prices``."""
    artifacts = click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT…")
    at_least = click.option(
        "--at-least", "at_least_tokens", type=click.IntRange(min=1), help="Shortest length limit that will do."
    )
    return artifacts(at_least(lengths_option(margin_option(data_option(prices_option(command))))))


def refuse_for_generations(options: DecisionOptions, others: Mapping[str, bool] | None = None) -> None:
    """Refuse options that say nothing of generations, of which an artifact of mode generate is.

    Args:
        options: As the command got them.
        others: Whether each further option of a training run was given.

    Raises:
        InputError: one was.
    """
    from raysweep.errors import InputError

    given = {"--data": bool(options["data_files"]), "--lengths": options["lengths_text"] is not None, **(others or {})}
    for option, is_given in given.items():
        if is_given:
            raise InputError(
                f"{option}: expected none, since {options['artifacts'][0]} is of mode generate: hours and dollars are "
                f"of a thousand generations. Leave {option} out."
            )


def decide_as_asked(
    findings: Findings,
    options: DecisionOptions,
    *,
    items: Mapping[str, Items],
    budget: RunBudget | None = None,
    scale: Mapping[str, float] | None = None,
    flavour: str | None = None,
) -> Decision:
    """Return the decision that the options ask for.

    Args:
        findings: Of the options' artifacts.
        options: As the command got them.
        items: Of the options' data, by stage; stages that are not among them keep the artifact's own.
        budget: Of the run.
        scale: Growth of the data by stage.
        flavour: The only one to decide about.

    Raises:
        InputError: an option cannot be read, or there is nothing to decide about.
        CostError: a price list cannot be read, or the plan contradicts itself.
    """
    from raysweep.decision.decide import decide

    lengths_text, margin_text = options["lengths_text"], options["margin_text"]
    return decide(
        findings,
        read_catalogue(options["prices_csv"], findings.price_lists),
        margin_share=None if margin_text is None else read_margin(margin_text),
        lengths=None if lengths_text is None else read_lengths(lengths_text),
        items=_completed(items, findings),
        at_least_tokens=options["at_least_tokens"],
        budget=budget,
        scale=scale,
        flavour=flavour,
    )


def _completed(items: Mapping[str, Items], findings: Findings) -> dict[str, Items]:
    """Return the given items with the artifact's own of the space's other stages, in the order of the stages."""
    planned = [stage.name for stage in findings.space.stages()]
    if not items or len(planned) < 2:
        return dict(items)
    whole = {**findings.items, **items}
    return {name: whole[name] for name in planned if name in whole}
