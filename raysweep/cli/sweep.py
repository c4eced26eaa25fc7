"""``raysweep sweep``: short probes with Ray Tune, on GPUs or simulated; plan and price first."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options
from raysweep.cli.options import prices_option

if TYPE_CHECKING:
    from raysweep.report.sweep import SweepResult
    from raysweep.sweep import SweepSummary


@click.command("sweep")
@click.argument("space_name", metavar="SPACE")
@click.option(
    "--out", required=True, help="A new folder, or an fsspec URI such as s3://bucket/folder, for the artifact."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "simulated"]),
    default="auto",
    show_default=True,
    help="auto: the GPU where there is one, else simulated.",
)
@click.option(
    "--address",
    default="local",
    show_default=True,
    help="Ray to use: local, auto (the cluster one is on) or HOST:PORT.",
)
@click.option(
    "--strategy",
    default="grid",
    show_default=True,
    metavar="grid|bisect",
    help="grid: every cell. bisect: the longest length that fits, per flavour and step.",
)
@click.option("--emulate", metavar="FLAVOUR,…", help="Measure on this GPU, capped to stand for each of these flavours.")
@click.option("--resume", is_flag=True, help="Go on with the sweep in --out; no probe is bought twice.")
@click.option("--yes", is_flag=True, help="Do not ask before a sweep that costs money.")
@prices_option
@common_options
def command(
    *,
    space_name: str,
    out: str,
    device: str,
    address: str,
    strategy: str,
    emulate: str | None,
    resume: bool,
    yes: bool,
    prices_csv: Path | None,
    as_json: bool,
) -> Exit:
    """Run short probes of the steps in SPACE and keep what they find in an artifact.

    SPACE is a YAML file or the bare name of a shipped space. Out of memory is a result, not an error. A simulated sweep
    runs the forecast, capped at each card's memory, through the same Ray Tune path: all it prints says simulated.

    Exit code 1 where the plan is declined or the budget stopped the sweep.
    """
    from raysweep.cli.devices import choose_devices
    from raysweep.cli.output import emit
    from raysweep.cli.sweep_job import open_resumed, prepare
    from raysweep.report.sweep import plan_page, result_json, result_page
    from raysweep.report.text import print_page
    from raysweep.space import load_space
    from raysweep.store import Artifact
    from raysweep.sweep.address import check_reachable

    space = load_space(space_name)
    devices = choose_devices(device, address=address, emulated=emulate is not None)
    artifact = open_resumed(out, space) if resume else None
    if artifact is None:
        Artifact.check_new(out)
    job = prepare(space, devices, strategy=strategy, emulate=emulate, prices_csv=prices_csv, out=out)
    plan = job.plan()
    if not as_json:
        print_page(plan_page(plan))
    if plan.costs_money and not yes and not _agreed():
        return Exit.NEGATIVE
    check_reachable(address)
    programs = job.programs(artifact, quiet=as_json)
    artifact = artifact or job.create()
    again = _resume_command()
    status = job.complete(artifact, programs, resume_command=again)
    try:
        summary = job.run(artifact, programs, resume=resume, quiet=as_json)
    except KeyboardInterrupt:
        kept = f"{len(artifact.records())} of at most {status.probes_at_most} probes are kept in {out}."
        raise KeyboardInterrupt(f"{kept} Go on with: {again}") from None
    finally:
        job.settle(artifact, status)
    result = _result(summary, job.rejected, out)
    emit(result_page(result), result_json(result), as_json=as_json)
    return Exit.NEGATIVE if summary.over_budget else Exit.DONE


def _resume_command() -> str:
    """Return the command that goes on with this sweep: as it was typed, and ``--resume``."""
    context = click.get_current_context()
    words = ["raysweep", "sweep"]
    for parameter in context.command.params:
        name = parameter.name or ""
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not typed or name in ("resume", "as_json") or name not in context.params:
            continue
        value = context.params[name]
        words += [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
        words += [] if value is True else [str(value)]
    return shlex.join([*words, "--resume"])


def _agreed() -> bool:
    from raysweep.errors import InputError

    if not sys.stdin.isatty():
        raise InputError("This sweep costs money and nobody is there to be asked: add --yes to agree to its price.")
    return click.confirm("Run it?", default=False)


def _result(summary: SweepSummary, rejected: dict[str, str], out: str) -> SweepResult:
    from raysweep.report.sweep import SweepResult

    return SweepResult(
        records=summary.records,
        wall_seconds=summary.wall_seconds,
        overhead_seconds=summary.overhead_seconds,
        step_seconds_sum=summary.step_seconds_sum,
        spent_usd=summary.spent_usd,
        stopped={**rejected, **summary.stopped},
        over_budget=summary.over_budget,
        nothing_left=summary.nothing_left,
        out=out,
    )
