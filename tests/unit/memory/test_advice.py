"""What would save a run: every suggestion was itself forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import GB, MIB, card, program

from cost.lengths import OverLength
from cost.verdict import Verdict
from raysweep.memory import advice as advice_module
from raysweep.memory.advice import MOST_OF_A_KIND, Advice, advise
from raysweep.memory.changes import ChangeKind
from raysweep.memory.data_run import DataRun, DataStage
from raysweep.setting import AllocatorSetting, Checkpointing, StepSetting

PLAIN = AllocatorSetting()
MARGIN = 0.05
TOKENS = np.array([400, 900, 500, 1100, 300, 1400, 700, 1250, 650, 1450, 980, 200], np.int64)
SMALL = card("lab/small", 3600 * MIB)
LARGE = card("lab/large", 80 * GB)


def _run(tokens: np.ndarray = TOKENS, allocator: AllocatorSetting = PLAIN, step: StepSetting | None = None) -> DataRun:
    return DataRun(program(step=step), [DataStage(name="mine", tokens=tokens)], allocator)


def _advice(over_length: OverLength = OverLength.TRUNCATE) -> tuple[Advice, ...]:
    found, complete = advise(_run(), [SMALL, LARGE], {}, margin_share=MARGIN, over_length=over_length)
    assert complete
    return found


def _of(kind: ChangeKind, found: tuple[Advice, ...]) -> list[Advice]:
    return [one for one in found if one.kind is kind]


def test_the_run_needs_help() -> None:
    assert _run().fit(SMALL, margin_share=MARGIN).verdict is not Verdict.FITS


def test_a_card_that_takes_the_run_gets_no_advice() -> None:
    assert {one.flavour for one in _advice()} == {"lab/small"}


def test_suggestions_come_in_the_order_in_which_they_are_cheapest() -> None:
    kinds = [one.kind for one in _advice() if one.helps]
    assert kinds == sorted(kinds, key=list(ChangeKind).index)
    assert {ChangeKind.ALLOCATOR, ChangeKind.ORDER, ChangeKind.LIMIT} <= set(kinds)


def test_of_a_kind_only_a_few_are_kept() -> None:
    for kind in ChangeKind:
        assert len([one for one in _of(kind, _advice()) if one.helps]) <= MOST_OF_A_KIND


def test_expandable_segments_are_as_forecast_directly() -> None:
    (found,) = (one for one in _of(ChangeKind.ALLOCATOR, _advice()) if "expandable_segments" in one.change)
    fit = _run(allocator=AllocatorSetting(expandable_segments=True)).fit(SMALL, margin_share=MARGIN)
    assert (found.verdict, found.headroom_bytes, found.retries) == (fit.verdict, fit.headroom_bytes, fit.retries)
    assert found.change == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_the_order_is_as_forecast_directly() -> None:
    found = next(one for one in _of(ChangeKind.ORDER, _advice()) if "longest first" in one.change)
    fit = _run(np.sort(TOKENS)[::-1].copy()).fit(SMALL, margin_share=MARGIN)
    assert (found.verdict, found.headroom_bytes) == (fit.verdict, fit.headroom_bytes)
    assert "order" in found.consequence


def test_the_limit_fits_and_the_next_one_does_not() -> None:
    (found,) = (one for one in _of(ChangeKind.LIMIT, _advice()) if "expandable" not in one.change)
    limit = found.limit_tokens
    assert limit is not None
    assert found.verdict is Verdict.FITS
    assert _run(np.minimum(TOKENS, limit)).fit(SMALL, margin_share=MARGIN).verdict is Verdict.FITS
    assert _run(np.minimum(TOKENS, limit + 64)).fit(SMALL, margin_share=MARGIN).verdict is not Verdict.FITS
    lost = np.maximum(TOKENS - limit, 0).sum() / TOKENS.sum()
    assert found.lost_token_share == pytest.approx(lost)
    assert found.changed_item_share == pytest.approx((limit < TOKENS).mean())


@pytest.mark.parametrize(("over", "verb"), [(OverLength.DROP, "leave out"), (OverLength.SPLIT, "split")])
def test_a_limit_does_with_longer_items_what_the_run_does(over: OverLength, verb: str) -> None:
    found = _of(ChangeKind.LIMIT, _advice(over))[0]
    assert found.change.startswith(verb)
    limit = found.limit_tokens
    assert limit is not None
    lost = TOKENS[limit < TOKENS].sum() / TOKENS.sum() if over is OverLength.DROP else 0.0
    assert found.lost_token_share == pytest.approx(lost)


def test_another_step_of_the_space_is_forecast_over_the_same_data() -> None:
    lean = StepSetting(accumulation=2, checkpointing=Checkpointing.CPU)
    other = DataRun(program(((2, 4096, MIB / 4),), step=lean), [DataStage(name="mine", tokens=TOKENS)], PLAIN)
    found, _ = advise(_run(), [SMALL], {lean: other}, margin_share=MARGIN)
    (step,) = _of(ChangeKind.STEP, found)
    assert (step.change, step.step, step.verdict) == ("checkpointing: cpu", lean, Verdict.FITS)
    assert step.frees_most
    assert step.headroom_bytes == other.fit(SMALL, margin_share=MARGIN).headroom_bytes


def test_one_change_frees_most() -> None:
    most = [one for one in _advice() if one.frees_most]
    assert len(most) == 1
    assert most[0].freed_bytes == max(one.freed_bytes or 0 for one in _advice() if one.kind is not ChangeKind.LIMIT)


def test_padding_is_priced_in_tokens() -> None:
    paddings = _of(ChangeKind.PADDING, _advice())
    for one in paddings:
        multiple = int(one.change.split()[-1])
        padded = (-(-TOKENS // multiple) * multiple).sum()
        assert one.added_token_share == pytest.approx(padded / TOKENS.sum() - 1)


def test_nothing_is_suggested_that_the_run_has_already() -> None:
    expanding = AllocatorSetting(expandable_segments=True)
    found, _ = advise(_run(allocator=expanding), [replace(SMALL, memory_bytes=2200 * MIB)], {}, margin_share=MARGIN)
    assert _of(ChangeKind.ALLOCATOR, found) == []
    assert all("with PYTORCH" not in one.change for one in found)


def test_a_model_that_does_not_load_is_helped_by_nothing() -> None:
    found, _ = advise(_run(), [card("lab/tiny", 500 * MIB)], {}, margin_share=MARGIN)
    assert [one for one in found if one.helps] == []


def test_a_run_too_long_to_try_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "EVENTS_FOR_ADVICE", 1)
    found, complete = advise(_run(), [SMALL], {}, margin_share=MARGIN)
    assert not complete
    assert len(found) <= advice_module.CHANGES_AT_ONCE
