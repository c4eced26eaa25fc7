"""A sweep with Ray over three cards that this one stands for: what is pruned, what is free again, what it decides."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from click.testing import CliRunner
from gpu_card import catalogue_id, need_a_clean_card, need_a_known_card, need_free, need_what_is_forecast
from gpu_models import llama
from gpu_probes import agree, held_against_forecast, probed

from raysweep.cli.app import app
from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import ProbeRecord, ProbeState
from raysweep.search.runner import ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting

pytest.importorskip("ray")
pytest.importorskip("optuna")

from gpu_sweep import Card, Swept, sweep, write_space  # not before it is known that Ray is there

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.decision.model import Decision

# The sweep itself runs within the first test: three processes start one after another.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

STEP = "{adapter: {rank: 16, alpha: 32}, checkpointing: {search: [gpu, none]}, loss: chunked, loss_chunk_tokens: 1024}"
NONE = StepSetting(
    adapter=AdapterSetting(rank=16, alpha=32),
    checkpointing=Checkpointing.NONE,
    loss=Loss.CHUNKED,
    loss_chunk_tokens=1024,
)
NAMES = ("lab/small", "lab/medium", "lab/large")
MOST_BYTES = 12_000_000_000
"""Of the largest emulated card: enough for steps of 0.1 s, little enough for any."""
OUTSIDE_BYTES = 300_000_000
FILLED_SHARE = 0.6
"""Of a card's capacity that the longest length to fit allocates; a card of twice the memory then fills the smaller one
by a fifth too much. The reserved peak is at most a quarter above it."""
LONG_ITEM = 12
"""Index of the one item that the smallest card cannot hold without checkpointing."""
SLACK_BYTES = 128 * 2**20
"""What libraries may load for good with a first step of another kind."""


def card_sizes(free_bytes: int) -> list[int]:
    """Return the memory of three cards, each twice as large as the one before, within what is free."""
    largest = min(MOST_BYTES, int(0.9 * free_bytes))
    return [largest // 4, largest // 2, largest]


def filling_lengths(sizes: Sequence[int], bytes_by_length: dict[int, int]) -> list[int]:
    """Return the length that fills each card, from a line through two measured peaks without checkpointing."""
    (short, at_short), (long, at_long) = sorted(bytes_by_length.items())
    slope = (at_long - at_short) / (long - short)
    wanted = [FILLED_SHARE * (size - OUTSIDE_BYTES) for size in sizes]
    return [int(short + (size - at_short) / slope) // 64 * 64 for size in wanted]


def sample_of(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return twenty items, each of its own length, of which one fills the middle card."""
    items = [200 + lengths[0] * (7 * place % 20) // 40 for place in range(20)]
    items[LONG_ITEM] = lengths[1]
    return tuple(items)


def cards_of(sizes: Sequence[int], gpu_id: str | None) -> list[Card]:
    """Return the cards: as fast as this one, and the larger the dearer."""
    return [
        Card(
            name=name,
            memory_bytes=size,
            outside_allocator_bytes=OUTSIDE_BYTES,
            price_usd_per_hour=price,
            gpu_id=gpu_id,
        )
        for name, size, price in zip(NAMES, sizes, (1.0, 2.0, 4.0), strict=True)
    ]


def measured_bytes(lengths: Sequence[int]) -> dict[int, int]:
    """Return the allocated peak of each length without checkpointing, on the whole card."""
    runner = DeviceRunner(llama(), pace=Pace(measured_seconds=0))
    found: dict[int, int] = {}
    for length in lengths:
        record = probed(runner, ProbeRequest(probe_id="p", flavour="lab/this-card", step=NONE, length_tokens=length))
        assert record.state is ProbeState.COMPLETED and record.measurement is not None, record
        found[length] = record.measurement.peak_allocated_bytes
    runner.close()
    return found


@pytest.fixture(scope="module")
def sizes() -> list[int]:
    """Memory of the emulated cards, in bytes."""
    need_free(11_000_000_000)
    need_a_clean_card()
    return card_sizes(torch.cuda.mem_get_info()[0])


@pytest.fixture(scope="module")
def lengths(sizes: list[int]) -> list[int]:
    """The longest that each card holds without checkpointing, by the card's order."""
    return filling_lengths(sizes, measured_bytes((2048, 4096)))


@pytest.fixture(scope="module")
def swept(sizes: list[int], lengths: list[int], tmp_path_factory: pytest.TempPathFactory, ray_folder: Path) -> Swept:
    folder = tmp_path_factory.mktemp("emulated")
    items = sample_of(lengths)
    text = write_space(folder, cards_of(sizes, catalogue_id()), step=STEP, lengths=lengths, item_tokens=items)
    return sweep(folder, text, item_tokens=items)


@pytest.fixture(scope="module")
def decision(swept: Swept) -> Decision:
    """What to rent, from the artifact alone."""
    pytest.importorskip("numba")
    from cost.catalogue import Catalogue
    from raysweep.decision.decide import decide
    from raysweep.decision.findings import gather

    return decide(gather([swept.artifact]), Catalogue.load())


def kind_of(record: ProbeRecord) -> int | str:
    return "items" if record.item_tokens else record.length_tokens or 0


def steps_seconds(record: ProbeRecord) -> float:
    assert record.measurement is not None
    return sum(record.measurement.first_step_seconds) + sum(record.measurement.step_seconds)


def test_every_probe_of_the_grid_ends_on_its_own_card(swept: Swept) -> None:
    assert swept.summary.stopped == {}
    assert len(swept.artifact.records()) == 3 * 2 * (3 + 1)
    for name in NAMES:
        assert len(swept.records_of(name)) == len(swept.notes[name]) == 8
        assert len({record.session_id for record in swept.records_of(name)}) == 1


def test_exactly_what_overflows_a_card_is_pruned(swept: Swept, lengths: list[int]) -> None:
    _, middle, longest = lengths
    expected = {
        ("lab/small", Checkpointing.NONE, middle),
        ("lab/small", Checkpointing.NONE, longest),
        ("lab/small", Checkpointing.NONE, "items"),
        ("lab/medium", Checkpointing.NONE, longest),
    }
    records = swept.artifact.records()
    pruned = {(r.flavour, r.step.checkpointing, kind_of(r)) for r in records if r.state is ProbeState.PRUNED}
    assert pruned == expected
    assert all(r.state is ProbeState.COMPLETED or r.reason == "oom" for r in records), records


def test_a_data_probe_dies_at_its_one_long_item(swept: Swept) -> None:
    (died,) = [r for r in swept.artifact.records() if r.item_tokens and r.state is ProbeState.PRUNED]
    assert died.prune is not None
    assert died.prune.item == LONG_ITEM


def test_memory_is_free_again_after_each_prune(swept: Swept) -> None:
    looked_at = 0
    for name in NAMES:
        free = {note.probe_id: note.free_bytes or 0 for note in swept.notes[name]}
        before_bytes = 0
        for record in swept.records_of(name):
            if record.state is ProbeState.PRUNED:
                looked_at += 1
                assert free[record.probe_id] >= before_bytes - SLACK_BYTES > 0, record
            else:
                before_bytes = free[record.probe_id]
    assert looked_at == 4


def test_once_loaded_a_probe_costs_less_than_a_second_beside_its_steps(swept: Swept) -> None:
    """The middle of all probes: one alone may meet a busy machine."""
    within, between = [], []
    for name in NAMES:
        records = swept.records_of(name)
        within += [
            record.probe_seconds - (record.load_seconds or 0.0) - steps_seconds(record)
            for record in records
            if record.state is ProbeState.COMPLETED
        ]
        between += [
            (later.started_at - earlier.started_at).total_seconds() - earlier.probe_seconds
            for earlier, later in itertools.pairwise(records)
        ]
    assert statistics.median(within) + statistics.median(between) < 1.0


def test_a_session_loads_its_model_once(swept: Swept) -> None:
    for name in NAMES:
        first, *rest = swept.records_of(name)
        assert first.load_seconds is not None
        assert [record.load_seconds for record in rest] == [None] * len(rest)


def test_every_probe_ends_as_its_forecast(swept: Swept) -> None:
    need_what_is_forecast()
    found = held_against_forecast(swept.artifact.records(), llama(), dict.fromkeys(NAMES, OUTSIDE_BYTES))
    assert (len(found.peaks), len(found.outcomes), found.skipped) == (20, 4, ())
    agree(found)


def test_without_checkpointing_each_card_is_told_its_own_length(decision: Decision, lengths: list[int]) -> None:
    longest = {one.flavour: one.length_tokens for one in decision.longest if one.step == NONE}
    assert longest == dict(zip(NAMES, lengths, strict=True))


def test_the_cheapest_card_is_chosen_with_the_checkpointing_that_fits_it(
    decision: Decision, lengths: list[int]
) -> None:
    need_a_known_card()
    assert decision.chosen is not None
    assert decision.chosen.flavour.name == "lab/small"
    assert decision.chosen.step.checkpointing is Checkpointing.GPU
    assert decision.chosen.candidate.length_tokens == lengths[2]


def test_the_commands_choose_and_project_from_the_artifact(
    swept: Swept, decision: Decision, lengths: list[int]
) -> None:
    need_a_known_card()
    said = {}
    for command in ("choose", "project"):
        result = CliRunner().invoke(app, [command, swept.artifact.uri, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        said[command] = json.loads(result.stdout)
    assert said["choose"]["chosen"]["flavour"] == "lab/small"
    assert decision.chosen is not None
    projection = decision.chosen.projection
    assert projection is not None and projection.cost is not None
    assert projection.evidence == "measured"
    assert projection.tokens == sum(sample_of(lengths))
    # A dollar an hour, billed by the second.
    assert projection.cost.expected == pytest.approx(projection.hours.expected, abs=1 / 3600)
