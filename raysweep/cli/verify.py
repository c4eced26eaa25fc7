"""``raysweep verify``: every measured probe forecast again, forecast against measured, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from raysweep.cli.edge import Exit, common_options

if TYPE_CHECKING:
    from raysweep.decision.findings import Findings
    from raysweep.memory.program import Program
    from raysweep.setting import StepSetting


@click.command("verify")
@click.argument("artifacts", nargs=-1, required=True, metavar="ARTIFACT…")
@click.option(
    "--retrace", is_flag=True, help="Trace every step again instead of taking the programs that the artifact keeps."
)
@click.option("--within", "within_text", metavar="SHARE", help="Exit 1 if any peak is further off than this, as 1%.")
@common_options
def command(*, artifacts: tuple[str, ...], retrace: bool, within_text: str | None, as_json: bool) -> Exit:
    """Forecast every measured probe of ARTIFACT again and print forecast against measured, worst first.

    Steps whose program the artifact keeps are replayed; others are traced, which takes seconds each and needs torch.
    Probes that cannot be forecast are named with the reason. Exit code 1 where an out-of-memory probe is forecast to
    run, or a peak is further off than --within.
    """
    from raysweep.cli.options import read_catalogue, read_margin
    from raysweep.cli.output import emit
    from raysweep.decision.findings import gather
    from raysweep.decision.verification import verify
    from raysweep.report.verification import verification_json, verification_page
    from raysweep.store import Artifact

    within = read_margin(within_text, "--within") if within_text else None
    findings = gather([Artifact.open(uri) for uri in artifacts])
    programs, reasons = _programs(findings, retrace=retrace, quiet=as_json)
    devices = read_catalogue(None).devices_by_id.values()
    verification = verify(
        findings.records,
        programs,
        findings.space.allocator,
        capabilities={d.torch_device_name: d.compute_capability for d in devices if d.torch_device_name},
        reasons=reasons,
    )
    emit(verification_page(verification), verification_json(verification), as_json=as_json)
    far = within is not None and any(check.worst_share > within for check in verification.peaks)
    wrong = any(not check.agrees for check in verification.outcomes)
    return Exit.NEGATIVE if far or wrong else Exit.DONE


def _programs(
    findings: Findings, *, retrace: bool, quiet: bool
) -> tuple[dict[StepSetting, Program], dict[StepSetting, str]]:
    from raysweep.records import Mode, Source

    kept = {} if retrace else dict(findings.programs)
    measured = [r for r in findings.records if r.source is Source.MEASURED and r.mode is Mode.TRAIN]
    lengths = sorted({n for r in measured for n in (r.item_tokens or (r.length_tokens,)) if n})
    missing = [step for step in dict.fromkeys(r.step for r in measured) if step not in kept]
    if not missing or not lengths:
        return kept, {}
    from raysweep.cli.programs import trace_programs

    space = findings.space
    traced, reasons = trace_programs(
        space.model, missing, lengths, trust_remote_code=space.trust_remote_code, quiet=quiet
    )
    return {**kept, **traced}, reasons
