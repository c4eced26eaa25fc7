"""A run over one's own data: both peaks, and the item at which it dies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import GB, MIB, card, program
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.verdict import Verdict
from raysweep.memory import data_run
from raysweep.memory.conditions import Conditions
from raysweep.memory.data_run import DataRun, DataStage
from raysweep.memory.program import Category
from raysweep.memory.replay import Pass, Replayer
from raysweep.setting import AllocatorSetting, StepSetting

PLAIN = AllocatorSetting()
LENGTHS = st.lists(st.integers(2, 2048), min_size=1, max_size=12)


def _stage(tokens: list[int], **values: object) -> DataStage:
    return DataStage(name="mine", tokens=np.array(tokens, np.int64), **values)  # type: ignore[arg-type]


def _run(tokens: list[int], *, step: StepSetting | None = None, **values: object) -> DataRun:
    return DataRun(program(step=step), [_stage(tokens, **values)], PLAIN)


def test_items_of_one_length_reach_the_steady_peaks() -> None:
    steady = Replayer(program()).steady(700, accumulation=2)
    peaks = _run([700] * 6).peaks()
    assert peaks.peak_allocated_bytes == steady.peak_allocated_bytes
    assert peaks.peak_reserved_bytes == steady.peak_reserved_bytes


def test_a_run_dies_at_its_first_item_that_is_too_long() -> None:
    # Weights, a gradient and the optimizer's state take 1,072 MiB; 1,500 tokens take as many MiB more.
    fit = _run([100, 300, 200, 1500, 900]).fit(card("lab/a", 2300 * MIB), margin_share=0.0)
    assert (fit.verdict, fit.fails_at_item, fit.fails_at_tokens, fit.fails_in) == (Verdict.NO, 3, 1500, "mine")
    assert fit.requested_bytes == 750 * MIB
    assert fit.retries > 0


def test_of_a_micro_batch_the_longest_item_is_named() -> None:
    step = StepSetting(micro_batch=2, accumulation=1)
    fit = _run([100, 300, 1500, 200, 900], step=step).fit(card("lab/a", 2300 * MIB), margin_share=0.0)
    assert (fit.fails_at_item, fit.fails_at_tokens) == (2, 1500)


def test_a_micro_batch_is_played_as_padded_where_its_items_differ() -> None:
    step = StepSetting(micro_batch=2, accumulation=1)
    # Padded, a token takes two MiB; in a micro-batch of items that are all as long, one.
    both = replace(program(step=step), padded_pieces=program(((2, 4096, 2 * MIB),)).pieces)
    peaks = [
        DataRun(both, [_stage(tokens)], PLAIN).peaks().peak_allocated_bytes
        for tokens in ([500, 500, 900, 900], [500, 900, 900, 500], [500, 500, 499, 500])
    ]
    # Weights, a gradient and the optimizer's state take 1,072 MiB, and cuBLAS nothing here.
    assert peaks == [(1072 + 900) * MIB, (1072 + 1800) * MIB, (1072 + 1000) * MIB]


def test_a_pass_says_of_each_micro_step_whether_it_is_padded() -> None:
    with pytest.raises(ValueError, match="padded or not of 2 micro-steps, found 1"):
        Pass(lengths=[3, 4], padded=[True])


def test_an_item_is_named_by_its_place_in_the_file() -> None:
    stage_order = np.array([3, 0, 1, 2])
    fit = _run([100, 300, 1500, 200], index=stage_order).fit(card("lab/a", 2300 * MIB), margin_share=0.0)
    assert (fit.fails_at_item, fit.fails_at_tokens) == (1, 1500)


def test_an_item_of_a_later_stage_is_counted_from_that_stages_beginning() -> None:
    stages = [_stage([100, 300]), DataStage(name="second", tokens=np.array([200, 1500]))]
    fit = DataRun(program(), stages, PLAIN).fit(card("lab/a", 2300 * MIB), margin_share=0.0)
    assert (fit.fails_in, fit.fails_at_item) == ("second", 1)


def test_a_model_that_does_not_load_dies_at_no_item() -> None:
    fit = _run([100]).fit(card("lab/a", 500 * MIB), margin_share=0.0)
    assert (fit.verdict, fit.fails_at_item, fit.fails_at_tokens) == (Verdict.NO, None, None)
    assert fit.fails_at is not None
    assert fit.fails_at.phase == "load"


def test_a_run_that_needs_its_cache_back_is_tight() -> None:
    # Growing items leave segments too small for the next ones: they can be given back, and must be.
    fit = _run([500, 600, 700, 800, 900]).fit(card("lab/a", 2600 * MIB), margin_share=0.0)
    assert fit.verdict is Verdict.TIGHT
    assert fit.retries > 0
    assert fit.headroom_bytes < 0


def test_the_margin_alone_makes_a_run_tight() -> None:
    run, one = _run([500, 500]), card("lab/a", 2 * GB)
    assert run.fit(one, margin_share=0.0).verdict is Verdict.FITS
    assert run.fit(one, margin_share=0.2).verdict is Verdict.TIGHT


@pytest.mark.parametrize("items", [1, 3, 5])
def test_a_last_accumulation_that_is_not_complete_still_steps(items: int) -> None:
    run = _run([400] * items, step=StepSetting(accumulation=4))
    replay = run.play(run.conditions(32 * MIB)[0])
    # The optimizer's state is there only once a step was taken; it is there at the peak where a micro-step follows.
    assert replay.components_bytes[Category.OPTIMIZER] == (32 * MIB if items > 4 else 0)


@settings(max_examples=30, deadline=None)
@given(tokens=LENGTHS, times=st.integers(1, 5), capacity=st.none() | st.integers(1600 * MIB, 4000 * MIB))
def test_epochs_that_repeat_are_counted_as_if_they_were_played(
    tokens: list[int], times: int, capacity: int | None
) -> None:
    replayer, conditions = Replayer(program()), Conditions(capacity_bytes=capacity)
    counted = replayer.run_passes([Pass(lengths=tokens, times=times)], accumulation=2, conditions=conditions)
    played = replayer.run_passes([Pass(lengths=tokens)] * times, accumulation=2, conditions=conditions)
    assert counted.peak_reserved_bytes == played.peak_reserved_bytes
    assert counted.peak_allocated_bytes == played.peak_allocated_bytes
    assert counted.runs == played.runs
    if played.runs:
        assert counted.retries == played.retries


def test_a_share_of_an_epoch_plays_its_beginning() -> None:
    one = card("lab/a", 2300 * MIB)
    assert _run([100, 300, 200, 1500], epochs=0.75).fit(one, margin_share=0.0).fails_at_item is None
    assert _run([100, 300, 200, 1500], epochs=0.8).fit(one, margin_share=0.0).fails_at_item == 3
    whole_and_half = _run([100, 300, 200, 400], epochs=2.9999999999)
    assert [(len(p.lengths), p.times) for _, p in whole_and_half._passes] == [(4, 3)]


@settings(max_examples=30, deadline=None)
@given(tokens=LENGTHS, limit=st.integers(1000 * MIB, 5000 * MIB))
def test_a_run_stays_within_what_it_reserves_and_not_within_less(tokens: list[int], limit: int) -> None:
    run = _run(tokens)
    reserved = run.play(run.conditions(32 * MIB)[0]).peak_reserved_bytes
    assert run.stays_within(limit, 32 * MIB, quick=True) == (reserved <= limit)


def test_of_very_long_data_the_beginning_and_the_longest_items_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_run, "MOST_MICRO_STEPS", 10)
    monkeypatch.setattr(data_run, "LONGEST_WINDOWS", 1)
    tokens = [100] * 40
    tokens[33] = 1500
    run = _run(tokens)
    peaks = run.peaks()
    assert (peaks.items, peaks.items_played) == (40, 12)
    fit = run.fit(card("lab/a", 2300 * MIB), margin_share=0.0)
    assert (fit.fails_at_item, fit.fails_at_tokens) == (33, 1500)


def test_a_long_run_far_from_every_edge_takes_one_replay_for_all_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_run, "EVENTS_UNDER_ALL_CONDITIONS", 0)
    run = _run([500] * 4)
    cards = [card("lab/a", 80 * GB), card("lab/b", 40 * GB, workspace_bytes=8 * MIB)]
    run.prepare(cards, margin_share=0.08)
    assert {run.fit(one, margin_share=0.08).verdict for one in cards} == {Verdict.FITS}
    assert run.events_played == run.events
