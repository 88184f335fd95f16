"""One document, three renderers: golden texts, escaping, narrow terminals, self-contained pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

import sparta
from sparta.reporting import Cell, Column, Document, LayerReport, Report, Table, render
from sparta.reporting.layout import layout

REPORT = Report(
    layers=(
        LayerReport("encoder.up", "linear", (1024, 256), 128, "unstructured", 0.1, "csr", "fastest of 3", 1.0, 0.4),
        LayerReport("conv", "conv2d", (64, 3, 3, 3), 64, "channel(0)", 1.0, "dense", "no zeros are left"),
    ),
    barriers=(("aten.erfinv", "tail"),),
    removed={"conv.weight": ((64, 3, 3, 3), (32, 3, 3, 3))},
    error=2.5e-7,
    dense_ms=4.0,
    optimized_ms=2.0,
    stages={"capture": 1.25, "fold": 0.25},
    machine={"cpu": "Imaginary", "threads": "2"},
    notes=("One layer was put back to dense.",),
)
NASTY = "<b> & | `x` *y* [z](w) \\ \n # 'q' \"r\""


@pytest.fixture(autouse=True)
def _fixed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("style", ["terminal", "markdown", "html"])
def test_golden(style: str, golden: Callable[[str, str], None]) -> None:
    golden(f"report.{style}.txt", render(layout(REPORT), style))


def test_str_and_rich_show_the_same_text() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as capture:
        console.print(REPORT)
    assert [line.rstrip() for line in capture.get().splitlines()] == str(REPORT).splitlines()


def test_narrow_terminals_lose_optional_columns_and_say_so() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    with console.capture() as capture:
        console.print(REPORT)
    shown = capture.get()
    assert "left out on this narrow terminal: dense ms, why" in shown
    assert "2.50x" in shown
    assert "fastest of 3" not in shown


def test_tiny_terminals_still_show_something() -> None:
    console = Console(file=io.StringIO(), width=20, color_system=None)
    console.print(REPORT)


def nasty_document() -> Document:
    """A document of texts that mean something in Markdown, HTML or rich markup."""
    table = Table(NASTY, (Column(NASTY),), ((Cell(NASTY),),))
    return Document(NASTY, ((NASTY, NASTY),), (table,), (NASTY,), (Document("[red]part[/red]"),))


class _Texts(HTMLParser):
    """Collects the tags and the texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_escapes_everything() -> None:
    parser = _Texts()
    parser.feed(render(nasty_document(), "html"))
    assert parser.texts.count(NASTY) == 8  # titles of page, part and table; name and text of a fact; head, cell, note
    assert "b" not in parser.tags


def test_html_needs_nothing_else() -> None:
    page = render(layout(REPORT), "html")
    assert not [word for word in ("http", "<script", "src=", "@import", "url(") if word in page]


def test_markdown_keeps_one_row_per_line() -> None:
    lines = render(nasty_document(), "markdown").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert all(line.replace("\\|", "").count("|") == 2 for line in rows)


def test_terminal_takes_markup_as_text() -> None:
    assert "[red]part[/red]" in render(nasty_document(), "terminal")


def test_an_unknown_renderer_lists_the_known() -> None:
    with pytest.raises(sparta.OptionError, match="terminal, markdown, html"):
        render(layout(REPORT), "latex")


def test_to_html_also_writes(tmp_path: Path) -> None:
    page = REPORT.to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_bars_stay_in_their_cell(share: float) -> None:
    with pytest.raises(AssertionError, match="bar"):
        Cell("", share)


def test_rows_fit_their_columns() -> None:
    with pytest.raises(AssertionError, match="2 cells for 1 columns"):
        Table("t", (Column("one"),), ((Cell("1"), Cell("2")),))
