"""Documents for a terminal: rich renderables, and their plain text."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from sparta.reporting.document import Document, Table

_NARROWEST = 120  # a layer table is hard to read below this; files and pagers scroll
_UNBOUNDED = 10_000  # to measure a table as if the screen had room
_WRAPPED = 14  # the least width of a column that wraps: the first (names) and the last (sentences)


def render(document: Document) -> str:
    """`document` as plain text, as wide as the terminal (at least 120 columns), without color."""
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable(document))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def renderable(document: Document) -> RenderableType:
    """`document` as something rich prints."""
    parts: list[RenderableType] = [Text(document.title, style="bold")]
    if document.facts:
        parts.append(_facts(document.facts))
    parts += [_Fitted(table) for table in document.tables]
    parts += [Text(), *(Text(f"! {note}", style="yellow") for note in document.notes)] if document.notes else []
    parts += [Padding(renderable(part), (1, 0, 0, 0)) for part in document.parts]
    return Group(*parts)


def _facts(facts: tuple[tuple[str, str], ...]) -> RenderableType:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in facts:
        grid.add_row(Text(name), Text(text))
    return grid


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table that leaves out optional columns, the last first, until it fits the console; it says which."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: list[int] = []
        optional = [index for index, column in enumerate(self.table.columns) if column.optional]
        unbounded = options.update(max_width=_UNBOUNDED)
        while Measurement.get(console, unbounded, _drawn(self.table, left_out)).minimum > options.max_width:
            if not optional:
                break
            left_out.append(optional.pop())
        yield Text(f"\n{self.table.title}", style="bold")
        yield _drawn(self.table, left_out)
        if left_out:
            names = ", ".join(self.table.columns[index].title for index in sorted(left_out))
            yield Text(f"(left out on this narrow terminal: {names})", style="dim")


def _drawn(table: Table, left_out: list[int]) -> RichTable:
    kept = [index for index in range(len(table.columns)) if index not in left_out]
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index in kept:
        column = table.columns[index]
        wraps = column.align == "left" and index in (0, len(table.columns) - 1)
        widest = max(cell_len(text) for text in (column.title, *(row[index].text for row in table.rows)))
        width = min(widest, _WRAPPED) if wraps else widest
        drawn.add_column(column.title, justify=column.align, no_wrap=not wraps, min_width=width, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(row[index].text) for index in kept))
    return drawn
