"""A page as one HTML file: no script, font or picture from elsewhere; it reads the same offline, printed and dark."""

from __future__ import annotations

from html import escape

from raysweep.report.page import Block, Cell, Facts, Heading, Page, Sentence, Table, Tone

_CSS = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#666d76;--line:#d8dce1;
--good:#1a7f37;--warn:#8a5a00;--bad:#b3261e;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--dim:#9aa1a9;--line:#3a4048;
--good:#57c27a;--warn:#e0a83a;--bad:#f0776c;--paper:#16191d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums}
caption{caption-side:bottom;text-align:left;color:var(--dim);padding:.3rem 0}
th,td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;white-space:nowrap}.right{text-align:right}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:.6rem 0}dt{color:var(--dim)}dd{margin:0}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}.note{color:var(--dim)}
@media print{body{margin:0;max-width:none}}
""".strip()


def page_html(page: Page) -> str:
    """Return the whole page; every text in it is escaped."""
    body = "\n".join(_block(block) for block in page.blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{_CSS}\n</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(page.title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Sentence):
        return f"<p{_class(block.tone.value if block.tone is not Tone.PLAIN else '')}>{escape(block.text)}</p>"
    if isinstance(block, Facts):
        pairs = "".join(f"<dt>{escape(name)}</dt><dd>{_value(value)}</dd>" for name, value in block.pairs)
        return f"<dl>{pairs}</dl>"
    return _table(block)


def _table(block: Table) -> str:
    caption = f"<caption>{escape(block.caption)}</caption>" if block.caption else ""
    heads = "".join(f'<th scope="col"{_class("right" if c.right else "")}>{escape(c.name)}</th>' for c in block.columns)
    rows = "\n".join(f"<tr>{_row(block, row)}</tr>" for row in block.rows)
    body = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>"
    return f'<div class="scroll"><table>{caption}\n{body}</table></div>'


def _row(block: Table, row: tuple[Cell, ...]) -> str:
    return "".join(
        f"<td{_class('right' if column.right else '')}>{_value(value)}</td>"
        for column, value in zip(block.columns, row, strict=True)
    )


def _value(value: Cell) -> str:
    if value.tone is Tone.PLAIN:
        return escape(value.text)
    return f'<span class="{value.tone.value}">{escape(value.text)}</span>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
