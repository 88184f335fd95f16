"""The wording of a report: a `Report` as the document that all renderers show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sparta.reporting.document import Cell, Column, Document, Table

if TYPE_CHECKING:
    from sparta.reporting.report import LayerReport, Report

_NOISE = 0.03  # two latencies closer than this are the same on a shared machine


def layout(report: Report) -> Document:
    """`report` in words: facts, the layers, what was removed, what PyTorch runs, notes."""
    tables = (_layers(report.layers), _removed(report.removed), _barriers(report.barriers))
    return Document(
        title="sparta report",
        facts=tuple((name, text) for name, text in _facts(report) if text),
        tables=tuple(table for table in tables if table.rows),
        notes=report.notes,
    )


def shape_text(shape: Iterable[int]) -> str:
    """`shape` as in "64x3x3"."""
    return "x".join(str(size) for size in shape)


def percent_text(fraction: float) -> str:
    """`fraction` as percent: exact at 0 and 100 only, so that "100%" never hides a zero."""
    clipped = fraction if fraction in (0, 1) else min(max(fraction, 0.001), 0.999)
    return f"{100 * clipped:.3g}%"


def speedup_text(speedup: float | None) -> str:
    """`speedup` as in "1.85x", or a dash where nothing was measured."""
    return "-" if speedup is None else f"{speedup:.2f}x"


def milliseconds_text(value: float | None) -> str:
    """`value` with three digits, or a dash where nothing was measured."""
    return "-" if value is None else f"{value:.3g}"


def latency_text(dense_ms: float | None, optimized_ms: float | None) -> str:
    """What was measured of the whole model, in one sentence that never calls noise a gain.

    Examples
    --------
    >>> latency_text(4.0, 2.0)
    '2.00x faster than the masked dense model: 4 ms -> 2 ms per call'
    >>> latency_text(4.0, 4.05)
    'as fast as the masked dense model: 4 ms -> 4.05 ms per call'
    """
    if not dense_ms or not optimized_ms:
        return "not measured"
    speedup = dense_ms / optimized_ms
    verdict = f"{speedup:.2f}x faster than" if speedup > 1 else f"{1 / speedup:.2f}x slower than"
    if abs(math.log(speedup)) < _NOISE:
        verdict = "as fast as"
    before, after = milliseconds_text(dense_ms), milliseconds_text(optimized_ms)
    return f"{verdict} the masked dense model: {before} ms -> {after} ms per call"


def _facts(report: Report) -> Iterable[tuple[str, str]]:
    yield "latency", latency_text(report.dense_ms, report.optimized_ms)
    yield "exactness", _exactness(report.error)
    yield "layers", _kernels(report.layers)
    yield "removed", _shrinkage(report.removed)
    yield "captured", _CAPTURES.get(report.capture, report.capture)
    yield "compiled in", _stages(report.stages)
    yield "machine", ", ".join(f"{name} {fact}" for name, fact in report.machine.items())


_CAPTURES: Mapping[str, str] = {
    "export": "one whole graph (torch.export)",
    "dynamo": "several graphs (torch.compile)",
    "modules": "module by module: the model could not be captured whole",
    "none": "not at all: runs as the masked dense model",
}


def _exactness(error: float | None) -> str:
    return "not verified" if error is None else f"relative error {error:.1e} against the masked dense model"


def _kernels(layers: tuple[LayerReport, ...]) -> str:
    counts: dict[str, int] = {}
    for layer in layers:
        counts[layer.kernel] = counts.get(layer.kernel, 0) + 1
    return ", ".join(f"{count} x {kernel}" for kernel, count in counts.items())


def _shrinkage(removed: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> str:
    if not removed:
        return ""
    before = sum(math.prod(shape) for shape, _ in removed.values())
    after = sum(math.prod(shape) for _, shape in removed.values())
    return f"{before:,} elements became {after:,} where rows, columns or channels were dead"


def _stages(stages: Mapping[str, float]) -> str:
    if not stages:
        return ""
    return f"{sum(stages.values()):.2f} s ({', '.join(f'{name} {seconds:.2f}' for name, seconds in stages.items())})"


_LAYER_COLUMNS: tuple[tuple[Column, Callable[[LayerReport], Cell]], ...] = (
    (Column("layer"), lambda layer: Cell(layer.name)),
    (Column("weight"), lambda layer: Cell(f"{layer.op} {shape_text(layer.shape)}")),
    (Column("T", "right", optional=True), lambda layer: Cell(str(layer.tokens))),
    (Column("pattern"), lambda layer: Cell(layer.pattern)),
    (Column("density", "right"), lambda layer: Cell(percent_text(layer.density), min(max(layer.density, 0.0), 1.0))),
    (Column("kernel"), lambda layer: Cell(layer.kernel)),
    (Column("dense ms", "right", optional=True), lambda layer: Cell(milliseconds_text(layer.dense_ms))),
    (Column("ms", "right"), lambda layer: Cell(milliseconds_text(layer.chosen_ms), _time_share(layer))),
    (Column("speedup", "right"), lambda layer: Cell(speedup_text(layer.speedup))),
    (Column("why", optional=True), lambda layer: Cell(layer.reason)),
)


def _time_share(layer: LayerReport) -> float | None:
    return None if layer.speedup is None else min(1 / layer.speedup, 1.0)


def _layers(layers: tuple[LayerReport, ...]) -> Table:
    columns = tuple(column for column, _ in _LAYER_COLUMNS)
    return Table("Layers", columns, tuple(tuple(cell(layer) for _, cell in _LAYER_COLUMNS) for layer in layers))


def _removed(removed: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> Table:
    columns = (Column("tensor"), Column("was", "right"), Column("is", "right"), Column("kept", "right"))
    rows = [
        (Cell(name), Cell(shape_text(before)), Cell(shape_text(after)), _kept(before, after))
        for name, (before, after) in removed.items()
    ]
    return Table("Removed rows, columns and channels", columns, tuple(rows))


def _kept(before: tuple[int, ...], after: tuple[int, ...]) -> Cell:
    share = math.prod(after) / max(math.prod(before), 1)
    return Cell(percent_text(share), min(share, 1.0))


def _barriers(barriers: tuple[tuple[str, str], ...]) -> Table:
    rows = tuple((Cell(op), Cell(module)) for op, module in barriers)
    return Table("Operators PyTorch runs unchanged", (Column("operator"), Column("module")), rows)
