"""A sweep for people and programs: its plan and price before, its probes as they end, its summary after."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost.units import format_duration, format_money, format_tokens
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.report.labels import gb
from raysweep.report.page import Block, Cell, Heading, Page, Sentence, Tone, facts, table
from raysweep.setting import StepSetting, WeightsFrom
from raysweep.space.labels import step_labels

if TYPE_CHECKING:
    from cost.domain import Flavour

ASSUMED_PROBE_SECONDS = 90.0
"""For the price of a plan alone: loading and a few steps. The budget is held by the clock, not by this number."""
NOTHING_LEFT = "Nothing was left to do: the artifact already held every probe that this sweep can make."
_TONES = {ProbeState.COMPLETED: Tone.GOOD, ProbeState.PRUNED: Tone.WARN, ProbeState.FAILED: Tone.BAD}
_WEIGHTS_WORDS = {WeightsFrom.RANDOM: "random", WeightsFrom.PRETRAINED: "pretrained: the checkpoint's own"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What a sweep is about to do."""

    space_name: str
    model: str
    weights_from: WeightsFrom = WeightsFrom.RANDOM
    """What measured probes load; a simulation holds no weights."""
    source: Source
    strategy: str
    probes_at_most: Mapping[str, int]
    """Per flavour."""
    flavours: tuple[Flavour, ...]
    charged: Mapping[str, float]
    """USD an hour per flavour that the sweep pays for; empty where nothing is paid."""
    budget_usd: float | None
    budget_hours: float | None
    out: str
    rejected: Mapping[str, str]
    """Flavours that are not probed, and why."""
    notes: tuple[str, ...] = ()
    """What to mind, in whole sentences."""

    @property
    def assumed_usd(self) -> float:
        """Price of all probes at ``ASSUMED_PROBE_SECONDS`` each."""
        return sum(
            self.probes_at_most.get(name, 0) * ASSUMED_PROBE_SECONDS / 3600 * price
            for name, price in self.charged.items()
        )

    @property
    def costs_money(self) -> bool:
        """Whether someone is asked to pay for it."""
        return any(price > 0 for price in self.charged.values())


def plan_page(plan: SweepPlan) -> Page:
    """Return the plan and its price."""
    rows = [
        (
            flavour.name,
            flavour.gpu_id,
            plan.probes_at_most.get(flavour.name, 0),
            f"{plan.charged[flavour.name]:,.2f}" if flavour.name in plan.charged else "nothing",
            Cell(plan.rejected[flavour.name], Tone.WARN) if flavour.name in plan.rejected else Cell("yes", Tone.GOOD),
        )
        for flavour in plan.flavours
    ]
    limits = [
        *([] if plan.budget_usd is None else [format_money(plan.budget_usd)]),
        *([] if plan.budget_hours is None else [format_duration(plan.budget_hours * 3600)]),
    ]
    blocks: list[Block] = [
        facts(
            [
                ("model", plan.model),
                *([] if plan.source is Source.SIMULATED else [("weights", _WEIGHTS_WORDS[plan.weights_from])]),
                ("probes are", plan.source.value),
                ("strategy", plan.strategy),
                ("budget", " and ".join(limits) or "none"),
                ("artifact", plan.out),
            ]
        ),
        table(["flavour", "GPU", ">probes at most", ">pays, USD/h", "probed"], rows),
        Sentence(_price_sentence(plan)),
        *(Sentence(note, Tone.WARN) for note in plan.notes),
    ]
    return Page(f"Sweep of {plan.space_name}", tuple(blocks))


def plan_json(plan: SweepPlan) -> dict[str, Any]:
    """Return the plan as plain data."""
    return {
        "source": plan.source.value,
        "weights_from": None if plan.source is Source.SIMULATED else plan.weights_from.value,
        "strategy": plan.strategy,
        "probes_at_most": dict(plan.probes_at_most),
        "charged_usd_per_hour": dict(plan.charged),
        "assumed_usd": plan.assumed_usd,
        "budget_usd": plan.budget_usd,
        "budget_hours": plan.budget_hours,
        "rejected": dict(plan.rejected),
        "notes": list(plan.notes),
    }


def _price_sentence(plan: SweepPlan) -> str:
    if plan.source is Source.SIMULATED:
        return "Simulated: no GPU runs, and nothing is paid."
    if not plan.costs_money:
        return "No flavour here has a price: nothing is counted as paid."
    stop = "" if plan.budget_usd is None else f" It stops at {format_money(plan.budget_usd)}."
    return (
        f"About {format_money(plan.assumed_usd)} at {ASSUMED_PROBE_SECONDS:.0f} s a probe (an assumption); "
        f"machines also cost while they start.{stop}"
    )


def probe_line(record: ProbeRecord, labels: Mapping[StepSetting, str]) -> str:
    """Return one probe as one line."""
    size = f"{record.length_tokens:,} tokens" if record.length_tokens is not None else "generation"
    if record.item_tokens:
        size = f"{len(record.item_tokens)} items, longest {record.length_tokens:,}"
    return f"{record.flavour}  {labels.get(record.step, 'the step')}  {size}: {probe_result(record)}"


def probe_result(record: ProbeRecord) -> str:
    """Return how a probe ended, with its numbers."""
    seen = record.measurement
    if record.state is ProbeState.COMPLETED and seen is not None:
        speed = "" if seen.tokens_per_second is None else f", {seen.tokens_per_second:,.0f} tokens/s"
        return f"{gb(seen.peak_reserved_bytes)} GB reserved{speed} ({record.source.value})"
    what = f"{record.state.value}: {record.reason}"
    where = f" in {record.prune.phase}" if record.prune else ""
    return f"{what}{where} ({record.source.value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep did, as far as a page shows it."""

    records: tuple[ProbeRecord, ...]
    wall_seconds: float
    overhead_seconds: float
    step_seconds_sum: float
    spent_usd: float
    stopped: Mapping[str, str]
    over_budget: bool
    out: str
    nothing_left: bool = False
    """Whether a sweep that was gone on with had ended before."""


def result_json(result: SweepResult) -> dict[str, Any]:
    """Return what a sweep did as plain data."""
    return {
        "artifact": result.out,
        "counts": _counts(result.records),
        "wall_seconds": result.wall_seconds,
        "overhead_seconds": result.overhead_seconds,
        "step_seconds_sum": result.step_seconds_sum,
        "spent_usd": result.spent_usd,
        "over_budget": result.over_budget,
        "stopped": dict(result.stopped),
        "probes": [record_json(record) for record in result.records],
    }


def result_page(result: SweepResult) -> Page:
    """Return what a sweep did."""
    counts = _counts(result.records)
    simulated = any(record.source is Source.SIMULATED for record in result.records)
    step_note = " (simulated seconds)" if simulated else ""
    blocks: list[Block] = [
        facts(
            [
                ("probes", ", ".join(f"{count} {state}" for state, count in counts.items())),
                ("wall time", format_duration(result.wall_seconds)),
                ("of it without any probe", format_duration(result.overhead_seconds)),
                ("time in steps", format_duration(result.step_seconds_sum) + step_note),
                ("spent", "nothing: simulated" if simulated else format_money(result.spent_usd)),
                ("artifact", result.out),
            ]
        ),
        *([Sentence(NOTHING_LEFT, Tone.GOOD)] if result.nothing_left else []),
        *(
            Sentence(f"{flavour} was not probed to its end: {why}", Tone.WARN)
            for flavour, why in result.stopped.items()
        ),
        Sentence(f"Next: raysweep choose {shlex.quote(result.out)}"),
    ]
    return Page("Sweep finished", tuple(blocks))


def records_table(records: Sequence[ProbeRecord]) -> list[Block]:
    """Return every probe as a table, by flavour, step and length, whatever the order they ended in."""
    labels = step_labels([record.step for record in records])
    flavours = list(dict.fromkeys(record.flavour for record in records))
    steps = list(labels)
    ordered = sorted(
        records,
        key=lambda r: (flavours.index(r.flavour), steps.index(r.step), r.length_tokens or 0, len(r.item_tokens)),
    )
    rows = [
        (
            record.flavour,
            labels[record.step],
            _size(record),
            Cell(_state(record), _TONES[record.state]),
            gb(record.measurement.peak_allocated_bytes, digits=2) if record.measurement else None,
            gb(record.measurement.peak_reserved_bytes, digits=2) if record.measurement else None,
            _tokens_per_second(record),
            _source(record),
        )
        for record in ordered
    ]
    columns = ["flavour", "step", ">tokens", "ended", ">allocated", ">reserved", ">tokens/s", "source"]
    caption = "GB (10^9 bytes): peaks; of a pruned probe those it reached before it died."
    return [Heading("Probes"), table(columns, rows, caption)]


def record_json(record: ProbeRecord) -> dict[str, Any]:
    """Return one probe as plain data."""
    seen = record.measurement
    return {
        "probe_id": record.probe_id,
        "source": record.source.value,
        "mode": record.mode.value,
        "flavour": record.flavour,
        "step": record.step.to_dict(),
        "length_tokens": record.length_tokens,
        "items": len(record.item_tokens) or None,
        "prompt_tokens": record.prompt_tokens,
        "new_tokens": record.new_tokens,
        "state": record.state.value,
        "reason": record.reason,
        "detail": record.detail,
        "phase": record.prune.phase if record.prune else None,
        "requested_bytes": record.prune.requested_bytes if record.prune else None,
        "peak_allocated_bytes": seen.peak_allocated_bytes if seen else None,
        "peak_reserved_bytes": seen.peak_reserved_bytes if seen else None,
        "outside_allocator_bytes": seen.outside_allocator_bytes if seen else None,
        "allocation_retries": seen.allocation_retries if seen else None,
        "tokens_per_second": seen.tokens_per_second if seen else None,
        "price_usd_per_hour": record.price_usd_per_hour,
        "device_name": record.device_name,
        "device_memory_bytes": record.device_memory_bytes,
        "memory_cap_bytes": record.memory_cap_bytes,
        "probe_seconds": record.probe_seconds,
    }


def _counts(records: Sequence[ProbeRecord]) -> dict[str, int]:
    return {state.value: sum(record.state is state for record in records) for state in ProbeState}


def _size(record: ProbeRecord) -> str:
    if record.mode is Mode.GENERATE:
        return f"{record.prompt_tokens:,} + {record.new_tokens:,}"
    if record.item_tokens:
        return f"{len(record.item_tokens)} items, {format_tokens(sum(record.item_tokens))}"
    return f"{record.length_tokens:,}"


def _state(record: ProbeRecord) -> str:
    if record.state is ProbeState.COMPLETED:
        return record.state.value
    phase = f" in {record.prune.phase}" if record.prune else ""
    return f"{record.state.value}: {record.reason}{phase}"


def _source(record: ProbeRecord) -> str:
    if record.source is Source.MEASURED and record.memory_cap_bytes is not None:
        return f"measured on {record.device_name}, capped at {record.memory_cap_bytes / 1e9:.1f} GB"
    return f"{record.source.value} {'as' if record.source is Source.SIMULATED else 'on'} {record.device_name}"


def _tokens_per_second(record: ProbeRecord) -> str | None:
    seen = record.measurement
    return None if seen is None or seen.tokens_per_second is None else f"{seen.tokens_per_second:,.0f}"
