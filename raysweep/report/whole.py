"""Everything that artifacts hold, on one page: the decision, the projection, every probe, versions and the space."""

from __future__ import annotations

from typing import Any

from raysweep.decision.findings import Findings
from raysweep.decision.model import Decision
from raysweep.report.decision import decision_json, decision_page
from raysweep.report.page import Block, Heading, Page, facts
from raysweep.report.projection import projection_json, projection_page
from raysweep.report.sweep import record_json, records_table


def whole_page(findings: Findings, decision: Decision) -> Page:
    """Return the decision, the projection of the run, every probe, and what they ran on."""
    share = findings.space.run.slurm_time_margin_share
    choice = decision_page(decision)
    run = projection_page(decision, slurm_margin_share=share)
    blocks: list[Block] = [*choice.blocks]
    if not decision.run.is_sample and decision.chosen:
        blocks += [Heading(run.title), *run.blocks]
    if findings.records:
        blocks += records_table(findings.records)
    blocks += [Heading("Versions"), facts(sorted(_versions(findings).items()))]
    return Page(choice.title, tuple(blocks))


def whole_json(findings: Findings, decision: Decision) -> dict[str, Any]:
    """Return the same as plain data."""
    share = findings.space.run.slurm_time_margin_share
    return {
        "decision": decision_json(decision),
        "projection": projection_json(decision, slurm_margin_share=share),
        "probes": [record_json(record) for record in findings.records],
        "versions": _versions(findings),
        "space": findings.space.source_text,
    }


def _versions(findings: Findings) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for record in findings.records:
        for name, version in record.versions.items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}
