"""The longest length: it and every shorter one of the grid fit."""

from __future__ import annotations

import pytest
from handmade import GB, MIB, card, program
from hypothesis import given, settings
from hypothesis import strategies as st

from cost.verdict import Verdict
from raysweep.memory.forecast import Study, forecast
from raysweep.memory.longest import coarse_grid, longest_anywhere, longest_of_grid
from raysweep.setting import AllocatorSetting

PLAIN = AllocatorSetting()
GRID = tuple(range(64, 4097, 64))


def _study(**values: object) -> Study:
    return Study(program(**values), PLAIN)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(memory_bytes=st.integers(GB, 6 * GB), margin_share=st.sampled_from([0.0, 0.08, 0.3]))
def test_the_longest_of_a_grid_is_what_asking_for_every_length_says(memory_bytes: int, margin_share: float) -> None:
    study, one = _study(), card("lab/a", memory_bytes)
    (found,) = longest_of_grid(study, GRID, [one], margin_share=margin_share)
    verdicts = [study.fit(length, one, margin_share=margin_share).verdict for length in GRID]
    fitting = next((i for i, v in enumerate(verdicts) if v is not Verdict.FITS), len(GRID))
    running = next((i for i, v in enumerate(verdicts) if v is Verdict.NO), len(GRID))
    assert found.length_tokens == (GRID[fitting - 1] if fitting else None)
    assert found.tight_length_tokens == (GRID[running - 1] if running else None)


@settings(max_examples=25, deadline=None)
@given(memory_bytes=st.integers(GB, 6 * GB))
def test_without_lengths_the_longest_is_found_to_the_token(memory_bytes: int) -> None:
    study, one = _study(), card("lab/a", memory_bytes)
    (found,) = longest_anywhere(study, [one], margin_share=0.08)
    length = found.length_tokens
    if length is not None:
        assert study.fit(length, one, margin_share=0.08).verdict is Verdict.FITS
    following = 2 if length is None else length + 1
    if following <= 4096:
        assert study.fit(following, one, margin_share=0.08).verdict is not Verdict.FITS
        assert f"{following:,} tokens" in found.limited_by


def test_a_length_that_does_not_fit_ends_the_longest_even_where_longer_ones_fit() -> None:
    study = _study(pieces=((2, 1000, 4 * MIB), (1001, 4096, MIB / 2)))
    one = card("lab/a", 4 * GB)
    assert study.fit(960, one, margin_share=0.08).verdict is not Verdict.FITS
    assert study.fit(2048, one, margin_share=0.08).verdict is Verdict.FITS
    (found,) = longest_anywhere(study, [one], margin_share=0.08)
    assert found.length_tokens is not None
    assert found.length_tokens < 960


def test_the_longest_sequence_of_the_model_limits_a_large_card() -> None:
    (found,) = longest_anywhere(_study(), [card("lab/a", 80 * GB)], margin_share=0.08)
    assert (found.length_tokens, found.limited_by) == (4096, "the model's longest sequence")


def test_the_end_of_the_grid_limits_where_it_ends_before_the_model() -> None:
    (found,) = longest_of_grid(_study(), GRID[:4], [card("lab/a", 80 * GB)], margin_share=0.08)
    assert (found.length_tokens, found.limited_by) == (256, "the end of the grid")


def test_a_card_that_the_weights_overflow_has_no_longest_length() -> None:
    (found,) = longest_anywhere(_study(), [card("lab/a", GB)], margin_share=0.08)
    assert (found.length_tokens, found.tight_length_tokens) == (None, None)
    assert "weights alone" in found.limited_by


def test_all_cards_at_once_are_as_each_one_alone() -> None:
    cards = [card(f"lab/{size}", size * GB // 2) for size in range(2, 12)]
    cards.append(card("lab/ampere", 3 * GB, workspace_bytes=8 * MIB))
    together = longest_anywhere(_study(), cards, margin_share=0.08)
    assert together == tuple(longest_anywhere(_study(), [one], margin_share=0.08)[0] for one in cards)


def test_the_coarse_grid_holds_multiples_of_64_and_the_end() -> None:
    assert coarse_grid(program(pieces=((100, 300, MIB),))) == [128, 192, 256, 300]


@pytest.mark.parametrize("memory_gb", [2, 3, 4, 5])
def test_far_from_an_edge_one_replay_says_what_all_say(memory_gb: int) -> None:
    study, one = _study(), card("lab/a", memory_gb * GB)
    far = {length: study.far_verdict(length, one, margin_share=0.08) for length in GRID}
    assert None in far.values()
    assert len(set(far.values())) > 1
    for length, verdict in far.items():
        assert verdict in (None, study.fit(length, one, margin_share=0.08).verdict)


def test_a_rows_components_add_up_to_its_peak() -> None:
    made = program()
    found = forecast({made.step: made}, [512, 1024], [card("lab/a", 80 * GB)], margin_share=0.08, allocator=PLAIN)
    for row in found.rows:
        assert sum(row.components_bytes.values()) == row.peak_allocated_bytes
    assert found.rows[0].peak_allocated_bytes == (1024 + 512 + 16 + 32) * MIB


def test_a_forecast_says_on_which_cards_its_rows_own_peaks_hold() -> None:
    made = program()
    cards = [card("lab/a", 80 * GB), card("lab/b", 80 * GB, workspace_bytes=8 * MIB), card("lab/c", 40 * GB)]
    found = forecast({made.step: made}, [512], cards, margin_share=0.08, allocator=PLAIN)
    assert found.peaks_flavours == ("lab/a", "lab/c")
    assert forecast({made.step: made}, [512], [], margin_share=0.08, allocator=PLAIN).peaks_flavours == ()


def test_garbage_collection_keeps_a_verdict_within_the_cards_capacity() -> None:
    collecting = Study(program(), AllocatorSetting(garbage_collection_threshold=0.5))
    one = card("lab/a", 3 * GB)
    for length in (256, 1024, 2048):
        fit = collecting.fit(length, one, margin_share=0.0)
        assert fit.headroom_bytes >= 0 or fit.verdict is Verdict.NO
