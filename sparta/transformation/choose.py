"""Choose how to run one weighted operator: estimate every candidate, measure the best few against dense."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels import Compiled, Kernel, find, host_machine, kernels_for
from sparta.kernels.problem import Conv, Linear, Problem
from sparta.tesa.errors import KernelCompileError
from sparta.transformation.decisions import Measured, decision_key, recall, remember
from sparta.transformation.measure import fastest, measure
from sparta.transformation.plan import bucket_of
from sparta.transformation.weight import Weight

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


def choose(
    weight: Weight,
    tokens: int,
    *,
    threads: int,
    only: tuple[str, ...] | None = None,
    trust_estimates: bool = False,
) -> Choice:
    """The best way to run an operator at `tokens` columns on this machine; dense where nothing wins by 5 %.

    Parameters
    ----------
    only
        Kernel names to choose among regardless of dense.
    trust_estimates
        Take the cheapest estimate without measuring.
    """
    if trust_estimates:
        ranked = _ranked(weight, tokens, only)
        return Choice(ranked[0].name if ranked else DENSE, "lowest estimate, not measured", {})
    key = decision_key(
        weight.problem, bucket_of(tokens), weight.profile(), host_machine(), threads, str(weight.dense.dtype), only
    )
    measured = recall(key)
    if measured is None:
        measured = _measured(weight, tokens, _ranked(weight, tokens, only)[:MEASURED], threads)
        remember(key, measured)
    return _decided(measured, only)


def dense_kernel(problem: Problem) -> Kernel:
    """PyTorch's own operator."""
    return find(DENSE_KERNELS[type(problem)])


def _decided(measured: Measured, only: tuple[str, ...] | None) -> Choice:
    sparse = {name: seconds for name, seconds in measured.seconds.items() if name != DENSE}
    if not sparse:
        return Choice(DENSE, "no sparse kernel is estimated near dense" if only is None else "unsupported here", {})
    best = min(sparse, key=lambda name: sparse[name])
    if only is not None:
        return Choice(best, "the only kernels allowed", measured.seconds)
    if fastest(measured.seconds, DENSE) == DENSE:
        gain = measured.seconds[DENSE] / sparse[best]
        return Choice(DENSE, f"best sparse kernel ({best}) only {gain:.2f}x dense", measured.seconds)
    return Choice(best, f"fastest of {len(measured.seconds)} measured", measured.seconds)


def _ranked(weight: Weight, tokens: int, only: tuple[str, ...] | None) -> list[Kernel]:
    """Sparse kernels that can run the problem and are not hopeless, cheapest estimate first."""
    problem, machine = weight.problem, host_machine()
    costs: dict[str, float] = {}
    for name in weight.formats():
        stored = weight.stored(name)
        for entry in kernels_for(problem, format=name):
            if (only is None or entry.name in only) and entry.supports(problem, stored, machine):
                costs[entry.name] = entry.cost(problem, stored, tokens, machine)
    if only is None:
        limit = HOPELESS * dense_kernel(problem).cost(problem, weight.stored(DENSE), tokens, machine)
        costs = {name: cost for name, cost in costs.items() if cost <= limit}
    return [find(name) for name in sorted(costs, key=lambda name: costs[name])]


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


def _measured(weight: Weight, tokens: int, entries: list[Kernel], threads: int) -> Measured:
    """Latencies of the candidates and of dense, all fed the model's own element type."""
    if not entries:
        return Measured({})
    x, bias, residual = (
        tensor if tensor is None else tensor.to(weight.dense.dtype) for tensor in example_input(weight.problem, tokens)
    )
    assert x is not None
    runs = {entry.name: build(entry, weight) for entry in entries} | {DENSE: build_dense(weight)}

    def bound(run: Compiled) -> Callable[[], Tensor]:
        return lambda: run(x, bias, residual, threads)

    with torch.inference_mode():
        return Measured(measure({name: bound(run) for name, run in runs.items() if run is not None}))


def build_dense(weight: Weight) -> Compiled:
    """PyTorch's own operator with this weight."""
    return dense_kernel(weight.problem).build(weight.problem, weight.stored(DENSE), host_machine())


def build(entry: Kernel, weight: Weight) -> Compiled | None:
    """The kernel specialized for the weight, or None (logged) where its code does not compile here."""
    try:
        return typed(entry.build(weight.problem, weight.stored(entry.format), host_machine()))
    except KernelCompileError as error:
        log.warning("kernel %s is left out: %s", entry.name, error)
        return None


def typed(run: Compiled) -> Compiled:
    """A kernel that takes and returns the model's own element type: kernels compute in fp32, 16-bit is converted."""

    def converted(x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        if x.dtype == torch.float32:
            return run(x, bias, residual, threads)
        wide_bias = None if bias is None else bias.float()
        wide_residual = None if residual is None else residual.float()
        return run(x.float(), wide_bias, wide_residual, threads).to(x.dtype)

    return converted
