"""``raysweep choose``: the cheapest flavour and the longest length that fit, from artifacts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import click

from raysweep.cli.decision_options import DecisionOptions, decide_as_asked, decision_options, refuse_for_generations
from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import AboveZero, read_data

if TYPE_CHECKING:
    from raysweep.store import Artifact


@click.command("choose")
@click.option("--budget-usd", type=AboveZero(), help="What the run itself may cost at most.")
@click.option("--budget-hours", type=AboveZero(), help="What the run itself may take at most.")
@decision_options
@common_options
def command(
    *, budget_usd: float | None, budget_hours: float | None, as_json: bool, **options: Unpack[DecisionOptions]
) -> Exit:
    """Choose the cheapest flavour and the longest length that fit, and say why each other one lost.

    Works from artifacts alone: no GPU, no model, no Ray. Several artifacts of one model merge. Measured numbers are
    taken before simulated ones, those before forecasts. A single artifact keeps the decision in its decision.json.

    Exit code 1 where nothing fits, or nothing that fits is within the budget.
    """
    from cost.choose import RunBudget
    from raysweep.cli.output import emit
    from raysweep.decision.findings import gather
    from raysweep.records import Mode
    from raysweep.report.decision import decision_json, decision_page
    from raysweep.store import Artifact

    opened = [Artifact.open(uri) for uri in options["artifacts"]]
    findings = gather(opened)
    if findings.space.mode is Mode.GENERATE:
        refuse_for_generations(options)
    decision = decide_as_asked(
        findings,
        options,
        items=read_data(options["data_files"], findings.space, tokenizer=options["tokenizer"], quiet=as_json),
        budget=RunBudget(cost=budget_usd, hours=budget_hours),
    )
    data = decision_json(decision)
    emit(decision_page(decision), data, as_json=as_json)
    if len(opened) == 1:
        _keep(opened[0], data)
    return Exit.DONE if decision.chosen else Exit.NEGATIVE


def _keep(artifact: Artifact, data: dict[str, Any]) -> None:
    """Keep the decision with its artifact; of one that may only be read the answer stands all the same."""
    from raysweep.errors import ArtifactError

    try:
        artifact.write_decision(data)
    except ArtifactError as error:
        click.echo(f"The decision is not kept: {error}", err=True)
