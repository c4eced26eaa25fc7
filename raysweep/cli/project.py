"""``raysweep project``: hours and dollars of the whole run, from an artifact alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from raysweep.cli.decision_options import DecisionOptions, decide_as_asked, decision_options
from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import read_data, read_scale, read_slurm_margin

if TYPE_CHECKING:
    from raysweep.decision.model import Decision
    from raysweep.report.page import Page


@click.command("project")
@click.option(
    "--scale", "scales", multiple=True, metavar="STAGE=X", help="Growth of a stage's data: stage2=3 is three times."
)
@click.option(
    "--from-log",
    "log_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="trainer_state.json, or JSONL of tokens and seconds, of a run under way: project again from its times.",
)
@click.option("--slurm-margin", "slurm_margin_text", metavar="SHARE", help="What --time adds to the upper end, as 20%.")
@decision_options
@common_options
def command(
    *,
    scales: tuple[str, ...],
    log_file: Path | None,
    slurm_margin_text: str | None,
    as_json: bool,
    **options: Unpack[DecisionOptions],
) -> Exit:
    """Project hours and dollars of the whole run, with a range, on the flavour to choose and on every other.

    The run is the data that the space names (the artifact keeps their token counts), or --data. Exit code 1 where
    nothing fits, or nothing that fits has a known time.
    """
    from raysweep.cli.output import emit
    from raysweep.decision.findings import gather
    from raysweep.errors import InputError
    from raysweep.report.projection import projection_json, projection_page
    from raysweep.store import Artifact

    artifacts = options["artifacts"]
    share = None if slurm_margin_text is None else read_slurm_margin(slurm_margin_text)
    findings = gather([Artifact.open(uri) for uri in artifacts])
    items = read_data(options["data_files"], findings.space, tokenizer=options["tokenizer"], quiet=as_json)
    if not items and not findings.items:
        raise InputError(
            f"{artifacts[0]}: expected the token counts of the run's data; its space named none. Add --data FILE."
        )
    decision = decide_as_asked(findings, options, items=items, scale=read_scale(scales))
    share = findings.space.run.slurm_time_margin_share if share is None else share
    page = projection_page(decision, slurm_margin_share=share)
    data = projection_json(decision, slurm_margin_share=share)
    if log_file is not None:
        page, data["calibration"] = _with_log(page, decision, log_file)
    emit(page, data, as_json=as_json)
    chosen = decision.chosen
    return Exit.DONE if chosen and chosen.projection else Exit.NEGATIVE


def _with_log(page: Page, decision: Decision, log_file: Path) -> tuple[Page, dict[str, Any]]:
    from raysweep.decision.calibration import calibrate, read_log
    from raysweep.report.projection import calibrated_page, calibration_json

    calibration = calibrate(decision, read_log(log_file))
    return calibrated_page(calibration, page), calibration_json(calibration)
