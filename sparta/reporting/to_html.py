"""Documents as one self-contained HTML page: no script, no outside resource, light and dark."""

from __future__ import annotations

from html import escape

from sparta.reporting.document import Cell, Column, Document, Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --dim: #667080; --line: #dfe3e8; --page: #ffffff; --bar: #cfe6d8;
  --note: #fff5d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #97a1b0; --line: #30363f; --page: #14171c;
  --bar: #1f4a33; --note: #3b3212; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 76rem;
  margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h1, h2, h3 { line-height: 1.2; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { color: var(--dim); } dd { margin: 0; }
figure { margin: 1.2rem 0; overflow-x: auto; } figcaption { font-weight: 600; margin-bottom: .4rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; } .right { text-align: right; white-space: nowrap; }
td[style] { min-width: 5rem; background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)); }
.note { background: var(--note); border-radius: 6px; padding: .5rem .8rem; margin: .5rem 0; }
"""


def render(document: Document) -> str:
    """`document` as a complete HTML page."""
    head = f"<head><meta charset='utf-8'><title>{escape(document.title)}</title><style>{_STYLE}</style></head>"
    return f"<!doctype html>\n<html lang='en'>\n{head}\n<body>\n{fragment(document)}</body>\n</html>\n"


def fragment(document: Document, level: int = 1) -> str:
    """`document` as HTML for inside a page; parts are headed one level deeper, to `h6` at most."""
    heading = f"h{min(level, 6)}"
    pieces = [f"<section>\n<{heading}>{escape(document.title)}</{heading}>\n"]
    if document.facts:
        facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in document.facts)
        pieces.append(f"<dl>\n{facts}</dl>\n")
    pieces += [_table(table) for table in document.tables]
    pieces += [f"<p class='note'>{escape(note)}</p>\n" for note in document.notes]
    pieces += [fragment(part, level + 1) for part in document.parts]
    return "".join([*pieces, "</section>\n"])


def _table(table: Table) -> str:
    head = "".join(f"<th class='{column.align}'>{escape(column.title)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{_cells(table.columns, row)}</tr>\n" for row in table.rows)
    caption = f"<figcaption>{escape(table.title)}</figcaption>"
    return f"<figure>{caption}\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></figure>\n"


def _cells(columns: tuple[Column, ...], row: tuple[Cell, ...]) -> str:
    return "".join(
        f"<td class='{column.align}'{_share(cell)}>{escape(cell.text)}</td>"
        for column, cell in zip(columns, row, strict=True)
    )


def _share(cell: Cell) -> str:
    if cell.share is None:
        return ""
    percent = f"{100 * cell.share:.0f}%"
    return f" style='--share: {percent}'"
