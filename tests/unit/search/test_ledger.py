from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysweep.search.ledger import Ledger
from raysweep.space import Budget


def ledger(budget: Budget, **before: float) -> Ledger:
    return Ledger(budget, started_at=0.0, first_probe_seconds=60.0, **before)


def test_without_a_budget_a_probe_may_take_any_time():
    books = ledger(Budget())
    books.open("s", "a", 5.0, 0.0)
    assert books.reserve("s", 10.0) == math.inf


def test_a_machine_costs_from_open_to_close_idle_or_not():
    books = ledger(Budget())
    books.open("s", "a", 3.6, 0.0)
    assert books.spent_usd(1000.0) == pytest.approx(1.0)
    books.close("s", 1000.0)
    assert books.spent_usd(9000.0) == pytest.approx(1.0)


def test_a_session_that_opens_again_is_counted_once():
    books = ledger(Budget())
    for now in (0.0, 500.0):
        books.open("s", "a", 3.6, now)
    assert books.spent_usd(1000.0) == pytest.approx(1.0)


def test_a_probe_that_could_pass_the_budget_is_refused():
    books = ledger(Budget(usd=0.05))  # 50 s at 3.60 USD an hour; a first probe is taken to need 60 s
    books.open("s", "a", 3.6, 0.0)
    assert books.reserve("s", 0.0) is None


def test_what_a_probe_took_is_what_the_next_is_expected_to_take():
    books = ledger(Budget(usd=0.1))
    books.open("s", "a", 3.6, 0.0)
    assert books.reserve("s", 0.0) is not None
    books.settle("s", 10.0)
    assert books.expected_seconds("a") == 10.0
    assert books.reserve("s", 80.0) is not None
    books.settle("s", 5.0)
    assert books.reserve("s", 90.0) is None


def test_money_set_aside_for_one_session_is_lacking_to_another():
    books = ledger(Budget(usd=0.15))
    for session in ("s", "t"):
        books.open(session, "a", 3.6, 0.0)
    assert books.reserve("s", 0.0) is not None
    assert books.reserve("t", 0.0) is None
    books.settle("s", 1.0)
    assert books.reserve("t", 1.0) is not None


def test_hours_bound_free_machines_too():
    books = ledger(Budget(hours=1.0))
    books.open("s", "a", 0.0, 0.0)
    assert books.reserve("s", 3600.0 - 61.0) is not None
    assert books.reserve("s", 3600.0 - 59.0) is None


def test_a_resumed_sweep_counts_what_was_spent_before():
    books = ledger(Budget(usd=1.0, hours=1.0), spent_usd=0.99)
    books.open("s", "a", 3.6, 0.0)
    assert books.reserve("s", 0.0) is None
    books = ledger(Budget(hours=1.0), spent_seconds=3590.0)
    books.open("s", "a", 3.6, 0.0)
    assert books.reserve("s", 0.0) is None


@given(
    usd=st.floats(0.01, 2.0),
    prices=st.lists(st.floats(0.1, 60.0), min_size=1, max_size=4),
    data=st.data(),
)
def test_no_sequence_of_probes_passes_the_budget(usd, prices, data):
    """Sessions ask in turns and use up what they are given; those refused end within the seconds kept back."""
    books = ledger(Budget(usd=usd))
    now = 0.0
    live = {f"s{i}": price for i, price in enumerate(prices)}
    for session, price in live.items():
        if usd / sum(prices) * 3600 < 10 * len(prices):
            return  # a budget that not even opening the sessions fits is refused before they open
        books.open(session, f"f{session}", price, now)
    ends: dict[str, float] = {}
    while live:
        for session in [s for s in live if s not in ends]:
            seconds = books.reserve(session, now)
            if seconds is None:
                books.close(session, now + data.draw(st.floats(0.0, 5.0)))
                del live[session]
            else:
                ends[session] = now + data.draw(st.floats(0.5, 1.0)) * seconds
        if ends:
            session = min(ends, key=ends.__getitem__)
            start, now = now, ends.pop(session)
            books.settle(session, now - start)
    assert books.spent_usd(now) <= usd * (1 + 1e-9)
