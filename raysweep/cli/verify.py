"""``raysweep verify``: every measured probe forecast again, forecast against measured, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options

if TYPE_CHECKING:
    from raysweep.decision.findings import Findings
    from raysweep.decision.verification import Verification
    from raysweep.memory.program import Program
    from raysweep.records import ProbeRecord
    from raysweep.setting import StepSetting
    from raysweep.space import SearchSpace


@click.command("verify")
@click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT…")
@click.option(
    "--retrace", is_flag=True, help="Trace every step again instead of taking the programs that the artifact keeps."
)
@click.option("--within", "within_text", metavar="SHARE", help="Exit 1 if any peak is further off than this, as 1%.")
@common_options
def command(*, artifacts: tuple[str, ...], retrace: bool, within_text: str | None, as_json: bool) -> Exit:
    """Forecast every measured probe of ARTIFACT again and print forecast against measured, worst first.

    Steps are replayed from the program that the artifact keeps; where it keeps none, or none that covers the lengths
    measured, they are traced, which takes seconds each and needs torch. Artifacts of several models may be named
    together. Probes that cannot be forecast are named with the reason. The reserved peak has a range where it hangs on
    addresses or the process, and is off by what lies beyond it. Exit code 1 where a probe ran out of memory and is
    forecast to run, or the other way round, or a peak is further off than --within.
    """
    from raysweep.cli.options import read_margin
    from raysweep.cli.output import emit
    from raysweep.decision.findings import gather
    from raysweep.decision.verification import merge
    from raysweep.report.verification import verification_json, verification_page
    from raysweep.store import Artifact

    within = read_margin(within_text, "--within") if within_text else None
    opened = [Artifact.open(uri) for uri in artifacts]
    # One by one: verified together, artifacts need not be of one model or allocator as for a decision.
    findings = [gather([artifact]) for artifact in opened]
    parts = [
        _verify(one, records, retrace=retrace, quiet=as_json)
        for one, records in zip(findings, _each_once(findings), strict=True)
    ]
    verification = merge(parts)
    emit(verification_page(verification), verification_json(verification), as_json=as_json)
    far = within is not None and any(check.worst_share > within for check in verification.peaks)
    wrong = any(not check.agrees for check in verification.outcomes)
    return Exit.NEGATIVE if far or wrong else Exit.DONE


def _each_once(findings: Sequence[Findings]) -> list[list[ProbeRecord]]:
    """Return each artifact's probes without those that one before it holds too, as a copy does."""
    seen: set[tuple[object, ...]] = set()
    found: list[list[ProbeRecord]] = []
    for one in findings:
        keys = {(r.sweep_id, r.session_id, r.probe_id, r.started_at): r for r in one.records}
        found.append([record for key, record in keys.items() if key not in seen])
        seen |= keys.keys()
    return found


def _verify(findings: Findings, records: Sequence[ProbeRecord], *, retrace: bool, quiet: bool) -> Verification:
    from raysweep.cli.options import read_catalogue, read_flavours
    from raysweep.decision.verification import verify

    catalogue = read_catalogue(None, findings.price_lists)
    programs, reasons = _programs(findings, records, retrace=retrace, quiet=quiet)
    devices = catalogue.devices_by_id.values()
    return verify(
        records,
        programs,
        findings.space.allocator,
        capabilities={d.torch_device_name: d.compute_capability for d in devices if d.torch_device_name},
        outside_bytes={f.name: f.outside_allocator_bytes for f in read_flavours(findings.space, catalogue)},
        reasons=reasons,
    )


def _programs(
    findings: Findings, records: Sequence[ProbeRecord], *, retrace: bool, quiet: bool
) -> tuple[dict[StepSetting, Program], dict[StepSetting, str]]:
    """Return a program for each measured step, and for steps that cannot be traced the reason."""
    from raysweep.decision.verification import needed_lengths, padded_steps

    programs = {} if retrace else dict(findings.programs)
    padded = padded_steps(records)
    wanted: dict[tuple[tuple[int, ...], bool], list[StepSetting]] = {}
    for step, lengths in needed_lengths(records).items():
        if step not in programs or not _covers(programs[step], lengths, padded=step in padded):
            wanted.setdefault((lengths, step in padded), []).append(step)
    reasons: dict[StepSetting, str] = {}
    for (lengths, is_padded), steps in wanted.items():
        traced, why_not = _trace(findings.space, steps, lengths, padded=is_padded, quiet=quiet)
        programs |= traced
        reasons |= why_not
    return programs, reasons


def _covers(program: Program, lengths: Sequence[int], *, padded: bool) -> bool:
    return all(program.covers(n) and (not padded or program.covers(n, padded=True)) for n in lengths)


def _trace(
    space: SearchSpace, steps: Sequence[StepSetting], lengths: tuple[int, ...], *, padded: bool, quiet: bool
) -> tuple[dict[StepSetting, Program], dict[StepSetting, str]]:
    if len(lengths) > 1:
        from raysweep.cli.programs import trace_programs

        return trace_programs(
            space.model, steps, lengths, padded=padded, trust_remote_code=space.trust_remote_code, quiet=quiet
        )
    # One length takes one trace: to start processes for it would take several times as long.
    from raysweep.errors import NotForecastError
    from raysweep.step.config import load_config
    from raysweep.trace import kept
    from raysweep.trace.build import model_program

    config = load_config(space.model, trust_remote_code=space.trust_remote_code)
    programs: dict[StepSetting, Program] = {}
    reasons: dict[StepSetting, str] = {}
    for step in steps:
        key = kept.program_key(config, step, lengths, padded=padded)
        program = kept.load(key)
        if program is None:
            if not quiet:
                click.echo(f"Tracing a step of {space.model} at {lengths[0]:,} tokens …", err=True)
            try:
                program = model_program(space.model, config, step, lengths, padded=padded)
            except NotForecastError as error:
                reasons[step] = str(error)
                continue
            kept.keep(key, program)
        programs[step] = program
    return programs, reasons
