"""What one or several artifacts of the same model hold together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.data.items import Items
from raysweep.decision.items import read_items_table
from raysweep.errors import ArtifactError
from raysweep.memory.program import Program
from raysweep.records import Mode, ProbeRecord
from raysweep.setting import StepSetting
from raysweep.space import FlavourChoice, SearchSpace, parse_space
from raysweep.store import SPACE, Artifact


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


def gather(artifacts: Sequence[Artifact]) -> Findings:
    """Return what the artifacts hold together.

    Raises:
        ArtifactError: there is none, one cannot be read, or they do not belong together.
        SpaceError: the space of one cannot be read.
    """
    if not artifacts:
        raise ArtifactError("expected at least one artifact folder; none came.")
    spaces = [parse_space(artifact.space_text(), f"{artifact.uri}/{SPACE}") for artifact in artifacts]
    for artifact, space in zip(artifacts[1:], spaces[1:], strict=True):
        _check_together(artifacts[0].uri, spaces[0], artifact.uri, space)
    programs: dict[StepSetting, Program] = {}
    items: dict[str, Items] = {}
    for artifact in artifacts:
        programs |= _programs(artifact)
        table = artifact.items_table()
        items = items or (read_items_table(table, f"{artifact.uri}/items.parquet") if table is not None else {})
    return Findings(
        uris=tuple(artifact.uri for artifact in artifacts),
        space=_union(spaces),
        records=_distinct([record for artifact in artifacts for record in artifact.records()]),
        programs=programs,
        items=items,
    )


def _programs(artifact: Artifact) -> dict[StepSetting, Program]:
    table = artifact.programs_table()
    if table is None:
        return {}
    from raysweep.memory.table import programs_of

    return {program.step: program for program in programs_of(table)}


def _check_together(first: str, one: SearchSpace, second: str, other: SearchSpace) -> None:
    pairs = {
        "model": (one.model, other.model),
        "mode": (one.mode, other.mode),
        "prompt_tokens": (one.prompt_tokens, other.prompt_tokens),
        "new_tokens": (one.new_tokens, other.new_tokens),
        "allocator": (one.allocator, other.allocator),
    }
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise ArtifactError(
                f"{second}: expected an artifact of the same {name} as {first}, {ours}; {theirs} came. "
                "Choose from artifacts of one model and mode."
            )


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
