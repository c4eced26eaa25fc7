"""Forecast against measured, worst first, as a page and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysweep.report.labels import gb
from raysweep.report.page import Block, Cell, Heading, Page, Sentence, Tone, table
from raysweep.report.sweep import record_json
from raysweep.space.labels import step_labels

if TYPE_CHECKING:
    from raysweep.decision.verification import Verification
    from raysweep.records import ProbeRecord

CLOSE_SHARE = 0.005
FAR_SHARE = 0.02


def verification_json(verification: Verification) -> dict[str, Any]:
    """Return every comparison as plain data; shares are forecast over measured, less one."""
    return {
        "peaks": [
            {
                **record_json(check.record),
                "measured_allocated_bytes": check.measured_allocated_bytes,
                "forecast_allocated_bytes": check.forecast_allocated_bytes,
                "allocated_error_share": check.allocated_error_share,
                "measured_reserved_bytes": check.measured_reserved_bytes,
                "forecast_reserved_bytes": check.forecast_reserved_bytes,
                "reserved_error_share": check.reserved_error_share,
            }
            for check in verification.peaks
        ],
        "outcomes": [
            {
                **record_json(check.record),
                "capacity_bytes": check.capacity_bytes,
                "forecast_runs": check.forecast_runs,
                "agrees": check.agrees,
            }
            for check in verification.outcomes
        ],
        "skipped": [{"probe_id": skip.record.probe_id, "reason": skip.reason} for skip in verification.skipped],
    }


def verification_page(verification: Verification) -> Page:
    """Return the comparisons for people."""
    steps = [check.record.step for check in verification.peaks]
    labels = step_labels(steps + [check.record.step for check in verification.outcomes])
    blocks: list[Block] = []
    if verification.peaks:
        worst = verification.peaks[0].worst_share
        rows = [
            (
                check.record.flavour,
                labels[check.record.step],
                _size(check.record),
                gb(check.measured_allocated_bytes, digits=3),
                gb(check.forecast_allocated_bytes, digits=3),
                _error(check.allocated_error_share),
                gb(check.measured_reserved_bytes, digits=3),
                gb(check.forecast_reserved_bytes, digits=3),
                _error(check.reserved_error_share),
            )
            for check in verification.peaks
        ]
        columns = ["flavour", "step", ">tokens", ">allocated, measured", ">forecast", ">off", ">reserved, measured"]
        caption = f"GB (10^9 bytes), worst first; the worst peak is {worst:.2%} off."
        blocks.append(table([*columns, ">forecast", ">off"], rows, caption))
    if verification.outcomes:
        blocks.append(Heading("Probes that ran out of memory"))
        outcome_rows = [
            (
                check.record.flavour,
                labels[check.record.step],
                _size(check.record),
                gb(check.capacity_bytes, digits=2),
                Cell("dies too", Tone.GOOD) if check.agrees else Cell("runs", Tone.BAD),
            )
            for check in verification.outcomes
        ]
        blocks.append(table(["flavour", "step", ">tokens", ">capacity, GB", "forecast at that capacity"], outcome_rows))
    if not verification.peaks and not verification.outcomes:
        blocks.append(
            Sentence("No measured probe here can be compared: measure some with raysweep sweep --device cuda.")
        )
    reasons: dict[str, int] = {}
    for skip in verification.skipped:
        reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
    blocks += [Sentence(f"Not compared, {count}: {reason}", Tone.NOTE) for reason, count in reasons.items()]
    return Page("Forecast against measured", tuple(blocks))


def worst_share(verification: Verification) -> float | None:
    """Return the largest error of any peak, or None where nothing was compared."""
    return max((check.worst_share for check in verification.peaks), default=None)


def _size(record: ProbeRecord) -> str:
    if record.item_tokens:
        return f"{len(record.item_tokens)} items"
    return f"{record.length_tokens:,}"


def _error(share: float) -> Cell:
    size = abs(share)
    tone = Tone.GOOD if size <= CLOSE_SHARE else Tone.WARN if size <= FAR_SHARE else Tone.BAD
    return Cell(f"{share:+.2%}", tone)
