"""A table of trainings and generations on a card that is capped to stand for a smaller one.

Scaled down from the table of an A100 in ``artifacts/reference``: two ranks, a second copy of the adapter on the device,
lengths of which the longest runs out of memory, and generation in fp32 with and without an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from gpu_card import compute_capability, need_a_clean_card, need_free, need_what_is_forecast
from gpu_models import llama
from gpu_probes import agree, held_against_forecast, probed, requested_peak_bytes

from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace
from raysweep.records import Measurement, Mode, ProbeRecord, ProbeState
from raysweep.search.runner import ProbeRequest
from raysweep.setting import AdapterSetting, Checkpointing, Loss, StepSetting, Weights

pytestmark = pytest.mark.gpu

CARD = "lab/capped"
CARD_BYTES = 4_000_000_000
OUTSIDE_BYTES = 500_000_000
CAPACITY_BYTES = CARD_BYTES - OUTSIDE_BYTES
QUICK = Pace(measured_seconds=0)

RANKS = (16, 256)
FITTING_TOKENS, OVERFLOWING_TOKENS = (512, 2048), 8192
"""Without checkpointing and with all logits a token takes some 800 KB: 3 GB at most, and 7 GB."""
COPIED_RANK, COPIED_TOKENS = RANKS[1], FITTING_TOKENS[0]
PROMPT_TOKENS, NEW_TOKENS = 1023, 16


def training(rank: int, resident_copies: int = 1) -> StepSetting:
    adapter = AdapterSetting(rank=rank, alpha=2 * rank, dropout=0.05, resident_copies=resident_copies)
    return StepSetting(adapter=adapter, checkpointing=Checkpointing.NONE, loss=Loss.FULL)


def generation(rank: int) -> StepSetting:
    return StepSetting(weights=Weights.FP32, adapter=AdapterSetting(rank=rank, alpha=2 * rank))


def adapter_bytes(rank: int) -> int:
    """Of the adapter in fp32: two matrices at each linear layer, rank times its inputs and its outputs."""
    config = llama()
    hidden, inner = config.hidden_size, config.intermediate_size
    grouped = hidden * config.num_key_value_heads // config.num_attention_heads
    sides = 2 * (hidden + hidden) + 2 * (hidden + grouped) + 3 * (hidden + inner)
    return config.num_hidden_layers * sides * rank * 4


@pytest.fixture(scope="module")
def runner() -> Iterator[DeviceRunner]:
    need_free(CARD_BYTES + 500_000_000)
    need_a_clean_card()
    runner = DeviceRunner(llama(), memory_cap_bytes=CARD_BYTES, outside_allocator_bytes=OUTSIDE_BYTES, pace=QUICK)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def trainings(runner: DeviceRunner) -> dict[tuple[int, int], ProbeRecord]:
    """By rank and length."""
    return {
        (rank, length): probed(
            runner, ProbeRequest(probe_id="p", flavour=CARD, step=training(rank), length_tokens=length)
        )
        for rank in RANKS
        for length in (*FITTING_TOKENS, OVERFLOWING_TOKENS)
    }


def seen(record: ProbeRecord) -> Measurement:
    assert record.measurement is not None, record
    return record.measurement


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("length_tokens", FITTING_TOKENS)
def test_what_fits_the_smaller_card_trains(
    trainings: dict[tuple[int, int], ProbeRecord], rank: int, length_tokens: int
) -> None:
    record = trainings[rank, length_tokens]
    assert record.state is ProbeState.COMPLETED, record
    assert record.memory_cap_bytes == CARD_BYTES
    assert seen(record).peak_reserved_bytes <= CAPACITY_BYTES


@pytest.mark.parametrize("rank", RANKS)
def test_the_overflow_is_pruned_after_the_allocator_has_tried_again(
    trainings: dict[tuple[int, int], ProbeRecord], rank: int
) -> None:
    record = trainings[rank, OVERFLOWING_TOKENS]
    assert (record.state, record.reason) == (ProbeState.PRUNED, "oom"), record
    assert record.prune is not None
    assert record.prune.requested_bytes is not None
    assert seen(record).allocation_retries >= 1
    assert seen(record).peak_reserved_bytes <= CAPACITY_BYTES


def test_the_table_ends_and_peaks_as_forecast(trainings: dict[tuple[int, int], ProbeRecord]) -> None:
    need_what_is_forecast()
    found = held_against_forecast(list(trainings.values()), llama(), {CARD: OUTSIDE_BYTES})
    assert (len(found.peaks), len(found.outcomes), found.skipped) == (4, 2, ())
    agree(found)


@pytest.fixture(scope="module")
def copies(runner: DeviceRunner, trainings: dict[tuple[int, int], ProbeRecord]) -> dict[int, tuple[Measurement, int]]:
    """By the number of resident copies: what a probe of the larger rank saw, and the most that tensors asked for."""
    assert trainings  # run before: both probes then find the process with its kernels loaded
    found = {}
    for resident_copies in (1, 0):
        step = training(COPIED_RANK, resident_copies)
        request = ProbeRequest(probe_id="p", flavour=CARD, step=step, length_tokens=COPIED_TOKENS)
        found[resident_copies] = seen(probed(runner, request)), requested_peak_bytes()
    return found


def test_a_resident_copy_is_one_more_adapter_on_the_device(copies: dict[int, tuple[Measurement, int]]) -> None:
    (copied, copied_requested_bytes), (alone, alone_requested_bytes) = copies[1], copies[0]
    assert copied.loaded_bytes is not None and alone.loaded_bytes is not None
    assert copied.loaded_bytes - alone.loaded_bytes == pytest.approx(adapter_bytes(COPIED_RANK), rel=0.01)
    assert copied_requested_bytes - alone_requested_bytes == adapter_bytes(COPIED_RANK)


def test_a_resident_copy_raises_the_allocated_peak_as_in_some_forecast(
    copies: dict[int, tuple[Measurement, int]],
) -> None:
    """The blocks of all that is alive at the peak exceed what was asked for, in each of the two probes differently."""
    need_what_is_forecast()
    copied, alone = (peaks_of_any_order(training(COPIED_RANK, number), COPIED_TOKENS) for number in (1, 0))
    more_bytes = copies[1][0].peak_allocated_bytes - copies[0][0].peak_allocated_bytes
    assert min(copied) - max(alone) <= more_bytes <= max(copied) - min(alone)


def peaks_of_any_order(step: StepSetting, length_tokens: int) -> set[int]:
    """Forecast allocated peaks over the orders in which the device may place segments."""
    from raysweep.memory.conditions import Conditions, cublas_workspace_bytes
    from raysweep.memory.heap import Placement
    from raysweep.memory.replay import Replayer
    from raysweep.trace.build import model_program

    replayer = Replayer(model_program("small", llama(), step, [length_tokens]))
    orders = [(Placement.DESCENDING, 1), (Placement.ASCENDING, 1), *((Placement.RANDOM, seed) for seed in range(1, 51))]
    return {
        replayer.steady(
            length_tokens,
            accumulation=step.accumulation,
            conditions=Conditions(
                capacity_bytes=CAPACITY_BYTES,
                workspace_bytes=cublas_workspace_bytes(compute_capability()),
                placement=placement,
                seed=seed,
            ),
        ).peak_allocated_bytes
        for placement, seed in orders
    }


def test_generation_with_an_adapter_takes_that_adapter_more(runner: DeviceRunner) -> None:
    rank = RANKS[1]
    request = ProbeRequest(
        probe_id="p",
        flavour=CARD,
        step=generation(0),
        mode=Mode.GENERATE,
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
    )
    bare, adapted = probed(runner, request), probed(runner, replace(request, step=generation(rank)))
    assert (bare.state, adapted.state) == (ProbeState.COMPLETED, ProbeState.COMPLETED), (bare, adapted)
    assert seen(bare).tokens_per_second is not None and seen(adapted).tokens_per_second is not None
    bare_bytes, adapted_bytes = seen(bare).loaded_bytes, seen(adapted).loaded_bytes
    assert bare_bytes is not None and adapted_bytes is not None
    assert adapted_bytes - bare_bytes == pytest.approx(adapter_bytes(rank), rel=0.01)
    assert seen(adapted).peak_allocated_bytes >= seen(bare).peak_allocated_bytes + adapter_bytes(rank) * 0.9
    assert seen(adapted).peak_reserved_bytes <= CAPACITY_BYTES
