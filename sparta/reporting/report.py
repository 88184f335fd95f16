"""What `OptimizedModule.report()` returns: measured facts about every layer, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        "export", "dynamo" or "modules".
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
