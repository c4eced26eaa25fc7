"""One sweep on two GPUs: two sessions at once, each on a GPU of its own that stands for a flavour of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysweep.records import ProbeState

pytest.importorskip("ray")
pytest.importorskip("optuna")

from gpu_sweep import Card, Swept, sweep, write_space  # not before it is known that Ray is there

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

STEP = "{adapter: {rank: 16, alpha: 32}, checkpointing: none, loss: full}"
LENGTHS_TOKENS = (512, 2048, 8192)
"""Without checkpointing and with all logits a token takes some 800 KB: 3 GB at most, and 7 GB."""
CARD_BYTES = {"lab/one": 4_000_000_000, "lab/two": 4_500_000_000}
OUTSIDE_BYTES = 500_000_000


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, ray_folder: Path) -> Swept:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; {torch.cuda.device_count()} is here")
    for index in range(2):
        if torch.cuda.mem_get_info(index)[0] < 5_000_000_000:
            pytest.skip(f"needs 5 GB of free device memory on GPU {index}")
    folder = tmp_path_factory.mktemp("two")
    cards = [
        Card(name=name, memory_bytes=size, outside_allocator_bytes=OUTSIDE_BYTES, price_usd_per_hour=1.0, gpu_id=None)
        for name, size in CARD_BYTES.items()
    ]
    return sweep(folder, write_space(folder, cards, step=STEP, lengths=LENGTHS_TOKENS), at_once=True)


def test_each_flavour_holds_a_gpu_of_its_own(swept: Swept) -> None:
    held = {name: {note.gpu_uuid for note in notes} for name, notes in swept.notes.items()}
    assert [len(uuids) for uuids in held.values()] == [1, 1], held
    assert held["lab/one"] != held["lab/two"]


def test_both_sessions_hold_their_gpus_at_once(swept: Swept) -> None:
    assert all(note.met_the_others for notes in swept.notes.values() for note in notes)
    (one,), (two,) = ({record.session_id for record in swept.records_of(name)} for name in CARD_BYTES)
    assert one != two


def test_each_gpu_stands_for_its_own_flavour(swept: Swept) -> None:
    for name, size_bytes in CARD_BYTES.items():
        records = swept.records_of(name)
        assert {record.memory_cap_bytes for record in records} == {size_bytes}
        assert {record.probe_id for record in records} == {note.probe_id for note in swept.notes[name]}
        for record in records:
            assert record.measurement is not None
            assert record.measurement.peak_reserved_bytes <= size_bytes - OUTSIDE_BYTES


def test_what_overflows_is_pruned_on_both(swept: Swept) -> None:
    assert swept.summary.stopped == {}
    for name in CARD_BYTES:
        states = {record.length_tokens: record.state for record in swept.records_of(name)}
        assert states == dict(
            zip(LENGTHS_TOKENS, (ProbeState.COMPLETED, ProbeState.COMPLETED, ProbeState.PRUNED), strict=True)
        )
