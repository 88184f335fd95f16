"""What a report says about a specialized model: its layers, what was removed, the machine."""

from __future__ import annotations

import torch

from sparta.kernels import host_machine
from sparta.propagation.stages import Folded
from sparta.reporting.report import LayerReport, Report
from sparta.runtime.rewrite import Specialized
from sparta.transformation import Decision
from sparta.version import __version__


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds


def facts_of(specialized: Specialized, *, error: float | None, notes: tuple[str, ...]) -> Report:
    """The report on a specialized model, without the latencies of the whole."""
    folded: Folded = specialized.planned.folded
    return Report(
        layers=tuple(_layer(decision) for decision in specialized.decisions),
        barriers=tuple(dict.fromkeys((barrier.op, barrier.module) for barrier in folded.propagated.barriers)),
        removed=folded.removed,
        error=error,
        machine=machine_facts(),
        notes=notes,
    )


def _layer(decision: Decision) -> LayerReport:
    site = decision.site
    return LayerReport(
        name=site.name,
        op=site.op,
        shape=site.problem.matrix,
        tokens=site.tokens,
        pattern=decision.pattern,
        density=decision.density,
        kernel=decision.kernel,
        reason=decision.reason,
        dense_ms=milliseconds(decision.dense_seconds),
        chosen_ms=milliseconds(decision.chosen_seconds),
    )


def machine_facts() -> dict[str, str]:
    """What the latencies of a report depend on."""
    machine = host_machine()
    return {
        "cpu": machine.name,
        "isa": machine.isa,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "sparta": __version__,
    }
