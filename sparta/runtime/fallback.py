"""Models that are not one graph: optimized graph by graph through Dynamo, else module by module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.propagation.shadow import masked
from sparta.propagation.stages import Captured
from sparta.reporting.report import Report
from sparta.runtime.module import OptimizedModule
from sparta.runtime.program import Program
from sparta.runtime.verify import compare, run_reference
from sparta.settings import Settings

log = logging.getLogger("sparta.runtime")

CompilePart = Callable[[nn.Module, Call, bool], Program]
"""Compiles one part of a model for one call of it; the flag allows a symbolic batch."""

CompileCaptured = Callable[[Captured, nn.Module], Program]
"""Compiles one captured part of a model."""


def compile_by_dynamo(
    reference: nn.Module, call: Call, settings: Settings, compile_part: CompilePart
) -> Program | None:
    """The model under Dynamo with every graph optimized, or None where Dynamo or its result fails."""
    from sparta.backend import optimized_graph

    parts: list[OptimizedModule] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        run, part = optimized_graph(gm, example_inputs, {}, compile_part, settings)
        parts.append(part)
        return run

    compiled = masked(reference)
    compiled.forward = torch.compile(compiled.forward, backend=backend)
    try:
        return _checked(compiled, "dynamo", reference, call, lambda: [part.report() for part in parts if part.programs])
    except Exception as error:  # Dynamo raises whatever user code and its own tracer raise
        log.info("Dynamo cannot run the model: %s", type(error).__name__)
        return None


def compile_by_modules(
    reference: nn.Module, call: Call, settings: Settings, compile_part: CompilePart
) -> Program | None:
    """The model with its largest capturable submodules optimized, or None where there is none."""
    from sparta.propagation.tree import capture_tree

    host = masked(reference)
    parts = []
    for path, captured in capture_tree(reference, *call).items():
        part = OptimizedModule(reference.get_submodule(path), compile_part, max_shapes=settings.max_shapes)
        args, kwargs = captured.example
        part.compile(*args, **kwargs)
        # The class and all attributes stay, so that code around the part still finds what it looks for.
        host.get_submodule(path).forward = part.forward
        parts.append(part)
    if not parts:
        return None
    return _checked(host, "modules", reference, call, lambda: [part.report() for part in parts])


def _checked(
    module: nn.Module, how: str, reference: nn.Module, call: Call, reports: Callable[[], Iterable[Report]]
) -> Program | None:
    """The program around `module` if it agrees with the masked dense model on the example."""

    def run(call: Call) -> list[Any]:
        args, kwargs = call
        return pytree.tree_leaves(module(*args, **kwargs))

    comparison = compare(reference, run, run_reference(reference, call))
    if not comparison.ok:
        log.warning("the model optimized by %s differs from the masked dense model and is not used", how)
        return None
    spec = pytree.tree_structure(call)
    report = replace(joined(list(reports())), capture=how, error=comparison.error)
    return Program(module, spec, None, None, report)


def joined(reports: list[Report]) -> Report:
    """One report of the parts of a model."""
    removed = {name: shapes for report in reports for name, shapes in report.removed.items()}
    return Report(
        layers=tuple(layer for report in reports for layer in report.layers),
        barriers=tuple(barrier for report in reports for barrier in report.barriers),
        removed=removed,
        machine=reports[0].machine if reports else {},
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )
