"""Tables on narrow terminals: numbers whole, words whole, repeated names as headings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.report.layout import lay_out
from raysweep.report.page import Page, table
from raysweep.report.text import page_text

STEPS = ["checkpointing gpu, loss full", "checkpointing gpu, loss chunked"]
PEAKS = table(
    ["step", ">length", ">allocated", ">reserved", "the allocated peak comes in"],
    [(s, n, "24.33", "26.49 to 26.55", "backward (_log_softmax_backward_data)") for s in STEPS for n in (4096, 8192)],
)


def test_a_table_with_room_stands_as_it_is() -> None:
    layout = lay_out(PEAKS, 160)
    assert layout.fits and not layout.grouped
    assert layout.widths == (31, 6, 9, 14, 37)


def test_names_that_repeat_become_headings_where_the_room_is_small() -> None:
    lines = page_text(Page("t", (PEAKS,)), width_columns=80).splitlines()
    assert [line for line in lines if line.startswith("checkpointing")] == STEPS


def test_names_that_do_not_repeat_stay_a_column() -> None:
    shown = table(["flavour", "why"], [(f"lab/{i}", "a word and another " * 6) for i in range(4)])
    assert not lay_out(shown, 50).grouped


@settings(deadline=None, max_examples=40)
@given(width=st.integers(66, 200))
def test_no_number_and_no_word_is_broken(width: int) -> None:
    words = page_text(Page("t", (PEAKS,)), width_columns=width).split()
    assert words.count("(_log_softmax_backward_data)") == 4
    assert words.count("4,096") == 2
    assert words.count("26.55") == 4


def test_words_are_broken_only_where_nothing_else_helps() -> None:
    assert not lay_out(PEAKS, 40).fits


def test_ranges_stay_on_one_line_while_text_can_give_way() -> None:
    flavours = table(
        ["flavour", "step", ">hours", ">USD"],
        [(f"lab/{n}", "checkpointing cpu, loss chunked", "1.59 (0.78 to 3.26)", "2.87 (1.40 to 5.87)") for n in "abc"],
    )
    lines = page_text(Page("t", (flavours,)), width_columns=70).splitlines()
    assert sum("1.59 (0.78 to 3.26)" in line and "2.87 (1.40 to 5.87)" in line for line in lines) == 3
