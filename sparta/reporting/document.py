"""What every renderer takes: a titled document of facts, tables and notes, already worded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Cell:
    """One table entry; `share` (0 to 1) is drawn as a bar by renderers that can draw."""

    text: str
    share: float | None = None

    def __post_init__(self) -> None:
        assert self.share is None or 0 <= self.share <= 1, f"a bar cannot fill {self.share} of its cell"


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a table column; an `optional` one is left out where the reader's screen is too narrow."""

    title: str
    align: Literal["left", "right"] = "left"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; every row has one cell for each column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{self.title}: {len(row)} cells for {len(self.columns)} columns"


@dataclass(frozen=True, slots=True)
class Document:
    """A page, or a screen, of facts.

    Parameters
    ----------
    title
        Says what was looked at.
    facts
        (name, text) pairs, the most important first.
    tables
        The details.
    notes
        Sentences the reader should not miss.
    parts
        Documents shown below this one.

    Examples
    --------
    >>> from sparta.reporting import render
    >>> print(render(Document("Weather", facts=(("sky", "blue"),)), "markdown"))
    ## Weather
    <BLANKLINE>
    - **sky**: blue
    <BLANKLINE>
    """

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Document, ...] = ()
