"""The gate every program passes before it is used: exact, and not slower than the masked dense model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.propagation.engine import nothing_known
from sparta.propagation.folding import fold
from sparta.propagation.stages import Captured
from sparta.propagation.verify import bisect, garbage_injection
from sparta.reporting.report import Report
from sparta.runtime.facts import facts_of, machine_facts, milliseconds
from sparta.runtime.inputs import Leaf, expected, first_of_batch, flatten, shapes_of
from sparta.runtime.program import Program
from sparta.runtime.rewrite import Specialized, specialize
from sparta.runtime.verify import Comparison, Trial, compare, run_reference, trial_of, wrong_sites
from sparta.settings import Settings
from sparta.tesa.compressed import shape_of
from sparta.tesa.errors import KernelCompileError, UnsupportedOpError, VerificationError
from sparta.transformation import Decision, Planned, transform
from sparta.transformation.choose import DENSE
from sparta.transformation.measure import measure

log = logging.getLogger("sparta.runtime")

RELATIVE_ALLOWANCE = 1.03
ABSOLUTE_ALLOWANCE = 1e-5
"""A program may take 3 % plus 10 microseconds more than the masked dense model; beyond that it is not used."""

DOUBTFUL = 0.9
"""Above this fraction of the dense latency, it is asked whether the sparse kernels as a whole help at all."""


CHANGED_ARGUMENTS = "forward changes a container it is given, as a cache that grows; use the one it returns"
"""What the report says where the graph returns new containers and leaves those of the call alone."""


class NeedsStaticBatch(Exception):
    """The graph with a symbolic batch is wrong for the call's own batch; the call needs a graph of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """A specialized model that agrees with the masked dense model.

    Parameters
    ----------
    specialized
        What runs; wrong parts have been put back to dense.
    error
        Largest relative error seen, None if not verified.
    any_batch
        Batch 1 was verified as well, so the symbolic batch may be trusted below the range export states.
    notes
        What happened on the way.
    exact
        It agrees; where nothing helped, the masked dense model runs instead.
    changed
        Forward changes containers it is given.
    """

    specialized: Specialized
    error: float | None
    any_batch: bool
    notes: tuple[str, ...]
    exact: bool = True
    changed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Verifies and measures what was compiled for one call of one masked dense model."""

    reference: nn.Module
    call: Call
    settings: Settings

    def verify(self, specialized: Specialized) -> Verified:
        """The model with every wrong part put back to dense.

        Raises
        ------
        UnsupportedOpError, KernelCompileError, VerificationError
            In strict mode, instead of falling back.
        NeedsStaticBatch
            If the graph was captured for another batch than the call's and is wrong for it.
        """
        self._check_strict(specialized)
        if self.settings.verify is False:
            return Verified(specialized, None, any_batch=False, notes=("not verified: verify=False",), changed=True)
        trial = trial_of(self.reference, self.call, self.settings)
        notes = [trial.note] if trial.note else []
        comparison = self._compare(specialized, trial)
        if not comparison.ok and self._captured_for_another_batch(specialized):
            raise NeedsStaticBatch
        if not comparison.ok:
            specialized, comparison = self._repair(specialized, trial, comparison, notes)
        if not comparison.ok:
            return Verified(specialized, None, any_batch=False, notes=(*notes, _mismatch(comparison)), exact=False)
        if self.settings.verify == "full":
            self._certify(specialized, trial.call, notes)
        notes += [comparison.note] if comparison.note else []
        notes += [CHANGED_ARGUMENTS] if trial.changed else []
        any_batch = self._first_agrees(specialized, trial.call)
        return Verified(specialized, comparison.error, any_batch, tuple(notes), changed=trial.changed)

    def _check_strict(self, specialized: Specialized) -> None:
        if not self.settings.strict:
            return
        barriers = specialized.planned.folded.propagated.barriers
        if barriers:
            listed = ", ".join(f"{barrier.op} in {barrier.module or 'the model'}" for barrier in barriers)
            message = f"no propagation rule for {listed}; drop strict=True to run them as barriers"
            raise UnsupportedOpError(message)
        failed = [d for d in specialized.decisions if d.reason.startswith("kernel did not compile")]
        if failed:
            message = "; ".join(f"{decision.site.name}: {decision.reason}" for decision in failed)
            raise KernelCompileError(message)

    def _compare(self, specialized: Specialized, trial: Trial) -> Comparison:
        return compare(self.reference, lambda call: specialized.module(*flatten(call)[0]), trial)

    def _repair(
        self, specialized: Specialized, trial: Trial, comparison: Comparison, notes: list[str]
    ) -> tuple[Specialized, Comparison]:
        """Wrong kernels go back to dense; if that is not enough, so does the whole folding."""
        if self.settings.strict:
            raise VerificationError(_mismatch(comparison))
        wrong = wrong_sites(specialized, flatten(trial.call)[0])
        notes += [f"{d.site.name}: kernel {d.kernel} was wrong here and runs dense; please report it" for d in wrong]
        repaired = specialize(_without(specialized.planned, wrong))
        comparison = self._compare(repaired, trial)
        if comparison.ok:
            return repaired, comparison
        nodes = ", ".join(bisect(specialized.planned.folded.propagated, *self.call)) or "no single rule"
        notes.append(
            f"folding was wrong for this model and is off ({_mismatch(comparison)}; {nodes}); please report it"
        )
        plain = fold(nothing_known(specialized.planned.folded.propagated.annotated))
        repaired = specialize(transform(plain, self.settings, flatten(self.call)[0]))
        return repaired, self._compare(repaired, trial)

    def _captured_for_another_batch(self, specialized: Specialized) -> bool:
        captured = specialized.planned.folded.propagated.annotated.captured
        return shapes_of(self.call) != shapes_of(captured.example)

    def _certify(self, specialized: Specialized, call: Call, notes: list[str]) -> None:
        propagated = specialized.planned.folded.propagated
        error = garbage_injection(propagated, *call)
        notes.append(f"propagation certified node by node by garbage injection: relative error {error:.1e}")
        if error > 1e-4:
            message = f"propagation is wrong for this model (garbage injection error {error:.1e}); please report it"
            raise VerificationError(message)

    def _first_agrees(self, specialized: Specialized, call: Call) -> bool:
        """Whether a program with a symbolic batch is right for batch 1 too, which export does not promise."""
        captured = specialized.planned.folded.propagated.annotated.captured
        if not any(captured.dynamic):
            return False
        single = first_of_batch(call, captured.dynamic)
        if shapes_of(single) == shapes_of(call):
            return True  # compared already
        try:
            return self._compare(specialized, run_reference(self.reference, single)).ok
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            log.info("batch 1 gets its own program: %s", error)
            return False

    def measure(self, verified: Verified) -> Program:
        """The fastest of optimized, folded only, and the masked dense model itself, with its report."""
        specialized = verified.specialized
        leaves = flatten(self.call)[0]
        if not verified.exact:
            report = facts_of(specialized, error=None, notes=verified.notes)
            return self.dense("nothing made it exact, runs the masked dense model", report)
        if self.settings.measure is False:
            return self._program(specialized.module, verified, None, None)
        folded = specialized.planned.folded.module
        with torch.no_grad():
            runs = {DENSE: self._dense_run(verified.changed), "optimized": lambda: specialized.module(*leaves)}
            times = measure(runs, budget=0.3, rounds=(3, 30))
            if times["optimized"] > DOUBTFUL * times[DENSE] and _sparse(specialized):
                times = measure({**runs, "folded": lambda: folded(*leaves)}, budget=0.3, rounds=(5, 30))
        return self._fastest(verified, times)

    def _dense_run(self, changed: bool) -> Callable[[], object]:
        """The masked dense model on the call, in new containers each time if forward changes them."""
        args, kwargs = self.call
        if not changed:
            return lambda: self.reference(*args, **kwargs)
        leaves, spec = flatten(self.call)

        def run() -> object:
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return self.reference(*args, **kwargs)

        return run

    def _fastest(self, verified: Verified, times: dict[str, float]) -> Program:
        dense, optimized = times[DENSE], times["optimized"]
        folded = times.get("folded", optimized)
        if self.settings.kernels is not None:
            return self._program(verified.specialized.module, verified, dense, optimized)
        if folded < optimized:
            verified, optimized = self._without_kernels(verified), folded
        if optimized > RELATIVE_ALLOWANCE * dense + ABSOLUTE_ALLOWANCE:
            return self._direct(verified, dense)
        return self._program(verified.specialized.module, verified, dense, optimized)

    def _without_kernels(self, verified: Verified) -> Verified:
        note = "all sparse kernels together were slower than the folded dense model, which runs instead"
        planned = verified.specialized.planned
        dense = specialize(_without(planned, planned.decisions))
        return replace(verified, specialized=dense, notes=(*verified.notes, note))

    def _program(
        self, module: fx.GraphModule, verified: Verified, dense: float | None, optimized: float | None
    ) -> Program:
        captured = verified.specialized.planned.folded.propagated.annotated.captured
        leaves, spec = flatten(self.call)
        return Program(
            module=module,
            in_spec=spec,
            leaves=_accepted(leaves, captured, any_batch=verified.any_batch),
            out_spec=captured.out_spec,
            report=replace(
                facts_of(verified.specialized, error=verified.error, notes=verified.notes),
                dense_ms=milliseconds(dense),
                optimized_ms=milliseconds(optimized),
            ),
        )

    def _direct(self, verified: Verified, dense: float) -> Program:
        """The program that forwards straight to the masked dense model; its graph is kept for files only."""
        note = "not faster as a whole, runs the masked dense model"
        planned = verified.specialized.planned
        plain = replace(verified, specialized=specialize(_without(planned, planned.decisions)))
        program = self._program(plain.specialized.module, plain, dense, dense)
        layers = tuple(replace(layer, kernel=DENSE, reason=note) for layer in program.report.layers)
        return replace(program.reported(layers=layers, notes=(*verified.notes, note)), direct=self.reference)

    def dense(self, note: str, report: Report | None = None) -> Program:
        """The program that is the masked dense model, for this call's shapes, where there is no exact graph."""
        leaves, spec = flatten(self.call)
        report = report or Report(capture="none", machine=machine_facts())
        return Program(
            module=self.reference,
            in_spec=spec,
            leaves=tuple(expected(leaf) for leaf in leaves),
            out_spec=None,
            report=replace(report, layers=(), notes=(*report.notes, note)),
        )


def _sparse(specialized: Specialized) -> bool:
    return any(decision.kernel != DENSE for decision in specialized.decisions)


def _mismatch(comparison: Comparison) -> str:
    return (
        f"the optimized model differs from the masked dense model: relative error {comparison.error:.1e}, "
        f"{comparison.allowed:.1e} allowed"
    )


def _without(planned: Planned, decisions: Sequence[Decision]) -> Planned:
    """The plan with these decisions put back to dense."""
    names = {decision.site.last.name for decision in decisions}
    return replace(
        planned,
        decisions=tuple(
            replace(d, kernel=DENSE, reason=f"put back to dense after {d.kernel}", chosen_seconds=d.dense_seconds)
            if d.site.last.name in names and d.kernel != DENSE
            else d
            for d in planned.decisions
        ),
    )


def _accepted(leaves: list[Any], captured: Captured, *, any_batch: bool) -> tuple[Leaf, ...]:
    """What the program accepts: the call's own sizes, and any batch where it was verified and nothing was assumed."""
    if not any_batch or captured.guards:
        return tuple(expected(leaf) for leaf in leaves)
    nodes = {node.name: node for node in captured.graph.find_nodes(op="placeholder")}
    values = [nodes[name].meta["val"] for name in captured.user_inputs]
    return tuple(expected(leaf, _symbols(value)) for leaf, value in zip(leaves, values, strict=True))


def _symbols(value: object) -> dict[int, str]:
    """Dimension -> name, for the dimensions of a captured input whose size is a free symbol."""
    shape = shape_of(value) if isinstance(value, Tensor) else ()
    return {dim: str(size) for dim, size in enumerate(shape) if isinstance(size, sympy.Symbol)}
