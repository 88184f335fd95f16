"""PyTorch's own convolution: what every sparse kernel has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sparta.kernels.formats import Format
from sparta.kernels.linear.dense import finish
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Conv, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

_CALL = 5e-6
"""Seconds that PyTorch spends around a small convolution."""


@dataclass(frozen=True, slots=True)
class _DenseConv:
    """A convolution run by PyTorch, on PyTorch's threads whatever `threads` says."""

    weight: Tensor
    conv: Conv

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        conv = self.conv
        y = functional.conv2d(x, self.weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
        return finish(y, residual, conv.epilogue.activation)


def conv_weight(matrix: Tensor, conv: Conv) -> Tensor:
    """The weight [O, C / groups, KH, KW] of a matrix over all input channels; undoes `conv_matrix`."""
    blocks = matrix.view(conv.groups, conv.out_channels // conv.groups, conv.groups, -1)
    own = torch.stack([blocks[group, :, group] for group in range(conv.groups)])
    return own.reshape(conv.out_channels, conv.in_channels // conv.groups, *conv.kernel)


@kernel()
class DenseConv(Kernel):
    """``torch.nn.functional.conv2d`` and the epilogue, one operator at a time."""

    name = "dense_conv"
    problem = Conv
    format = "dense"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Always."""
        return True

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """The whole weight multiplied for every pixel; libraries reach about 60 % of the peak."""
        assert isinstance(problem, Conv)
        stored = weight.nnz / problem.groups
        return _CALL + machine.seconds(multiplies=stored * tokens / 0.6, streamed=stored * 4)

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The weight bound to PyTorch's operator."""
        assert isinstance(problem, Conv)
        return _DenseConv(conv_weight(weight.to_dense(), problem), problem)
