"""The dense way to run an operator: PyTorch's own library, the fallback and the measure of everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from sparta.kernels import Compiled
from sparta.kernels.problem import Activation, Conv, Linear, Problem

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
}
"""Activation of an epilogue -> PyTorch's function."""


def dense_run(problem: Problem, weight: Tensor) -> Compiled:
    """The operator with its epilogue as PyTorch runs it, in the type of the input."""
    contract = _contraction(problem, weight)
    activate = ACTIVATIONS[problem.epilogue.activation]

    def run(x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        y = contract(x, bias)
        return activate(y if residual is None else y + residual)

    return run


def _contraction(problem: Problem, weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    if isinstance(problem, Linear):
        return lambda x, bias: functional.linear(x, weight, bias)
    stride, padding, dilation, groups = problem.stride, problem.padding, problem.dilation, problem.groups
    return lambda x, bias: torch.conv2d(x, weight, bias, stride, padding, dilation, groups)


def dense_weight(matrix: Tensor, problem: Problem) -> Tensor:
    """The weight as PyTorch wants it, from the matrix over all input channels: the inverse of `conv_matrix`."""
    if isinstance(problem, Linear):
        return matrix
    kernel = problem.kernel
    full = matrix.reshape(problem.out_channels, problem.in_channels, *kernel)
    if problem.groups == 1:
        return full
    return _own_group(full, problem)


def _own_group(full: Tensor, problem: Conv) -> Tensor:
    """Of `[O, C, KH, KW]`, for each output channel the input channels of its own group."""
    groups = problem.groups
    blocks = full.reshape(groups, problem.out_channels // groups, groups, -1, *problem.kernel)
    own = torch.arange(groups)
    return blocks[own, :, own].reshape(problem.out_channels, -1, *problem.kernel).contiguous()
