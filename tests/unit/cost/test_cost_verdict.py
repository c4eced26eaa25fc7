import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.errors import CostError
from cost.verdict import Fit, Verdict, judge

GB = 10**9


def judged(reserved_bytes: int, *, runs: bool = True, retries: int = 0) -> Fit:
    return judge(
        memory_bytes=100 * GB,
        margin_share=0.08,
        outside_bytes=2 * GB,
        peak_reserved_bytes=reserved_bytes,
        runs=runs,
        retries=retries,
    )


def test_it_fits_up_to_memory_less_margin_less_outside():
    assert judged(90 * GB) == Fit(verdict=Verdict.FITS, headroom_bytes=0)


def test_one_byte_inside_the_margin_is_tight_and_short_by_one_byte():
    assert judged(90 * GB + 1) == Fit(verdict=Verdict.TIGHT, headroom_bytes=-1)


def test_a_retry_makes_it_tight_however_much_is_free():
    assert judged(10 * GB, retries=1).verdict is Verdict.TIGHT


def test_a_failed_allocation_is_no_whatever_the_peak():
    assert judged(10 * GB, runs=False).verdict is Verdict.NO


@pytest.mark.parametrize("margin_share", [1.2, 1.0, -0.1, float("nan")])
def test_a_margin_that_is_no_share_is_refused(margin_share):
    with pytest.raises(CostError, match="margin"):
        judge(memory_bytes=GB, margin_share=margin_share, outside_bytes=0, peak_reserved_bytes=0, runs=True, retries=0)


def test_negative_sizes_are_refused_by_name():
    with pytest.raises(CostError, match="outside_bytes"):
        judge(memory_bytes=GB, margin_share=0.1, outside_bytes=-1, peak_reserved_bytes=0, runs=True, retries=0)


@given(
    reserved=st.integers(0, 200 * GB),
    margin=st.floats(0, 0.99),
    more=st.floats(0, 0.99),
    outside=st.integers(0, 10 * GB),
)
def test_a_larger_margin_never_improves_a_verdict(reserved, margin, more, outside):
    def at(share: float) -> Fit:
        return judge(
            memory_bytes=100 * GB,
            margin_share=share,
            outside_bytes=outside,
            peak_reserved_bytes=reserved,
            runs=True,
            retries=0,
        )

    small, large = at(min(margin, more)), at(max(margin, more))
    assert large.headroom_bytes <= small.headroom_bytes
    assert not (large.verdict is Verdict.FITS and small.verdict is Verdict.TIGHT)
