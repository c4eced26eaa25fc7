"""What one or several artifacts of the same model hold together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.data.items import Items
from raysweep.decision.items import read_items_table
from raysweep.decision.together import Part, check_together, differences
from raysweep.errors import ArtifactError
from raysweep.memory.program import Program
from raysweep.records import Mode, ProbeRecord
from raysweep.setting import StepSetting
from raysweep.space import FlavourChoice, SearchSpace, parse_space
from raysweep.store import ITEMS, PRICES, PROGRAMS, SPACE, Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Probes, programs, data and the space that they answer."""

    uris: tuple[str, ...]
    space: SearchSpace
    """Of all artifacts together: every step, length and flavour that any of them names."""
    records: tuple[ProbeRecord, ...]
    programs: dict[StepSetting, Program]
    items: dict[str, Items]
    """By stage, in the run's order; empty where no space named data."""
    price_lists: tuple[tuple[str, str], ...] = ()
    """The sweeps' own price lists: where each is kept, and its text."""
    notes: tuple[str, ...] = ()
    """What to mind of the artifacts, in whole sentences: what is missing, and in what they differ."""


def gather(artifacts: Sequence[Artifact]) -> Findings:
    """Return what the artifacts hold together.

    Raises:
        ArtifactError: there is none, one cannot be read, or they do not belong together.
        SpaceError: the space of one cannot be read.
    """
    if not artifacts:
        raise ArtifactError("expected at least one artifact folder; none came.")
    parts = [_part(artifact) for artifact in artifacts]
    check_together(parts)
    programs: dict[StepSetting, Program] = {}
    for artifact in artifacts:
        programs |= _programs(artifact)
    prices = {f"{artifact.uri}/{PRICES}": artifact.prices_text() for artifact in artifacts}
    return Findings(
        uris=tuple(part.uri for part in parts),
        space=_union([part.space for part in parts]),
        records=_distinct([record for artifact in artifacts for record in artifact.records()]),
        programs=programs,
        items=dict(next((part.items for part in parts if part.items), {})),
        price_lists=tuple((name, text) for name, text in prices.items() if text is not None),
        notes=(
            *differences(parts),
            *(note for artifact, part in zip(artifacts, parts, strict=True) for note in _gaps(artifact, part.space)),
        ),
    )


def _part(artifact: Artifact) -> Part:
    table = artifact.items_table()
    return Part(
        uri=artifact.uri,
        space=parse_space(artifact.space_text(), f"{artifact.uri}/{SPACE}"),
        items={} if table is None else read_items_table(table, f"{artifact.uri}/{ITEMS}"),
    )


def _gaps(artifact: Artifact, space: SearchSpace) -> tuple[str, ...]:
    """Say what a sweep that did not finish, or lost a file, leaves out of the answer."""
    status = artifact.sweep_status()
    if status is None:
        return ()  # no sweep of one's own: a table of measurements, or an older artifact
    notes: list[str] = []
    if missing := status.missing(len(artifact.records())):
        stand_in = "" if space.mode is Mode.GENERATE else ", and forecasts stand for them where there are any"
        notes.append(
            f"The sweep of {artifact.uri} has not finished: up to {missing} of its {status.probes_at_most} probes are "
            f"missing{stand_in}. Go on with: {status.resume}"
        )
    if space.mode is Mode.TRAIN and not artifact.has(PROGRAMS):
        notes.append(
            f"{artifact.uri}: {PROGRAMS} is missing, so no forecast stands in where nothing was probed, and times rest "
            f"on probes alone. Make it again with: {status.resume}"
        )
    return tuple(notes)


def _programs(artifact: Artifact) -> dict[StepSetting, Program]:
    table = artifact.programs_table()
    if table is None:
        return {}
    from raysweep.memory.table import programs_of

    return {program.step: program for program in programs_of(table)}


def _union(spaces: Sequence[SearchSpace]) -> SearchSpace:
    flavours: dict[str, FlavourChoice] = {}
    for space in spaces:
        for choice in space.flavours:
            flavours.setdefault(choice.name, choice)
    return dataclasses.replace(
        spaces[0],
        steps=tuple(dict.fromkeys(step for space in spaces for step in space.steps)),
        searched=tuple(dict.fromkeys(name for space in spaces for name in space.searched)),
        lengths=tuple(sorted({length for space in spaces for length in space.lengths})),
        flavours=tuple(flavours.values()),
        data=next((space.data for space in spaces if space.data), None),
    )


def _distinct(records: Sequence[ProbeRecord]) -> tuple[ProbeRecord, ...]:
    """Leave out a probe that several artifacts hold, such as a copy and its original."""
    found = {(r.sweep_id, r.session_id, r.probe_id, r.started_at): r for r in records}
    return tuple(found.values())


def is_training(record: ProbeRecord) -> bool:
    """Whether the record is of training steps rather than of a generation."""
    return record.mode is Mode.TRAIN
