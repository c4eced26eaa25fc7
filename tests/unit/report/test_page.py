"""One page, rendered as text and as HTML."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.report.html import page_html
from raysweep.report.page import Cell, Heading, Page, Sentence, Tone, facts, table
from raysweep.report.text import page_text, print_page

PAGE = Page(
    "A title",
    (
        Sentence("A sentence.", Tone.WARN),
        facts([("device", "NVIDIA H200"), ("unknown", None)]),
        Heading("A part"),
        table(["flavour", ">tokens"], [("hf/h200", 16384), ("hf/a100-large", None)], "A caption."),
    ),
)


def test_text_shows_everything_in_order() -> None:
    text = page_text(PAGE)
    wanted = [
        "A title",
        "A sentence.",
        "NVIDIA H200",
        "A part",
        "flavour",
        "hf/h200",
        "16,384",
        "hf/a100-large",
        "A cap",
    ]
    places = [text.index(word) for word in wanted]
    assert places == sorted(places)


def test_a_missing_value_is_a_dash() -> None:
    assert re.search(r"unknown +-", page_text(PAGE))


@settings(deadline=None, max_examples=40)
@given(width=st.integers(40, 200), names=st.lists(st.text("abcdef/-0123456789", min_size=1, max_size=60), min_size=1))
def test_text_is_never_wider_than_asked_and_loses_no_character(width: int, names: list[str]) -> None:
    text = page_text(Page("t", (table(["a", ">b"], [(name, i) for i, name in enumerate(names)]),)), width_columns=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    shown = re.sub(r"\s", "", text)
    assert sum(shown.count(c) for c in "abcdef/-") >= sum(name.count(c) for name in names for c in "abcdef/-")


def test_what_is_not_a_terminal_gets_no_colour() -> None:
    sink = io.StringIO()
    print_page(PAGE, sink)
    assert "\x1b" not in sink.getvalue()
    assert sink.getvalue() == page_text(PAGE)


def test_brackets_in_a_cell_are_text_and_not_markup() -> None:
    assert "[red]x[/red]" in page_text(Page("t", (table(["a"], [("[red]x[/red]",)]),)))


def test_html_escapes_every_text() -> None:
    evil = "<script>alert('x')</script>&\""
    page = Page(
        evil, (Sentence(evil), Heading(evil), facts([(evil, evil)]), table([evil], [(Cell(evil, Tone.BAD),)], evil))
    )
    html = page_html(page)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 9


def test_html_is_well_formed_and_asks_nothing_of_the_network() -> None:
    html = page_html(PAGE)
    opened: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag != "meta":
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Checker().feed(html)
    assert opened == []
    assert "url(" not in html and "@import" not in html


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells"):
        table(["a", "b"], [("x",)])
