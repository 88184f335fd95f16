"""The verify stage: compare with the masked dense model on fresh inputs, and find the culprit when they differ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.propagation.shadow import masked
from sparta.runtime.inputs import copied, flatten, fresh
from sparta.runtime.rewrite import OPERATORS, Specialized
from sparta.runtime.tensors import attribute
from sparta.settings import Settings
from sparta.transformation.choose import DENSE
from sparta.transformation.plan import Decision, Site

log = logging.getLogger("sparta.runtime")

Run = Callable[[Call], Sequence[Any]]
"""Runs a call and returns the flat results."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Element type -> relative error that rounding explains."""

LOW_PRECISION_SLACK = 1.5
"""A bf16 or fp16 model may be this many times further from the fp32 model than PyTorch's own run of it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Relative error of one fresh input, and what it may be."""

    error: float
    allowed: float
    note: str | None = None

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= self.allowed


def relative_error(expected: object, got: object) -> float:
    """``max|a - b| / max|a|``, infinite where shape, type or the place of NaN and Inf differ; 0 or inf for non-floats.

    >>> relative_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.002])) < 2e-3
    True
    """
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        return 0.0 if type(expected) is type(got) and expected == got else float("inf")
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    if expected.is_complex():
        return relative_error(torch.view_as_real(expected.resolve_conj()), torch.view_as_real(got.resolve_conj()))
    if not expected.dtype.is_floating_point:
        return 0.0 if torch.equal(expected, got) else float("inf")
    a, b = expected.detach().double(), got.detach().double()
    finite = a.isfinite()
    if not torch.equal(torch.where(finite, 0.0, a).nan_to_num(7.0), torch.where(b.isfinite(), 0.0, b).nan_to_num(7.0)):
        return float("inf")
    a, b = torch.where(finite, a, 0.0), torch.where(finite, b, 0.0)
    return float((a - b).abs().max() / a.abs().max().clamp_min(torch.finfo(expected.dtype).tiny))


def worst_error(expected: Sequence[Any], got: Sequence[Any]) -> float:
    """The largest relative error over the leaves of two results."""
    if len(expected) != len(got):
        return float("inf")
    return max((relative_error(a, b) for a, b in zip(expected, got, strict=True)), default=0.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of the masked dense model, to compare with.

    Parameters
    ----------
    call
        Its arguments.
    expected
        Its flat results.
    changed
        Forward put other values into a list, dictionary or cache it was given.
    note
        Why the example itself is used instead of fresh inputs, if it is.
    """

    call: Call
    expected: Sequence[Any]
    changed: bool = False
    note: str | None = None


def trial_of(reference: nn.Module, call: Call, settings: Settings) -> Trial:
    """A trial with fresh inputs that the masked model can run, or with the example itself where no redraw works."""
    draw = settings.sample_inputs() if settings.sample_inputs is not None else fresh(call)
    try:
        trial = run_reference(reference, (tuple(draw[0]), dict(draw[1])))
        if not any(_has_nan(leaf) for leaf in trial.expected):
            return trial
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        log.info("the redrawn inputs do not fit the model: %s", error)
    note = "verified on the example itself: redrawn inputs made the masked model raise or return NaN"
    return replace(run_reference(reference, call), note=note)


def _has_nan(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and bool(leaf.isnan().any())


@torch.no_grad()
def run_reference(reference: nn.Module, call: Call) -> Trial:
    """What the masked dense model returns; arguments are copied so that nothing it does to them is seen."""
    own = copied(call)
    before, spec = flatten(own)
    args, kwargs = own
    with _plain_attention():
        expected = pytree.tree_leaves(reference(*args, **kwargs))
    after, changed_spec = flatten(own)
    changed = spec != changed_spec or any(a is not b for a, b in zip(before, after, strict=True))
    return Trial(call, expected, changed)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without the fused encoder layers of `nn.Transformer`: they zero padded positions, forward as written does not."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def compare(reference: nn.Module, run: Run, trial: Trial) -> Comparison:
    """How far `run` is from the masked dense model for one call."""
    call, want = trial.call, trial.expected
    with torch.no_grad():
        got = run(copied(call))
    error = worst_error(want, got)
    allowed = min((TOLERANCE[leaf.dtype] for leaf in want if _is_float(leaf)), default=1e-4)
    if error > allowed and _low_precision(want):
        return _against_float(reference, want, got, call)
    if error > allowed and worst_error(want, run_reference(reference, call).expected) > allowed:
        return Comparison(0.0, allowed, "not verified: the model itself is random, two runs of it differ")
    return Comparison(error, allowed)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype in TOLERANCE


def _low_precision(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.dtype in (torch.bfloat16, torch.float16) for leaf in leaves)


def _against_float(reference: nn.Module, want: Sequence[Any], got: Sequence[Any], call: Call) -> Comparison:
    """Both results against the fp32 masked model: the optimized one may err 1.5 times as much as PyTorch's."""
    exact = [_as_float(leaf) for leaf in run_reference(as_float(reference), _float_call(call)).expected]
    torchs = worst_error(exact, [_as_float(leaf) for leaf in want])
    ours = worst_error(exact, [_as_float(leaf) for leaf in got])
    return Comparison(ours, LOW_PRECISION_SLACK * torchs)


def _as_float(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point else leaf


def _float_call(call: Call) -> Call:
    leaves, spec = flatten(call)
    args, kwargs = pytree.tree_unflatten([_as_float(leaf) for leaf in leaves], spec)
    return args, kwargs


def as_float(reference: nn.Module) -> nn.Module:
    """The same model with every floating-point tensor in fp32; shares nothing that it changes."""
    named = [*reference.named_parameters(remove_duplicate=False), *reference.named_buffers(remove_duplicate=False)]
    return masked(reference, {name: _as_float(tensor.detach()) for name, tensor in named})


def wrong_sites(specialized: Specialized, leaves: Sequence[Any]) -> list[Decision]:
    """The decisions whose kernel disagrees with PyTorch on the values that reach it: bisection in one pass."""
    probe = _Probe(specialized)
    with torch.no_grad():
        probe.run(*leaves)
    return probe.wrong


class _Probe(fx.Interpreter):
    """Runs the folded model densely and, beside every sparse operator, its kernel on the same operands."""

    def __init__(self, specialized: Specialized) -> None:
        super().__init__(specialized.planned.folded.module, garbage_collect_values=False)
        sparse = [decision for decision in specialized.decisions if decision.kernel != DENSE]
        self.stored = dict(_stored_components(specialized.module))
        self.by_last = {decision.site.last: decision for decision in sparse}
        self.wrong: list[Decision] = []

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        decision = self.by_last.get(n)
        if decision is not None and not self._agrees(decision, result):
            self.wrong.append(decision)
        return result

    def _agrees(self, decision: Decision, expected: Tensor) -> bool:
        site, plan = decision.site, decision.plan.dumps()
        components = self.stored[site.last.name]
        x = self.env[site.node.all_input_nodes[0]]
        bias = self.env[site.node.args[2]] if site.bias is not None else None  # type: ignore[index]
        residual = self.env[site.residual] if site.residual is not None else None
        got = _run_site(site, components, x, bias, residual, plan)
        return relative_error(expected, got) <= TOLERANCE[expected.dtype]


def _run_site(
    site: Site, components: list[Tensor], x: Tensor, bias: Tensor | None, residual: Tensor | None, plan: str
) -> Tensor:
    target = OPERATORS[site.node.target]
    if site.op != "conv1d":
        return target(x, components, bias, residual, plan)  # type: ignore[no-any-return]
    tall = residual.unsqueeze(2) if residual is not None else None
    return target(x.unsqueeze(2), components, bias, tall, plan).squeeze(2)  # type: ignore[no-any-return]


def _stored_components(module: fx.GraphModule) -> Iterator[tuple[str, list[Tensor]]]:
    for node in module.graph.nodes:
        if node.target in OPERATORS.values():
            yield str(node.meta["site"]), [attribute(module, str(part.target)) for part in node.args[1]]
