"""``raysweep project``: hours and dollars of the whole run, from an artifact alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from raysweep.cli.decision_options import (
    DecisionOptions,
    decide_as_asked,
    decision_options,
    refuse_for_generations,
)
from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import read_data, read_scale, read_slurm_margin

if TYPE_CHECKING:
    from raysweep.decision.findings import Findings
    from raysweep.decision.model import Decision
    from raysweep.report.page import Page


@click.command("project")
@click.option(
    "--scale", "scales", multiple=True, metavar="STAGE=X", help="Growth of a stage's data: stage2=3 is three times."
)
@click.option(
    "--from-log",
    "log_text",
    metavar="PATH",
    help="Of a run under way, to project again from its times: a Trainer's output folder or trainer_state.json, or "
    "JSONL of tokens and seconds.",
)
@click.option(
    "--flavour",
    metavar="NAME",
    help="Project on this flavour alone: with --from-log, the one that the run is on.",
)
@click.option("--slurm-margin", "slurm_margin_text", metavar="SHARE", help="What --time adds to the upper end, as 20%.")
@decision_options
@common_options
def command(
    *,
    scales: tuple[str, ...],
    log_text: str | None,
    flavour: str | None,
    slurm_margin_text: str | None,
    as_json: bool,
    **options: Unpack[DecisionOptions],
) -> Exit:
    """Project hours and dollars of the whole run, with a range, on the flavour to choose and on every other.

    The run is the data that the space names (the artifact keeps their token counts), or --data; of a sweep in mode
    generate, a thousand generations. Exit code 1 where nothing fits, or nothing that fits has a known time.
    """
    from raysweep.cli.output import emit
    from raysweep.decision.findings import gather
    from raysweep.records import Mode
    from raysweep.report.generation import generation_json, generation_page
    from raysweep.report.projection import projection_json, projection_page
    from raysweep.store import Artifact

    log_path = None if log_text is None else _log_path(log_text)
    share = None if slurm_margin_text is None else read_slurm_margin(slurm_margin_text)
    findings = gather([Artifact.open(uri) for uri in options["artifacts"]])
    share = findings.space.run.slurm_time_margin_share if share is None else share
    if findings.space.mode is Mode.GENERATE:
        refuse_for_generations(options, {"--scale": bool(scales), "--from-log": log_path is not None})
        decision = decide_as_asked(findings, options, items={}, flavour=flavour)
        data = generation_json(decision, slurm_margin_share=share)
        emit(generation_page(decision, slurm_margin_share=share), data, as_json=as_json)
        return Exit.DONE if decision.chosen else Exit.NEGATIVE
    decision = _decide(findings, options, scales, flavour, quiet=as_json)
    page = projection_page(decision, slurm_margin_share=share if log_path is None else None)
    data = projection_json(decision, slurm_margin_share=share)
    if log_path is not None:
        page, data["calibration"] = _with_log(page, decision, log_path, slurm_margin_share=share)
    emit(page, data, as_json=as_json)
    chosen = decision.chosen
    return Exit.DONE if chosen and chosen.projection else Exit.NEGATIVE


def _log_path(text: str) -> Path:
    """Return the path that ``--from-log`` names; an empty one, as of a variable that is not set, is not this folder.

    Raises:
        InputError: it is empty.
    """
    from raysweep.errors import InputError

    if not text.strip():
        raise InputError(
            f"--from-log: expected a Trainer's output folder or trainer_state.json, or a JSONL file; {text!r} came."
        )
    return Path(text)


def _decide(
    findings: Findings, options: DecisionOptions, scales: tuple[str, ...], flavour: str | None, *, quiet: bool
) -> Decision:
    """Return the decision about a training run.

    Raises:
        InputError: neither the artifact nor an option names its data, or an option cannot be read.
    """
    from raysweep.errors import InputError

    items = read_data(options["data_files"], findings.space, tokenizer=options["tokenizer"], quiet=quiet)
    if not items and not findings.items:
        names = [stage.name for stage in findings.space.stages()]
        add = " ".join(f"--data {name}=FILE" for name in names) if len(names) > 1 else "--data FILE"
        raise InputError(
            f"{options['artifacts'][0]}: expected the token counts of the run's data; it keeps none. Add {add}."
        )
    return decide_as_asked(findings, options, items=items, scale=read_scale(scales), flavour=flavour)


def _with_log(
    page: Page, decision: Decision, log_path: Path, *, slurm_margin_share: float
) -> tuple[Page, dict[str, Any]]:
    from raysweep.decision.calibration import calibrate
    from raysweep.decision.read_log import read_log
    from raysweep.report.calibration import calibrated_page, calibration_json

    calibration = calibrate(decision, read_log(log_path))
    return (
        calibrated_page(calibration, page, slurm_margin_share=slurm_margin_share),
        calibration_json(calibration, slurm_margin_share=slurm_margin_share),
    )
