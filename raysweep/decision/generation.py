"""Cells of an inference sweep: a prompt and new tokens on every flavour, priced by the thousand generations."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from cost.candidate import Candidate
from cost.domain import Flavour
from cost.evidence import Evidence, Range
from cost.units import SECONDS_PER_HOUR
from raysweep.decision.memory import from_record, preferred, tells_memory
from raysweep.decision.model import Cell
from raysweep.decision.outside import ALLOWANCE_BYTES, outside_of
from raysweep.decision.plan import terms_of
from raysweep.records import Mode, ProbeRecord, ProbeState, Source
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace

GENERATIONS = 1000
"""What hours and money of an inference cell are of."""


def generation_cells(
    records: Sequence[ProbeRecord],
    space: SearchSpace,
    flavours: Sequence[Flavour],
    labels: Mapping[StepSetting, str],
    *,
    margin_share: float,
) -> tuple[Cell, ...]:
    """Return one cell a flavour and step, from its best probe; without one its memory and time are not known."""
    return tuple(
        _cell(records, space, flavour, (step, label), margin_share=margin_share)
        for flavour in flavours
        for step, label in labels.items()
    )


def _cell(
    records: Sequence[ProbeRecord],
    space: SearchSpace,
    flavour: Flavour,
    labelled: tuple[StepSetting, str],
    *,
    margin_share: float,
) -> Cell:
    step, label = labelled
    mine = preferred(
        record
        for record in records
        if record.mode is Mode.GENERATE
        and record.flavour == flavour.name
        and record.step == step
        and tells_memory(record)
    )
    outside = outside_of(flavour, step, records, allowance_bytes=ALLOWANCE_BYTES["plain"])
    memory = from_record(mine[0], flavour, outside, margin_share=margin_share) if mine else None
    hours = next((found for record in mine if (found := _hours(record))), None)
    price = terms_of(space, flavour.usd_per_hour, flavour.gpu_count).price_per_hour
    candidate = Candidate(
        flavour=flavour.name,
        step=label,
        length_tokens=(space.prompt_tokens or 0) + (space.new_tokens or 0),
        fit=memory.fit if memory else None,
        memory_evidence=Evidence(memory.source.value) if memory else None,
        cost=hours.times(price) if hours and price is not None else None,
        hours=hours,
        time_evidence=Evidence.MEASURED if hours else None,
        price_per_hour=price,
        gpu_count=flavour.gpu_count,
    )
    return Cell(candidate=candidate, flavour=flavour, step=step, memory=memory, time_model=None, projection=None)


def _hours(record: ProbeRecord) -> Range | None:
    """Hours of a thousand generations; a card that stands for another keeps its own speed, which is not that one's."""
    seen = record.measurement
    if record.state is not ProbeState.COMPLETED or seen is None or not seen.step_seconds:
        return None
    if record.source is not Source.MEASURED or record.memory_cap_bytes is not None:
        return None
    seconds = seen.step_seconds
    one = Range(expected=statistics.median(seconds), low=min(seconds), high=max(seconds))
    return one.times(GENERATIONS / SECONDS_PER_HOUR)
