"""Choose how to run one weighted operator: estimate every candidate, measure the best few against dense."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparta.kernels import Compiled, Format, Kernel, conv_matrix, find, find_format, host_machine, kernels_for
from sparta.kernels.problem import Conv, Linear, Problem
from sparta.tesa.errors import KernelCompileError
from sparta.tesa.patterns import Block, Pattern, find_pattern
from sparta.transformation.decisions import Measured, decision_key, digest, recall, remember
from sparta.transformation.measure import fastest, measure
from sparta.transformation.plan import bucket_of

log = logging.getLogger("sparta.transformation")

MEASURED = 3
"""How many sparse candidates are measured: the cheapest by estimate."""

HOPELESS = 3.0
"""A candidate estimated this many times slower than dense is not measured."""

DENSE = "dense"

DENSE_KERNELS: Mapping[type[Problem], str] = {Linear: "dense", Conv: "dense_conv"}
"""Operator -> the kernel that is PyTorch's own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel chosen for one weight at one T, and the latencies it was chosen by (seconds, empty if unmeasured)."""

    kernel: str
    reason: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A constant weight in every form a candidate may ask for.

    Parameters
    ----------
    dense
        The weight as PyTorch has it, `[O, I]` or `[O, C / groups, KH, KW]`, contiguous.
    matrix
        The same as a matrix over all input channels.
    pattern
        The structure of its zeros.
    """

    dense: Tensor
    matrix: Tensor
    pattern: Pattern
    _stored: dict[str, Format] = field(default_factory=dict)

    @classmethod
    def of(cls, weight: Tensor, problem: Problem) -> Weight:
        """The weight of an operator, with its pattern recognized."""
        matrix = conv_matrix(weight, problem.groups) if isinstance(problem, Conv) else weight
        return cls(weight, matrix, find_pattern(weight))

    @property
    def density(self) -> float:
        """Fraction of the weight's elements that are not zero."""
        return float((self.dense != 0).sum()) / max(1, self.dense.numel())

    def stored(self, name: str) -> Format:
        """The weight in the storage format `name`."""
        if name not in self._stored:
            self._stored[name] = find_format(name).from_dense(self.matrix, **self.parameters(name))
        return self._stored[name]

    def parameters(self, name: str) -> dict[str, Any]:
        """What the storage format `name` needs to know besides the values."""
        block = (self.pattern.height, self.pattern.width) if isinstance(self.pattern, Block) else (1, 1)
        return {"block": block} if name == "bsr" else {}

    def formats(self) -> Iterator[str]:
        """The storage formats worth trying for this pattern."""
        yield "csr"
        if isinstance(self.pattern, Block):
            yield "bsr"


def choose(
    problem: Problem,
    weight: Weight,
    tokens: int,
    *,
    threads: int,
    only: tuple[str, ...] | None = None,
    trust_estimates: bool = False,
) -> Choice:
    """The best way to run `problem` at `tokens` columns on this machine; dense where nothing wins by 5 %.

    Parameters
    ----------
    only
        Kernel names to choose among regardless of dense.
    trust_estimates
        Take the cheapest estimate without measuring.
    """
    ranked = _ranked(problem, weight, tokens, only)
    if not ranked:
        return Choice(DENSE, "no sparse kernel supports it" if only is None else "no allowed kernel supports it", {})
    if trust_estimates:
        return Choice(ranked[0][1].name, "lowest estimate, not measured", {})
    if only is not None:
        ranked = ranked[: MEASURED + 1]
    machine = host_machine()
    dense = dense_kernel(problem)
    limit = HOPELESS * dense.cost(problem, weight.stored(DENSE), tokens, machine) if only is None else float("inf")
    hopeful = [entry for cost, entry in ranked if cost <= limit][:MEASURED]
    if not hopeful:
        return Choice(DENSE, "every estimate is far slower than dense", {})
    key = decision_key(problem, bucket_of(tokens), _key(weight, hopeful), machine, threads, str(weight.dense.dtype))
    measured = recall(key) or _measured(problem, weight, tokens, hopeful, threads)
    remember(key, measured)
    return _decided(measured, only)


def dense_kernel(problem: Problem) -> Kernel:
    """PyTorch's own operator."""
    return find(DENSE_KERNELS[type(problem)])


def _key(weight: Weight, entries: list[Kernel]) -> str:
    return digest(weight.dense) + "".join(entry.name for entry in entries)


def _decided(measured: Measured, only: tuple[str, ...] | None) -> Choice:
    times = measured.seconds
    if only is not None:
        allowed = {name: time for name, time in times.items() if name != DENSE} or times
        return Choice(min(allowed, key=lambda name: allowed[name]), "the only kernels allowed", times)
    best = fastest(times, DENSE)
    gain = times[DENSE] / min(times.values())
    reason = f"fastest of {len(times)} measured" if best != DENSE else f"best sparse kernel only {gain:.2f}x dense"
    return Choice(best, reason, times)


def _ranked(
    problem: Problem, weight: Weight, tokens: int, only: tuple[str, ...] | None
) -> list[tuple[float, Kernel]]:
    """Sparse kernels that can run the problem, cheapest estimate first."""
    machine = host_machine()
    found = []
    for name in weight.formats():
        stored = weight.stored(name)
        for entry in kernels_for(problem, format=name):
            allowed = only is None or entry.name in only
            if allowed and entry.supports(problem, stored, machine):
                found.append((entry.cost(problem, stored, tokens, machine), entry))
    return sorted(found, key=lambda pair: pair[0])


def example_input(problem: Problem, tokens: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Random x, bias and residual of the problem's shapes, fp32, with about `tokens` columns."""
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    if isinstance(problem, Linear):
        sizes = (tokens, problem.in_features), (tokens, problem.out_features)
    else:
        pixels = problem.out_image
        batch = max(1, round(tokens / (pixels[0] * pixels[1])))
        sizes = (batch, problem.in_channels, *problem.image), (batch, problem.out_channels, *pixels)
    bias = torch.randn(problem.matrix[0]) if problem.epilogue.bias else None
    return torch.randn(sizes[0]), bias, torch.randn(sizes[1]) if problem.epilogue.residual else None


def _measured(
    problem: Problem, weight: Weight, tokens: int, entries: list[Kernel], threads: int
) -> Measured:
    """Latencies of the candidates and of dense, which runs in the model's own element type."""
    arguments = tuple(
        tensor if tensor is None else tensor.to(weight.dense.dtype) for tensor in example_input(problem, tokens)
    )
    compiled = {entry.name: build(entry, problem, weight) for entry in entries}
    runs = {name: _bound(run, arguments, threads) for name, run in compiled.items() if run is not None}
    dense = dense_kernel(problem).build(problem, weight.stored(DENSE), host_machine())
    x, bias, residual = arguments
    assert x is not None
    runs[DENSE] = lambda: dense(x, bias, residual, threads)
    with torch.inference_mode():
        return Measured(measure(runs))


def _bound(run: Compiled, arguments: tuple[Tensor | None, ...], threads: int) -> Any:
    x, bias, residual = arguments
    assert x is not None
    return lambda: run_typed(run, x, bias, residual, threads)


def run_typed(run: Compiled, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
    """The kernel's result in the type of `x`; kernels compute in fp32, so narrower types are converted around them."""
    if x.dtype == torch.float32:
        return run(x, bias, residual, threads)
    wide_bias = None if bias is None else bias.float()
    wide_residual = None if residual is None else residual.float()
    return run(x.float(), wide_bias, wide_residual, threads).to(x.dtype)


def build(entry: Kernel, problem: Problem, weight: Weight) -> Compiled | None:
    """The kernel specialized for the weight, or None (logged) where its code does not compile here."""
    try:
        return entry.build(problem, weight.stored(entry.format), host_machine())
    except KernelCompileError as error:
        log.warning("kernel %s is left out: %s", entry.name, error)
        return None
