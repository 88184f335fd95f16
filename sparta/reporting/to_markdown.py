"""Documents as GitHub-flavored Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from sparta.reporting.document import Document, Table

_RULES = {"left": "---", "right": "---:"}


def render(document: Document) -> str:
    """`document` as Markdown; parts are headed one level deeper."""
    return "\n".join(_lines(document, level=2)) + "\n"


def _lines(document: Document, level: int) -> Iterator[str]:
    yield f"{'#' * level} {_escape(document.title)}"
    if document.facts:
        yield ""
        yield from (f"- **{_escape(name)}**: {_escape(text)}" for name, text in document.facts)
    for table in document.tables:
        yield from _table_lines(table, level + 1)
    if document.notes:
        yield ""
        yield from (f"> {_escape(note)}  " for note in document.notes)
    for part in document.parts:
        yield ""
        yield from _lines(part, level + 1)


def _table_lines(table: Table, level: int) -> Iterator[str]:
    yield from ("", f"{'#' * level} {_escape(table.title)}", "")
    yield _row([column.title for column in table.columns])
    yield _row([_RULES[column.align] for column in table.columns])
    yield from (_row([_escape(cell.text) for cell in row]) for row in table.rows)


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escape(text: str) -> str:
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
