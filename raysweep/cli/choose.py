"""``raysweep choose``: the cheapest flavour and the longest length that fit, from artifacts alone."""

from __future__ import annotations

from pathlib import Path

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import (
    AboveZero,
    data_option,
    lengths_option,
    margin_option,
    prices_option,
    read_catalogue,
    read_data,
    read_lengths,
    read_margin,
)


@click.command("choose")
@click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT…")
@click.option("--at-least", "at_least_tokens", type=click.IntRange(min=1), help="Shortest length limit that will do.")
@click.option("--budget-usd", type=AboveZero(), help="What the run itself may cost at most.")
@click.option("--budget-hours", type=AboveZero(), help="What the run itself may take at most.")
@lengths_option
@margin_option
@data_option
@prices_option
@common_options
def command(
    *,
    artifacts: tuple[str, ...],
    at_least_tokens: int | None,
    budget_usd: float | None,
    budget_hours: float | None,
    lengths_text: str | None,
    margin_text: str | None,
    data_files: tuple[str, ...],
    prices_csv: Path | None,
    as_json: bool,
) -> Exit:
    """Choose the cheapest flavour and the longest length that fit, and say why each other one lost.

    Works from artifacts alone: no GPU, no model, no Ray. Several artifacts of one model merge. Measured numbers are
    taken before simulated ones, those before forecasts. A single artifact keeps the decision in its decision.json.

    Exit code 1 where nothing fits, or nothing that fits is within the budget.
    """
    from cost.choose import RunBudget
    from raysweep.cli.output import emit
    from raysweep.decision.decide import decide
    from raysweep.decision.findings import gather
    from raysweep.report.decision import decision_json, decision_page
    from raysweep.store import Artifact

    opened = [Artifact.open(uri) for uri in artifacts]
    findings = gather(opened)
    decision = decide(
        findings,
        read_catalogue(prices_csv),
        margin_share=read_margin(margin_text) if margin_text else None,
        lengths=read_lengths(lengths_text) if lengths_text else None,
        items=read_data(data_files, findings.space),
        at_least_tokens=at_least_tokens,
        budget=RunBudget(cost=budget_usd, hours=budget_hours),
    )
    data = decision_json(decision)
    emit(decision_page(decision), data, as_json=as_json)
    if len(opened) == 1:
        opened[0].write_decision(data)
    return Exit.DONE if decision.chosen else Exit.NEGATIVE
