"""What `OptimizedModule.report()` returns: measured facts about every layer, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparta.reporting.layout import layout
from sparta.reporting.renderers import render
from sparta.reporting.to_json import report_from_json, report_to_json

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One weighted operator: what it is, what runs it, and what that gained, measured on this machine.

    Latencies are medians in milliseconds for one call at `tokens` columns; None where nothing was measured.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    tokens: int
    pattern: str
    density: float
    kernel: str
    reason: str
    dense_ms: float | None = None
    chosen_ms: float | None = None

    @property
    def speedup(self) -> float | None:
        """Dense latency divided by the latency of what was chosen."""
        return self.dense_ms / self.chosen_ms if self.dense_ms and self.chosen_ms else None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one `sparta.optimize`, honest and complete.

    Parameters
    ----------
    layers
        One entry for each linear or convolution that survived.
    barriers
        (operator, module) pairs PyTorch runs without propagation through them.
    removed
        Weight name -> (original shape, shape after folding).
    capture
        "export", "dynamo", "modules", or "none" where the model runs dense as it is.
    error
        Relative error against the masked dense model, per verified input the largest; None when not verified.
    dense_ms, optimized_ms
        Median latency of the whole model, masked dense and optimized, measured interleaved; None when not measured.
    stages
        Stage name -> seconds.
    machine
        Facts about this machine: cpu, isa, threads, versions.
    notes
        Anything the user should know: fallbacks, layers put back to dense, inputs that could not be redrawn.

    Examples
    --------
    >>> report = Report(dense_ms=4.0, optimized_ms=2.0)
    >>> report.speedup
    2.0
    >>> print(report.to_markdown().splitlines()[2])
    - **latency**: 2.00x faster than the masked dense model: 4 ms -\\> 2 ms per call
    """

    layers: tuple[LayerReport, ...] = ()
    barriers: tuple[tuple[str, str], ...] = ()
    removed: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    capture: str = "export"
    error: float | None = None
    dense_ms: float | None = None
    optimized_ms: float | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float | None:
        """Whole-model speedup: dense latency divided by optimized latency."""
        return self.dense_ms / self.optimized_ms if self.dense_ms and self.optimized_ms else None

    def __str__(self) -> str:
        """The report as plain text; rich consoles print it in color."""
        return render(layout(self), "terminal")

    def __rich__(self) -> RenderableType:
        """The report for `rich.print`."""
        from sparta.reporting.to_terminal import renderable  # rich is imported only to print

        return renderable(layout(self))

    def to_markdown(self) -> str:
        """The report as GitHub-flavored Markdown."""
        return render(layout(self), "markdown")

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one self-contained HTML page, also written to `path` if given."""
        page = render(layout(self), "html")
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def to_json(self) -> str:
        """The report as JSON, speedups included; `from_json` reads it back."""
        return report_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` wrote; anything else raises `FormatError`."""
        return report_from_json(text)
