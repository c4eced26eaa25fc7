"""Forecast against measured, worst first, as a page and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysweep.report.labels import gb
from raysweep.report.page import Block, Cell, Heading, Page, Sentence, Table, Tone, table
from raysweep.report.sweep import record_json
from raysweep.space.labels import step_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.decision.verification import OutcomeCheck, PeakCheck, Verification
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
                **_range_json(check),
                "forecast_retries": check.forecast_retries,
            }
            for check in verification.peaks
        ],
        "outcomes": [
            {
                **record_json(check.record),
                "capacity_bytes": check.capacity_bytes,
                "forecast_runs": check.forecast_runs,
                "forecast_may_run": check.forecast_may_run,
                "forecast_fails_in_phase": check.failure.moment.phase if check.failure else None,
                "forecast_requested_bytes": check.failure.requested_bytes if check.failure else None,
                "forecast_fails_at_item": _forecast_item(check),
                "agrees": check.agrees,
            }
            for check in verification.outcomes
        ],
        "skipped": [{"probe_id": skip.record.probe_id, "reason": skip.reason} for skip in verification.skipped],
    }


def verification_page(verification: Verification) -> Page:
    """Return the comparisons for people."""
    names = _Names([check.record for check in verification.peaks] + [check.record for check in verification.outcomes])
    blocks: list[Block] = []
    if verification.peaks:
        blocks.append(_peaks_table(verification, names))
    if verification.outcomes:
        blocks.append(Heading("Probes of which measured or forecast ran out of memory"))
        columns = [*names.columns, ">capacity, GB", "measured", "forecast at that capacity"]
        rows = [
            (*names.of(check.record), gb(check.capacity_bytes, digits=2), _measured_end(check), _forecast_end(check))
            for check in verification.outcomes
        ]
        blocks.append(table(columns, rows))
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


class _Names:
    """The columns that tell probes apart; the model only where there are several."""

    def __init__(self, records: Sequence[ProbeRecord]) -> None:
        self._labels = step_labels([record.step for record in records])
        self._models = len({record.model for record in records}) > 1
        self.columns = [*(["model"] if self._models else []), "flavour", "step", ">tokens"]

    def of(self, record: ProbeRecord) -> tuple[str, ...]:
        model = (record.model.rstrip("/").rsplit("/", 1)[-1],) if self._models else ()
        return (*model, record.flavour, self._labels[record.step], _size(record))


def _peaks_table(verification: Verification, names: _Names) -> Table:
    ranges = any(check.forecast_reserved_range_bytes for check in verification.peaks)
    columns = [*names.columns, ">allocated, measured", ">forecast", ">off", ">reserved, measured", ">forecast"]
    columns += [">forecast's range", ">off"] if ranges else [">off"]
    rows = [
        (
            *names.of(check.record),
            gb(check.measured_allocated_bytes, digits=3),
            gb(check.forecast_allocated_bytes, digits=3),
            _error(check.allocated_error_share),
            gb(check.measured_reserved_bytes, digits=3),
            gb(check.forecast_reserved_bytes, digits=3),
            *((_range(check),) if ranges else ()),
            _error(check.reserved_beyond_share),
        )
        for check in verification.peaks
    ]
    caption = f"GB (10^9 bytes), worst first; the worst peak is {verification.peaks[0].worst_share:.2%} off."
    if ranges:
        caption += (
            " The reserved peak hangs on where the device places segments and on what the process did before: its "
            "range is over all that is possible, and what lies beyond it is off."
        )
    return table(columns, rows, caption)


def _range(check: PeakCheck) -> str | None:
    if check.forecast_reserved_range_bytes is None:
        return None
    low, high = check.forecast_reserved_range_bytes
    return f"{gb(low, digits=3)} to {gb(high, digits=3)}"


def _range_json(check: PeakCheck) -> dict[str, Any]:
    if check.forecast_reserved_range_bytes is None:
        return {}
    return {
        "forecast_reserved_range_bytes": list(check.forecast_reserved_range_bytes),
        "reserved_beyond_range_share": check.reserved_beyond_share,
    }


def _forecast_item(check: OutcomeCheck) -> int | None:
    """The item at which a run over data is forecast to die; None for a probe of one length."""
    return check.failure.moment.item if check.failure and check.record.item_tokens else None


def _measured_end(check: OutcomeCheck) -> str:
    prune = check.record.prune
    return f"dies{_where(prune.phase, prune.item)}" if prune else "runs"


def _forecast_end(check: OutcomeCheck) -> Cell:
    tone = Tone.GOOD if check.agrees else Tone.BAD
    if check.failure is None:
        return Cell("runs", tone)
    where = _where(check.failure.moment.phase, _forecast_item(check))
    return Cell(f"dies{where}{' or runs, as the process is' if check.forecast_may_run else ''}", tone)


def _where(phase: str, item: int | None) -> str:
    return f" in {phase}" if item is None else f" at item {item} in {phase}"


def _size(record: ProbeRecord) -> str:
    if record.item_tokens:
        return f"{len(record.item_tokens)} items"
    return f"{record.length_tokens:,}"


def _error(share: float) -> Cell:
    size = abs(share)
    tone = Tone.GOOD if size <= CLOSE_SHARE else Tone.WARN if size <= FAR_SHARE else Tone.BAD
    text = f"{share:+.2%}"
    return Cell("0.00%" if text in ("+0.00%", "-0.00%") else text, tone)
