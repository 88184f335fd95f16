"""PyTorch's own linear: what every sparse kernel has to beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from sparta.kernels.formats import Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Activation, Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
}

_CALL = 2e-6
"""Seconds that PyTorch spends around a small operator."""


def finish(y: Tensor, residual: Tensor | None, activation: Activation) -> Tensor:
    """The epilogue in PyTorch: ``act(y + residual)``, the bias being in `y` already."""
    return _ACTIVATIONS[activation](y if residual is None else y + residual)


@dataclass(frozen=True, slots=True)
class _DenseLinear:
    """A linear run by PyTorch, on PyTorch's threads whatever `threads` says."""

    weight: Tensor
    activation: Activation

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        return finish(functional.linear(x, self.weight, bias), residual, self.activation)


@kernel()
class DenseLinear(Kernel):
    """``torch.nn.functional.linear`` and the epilogue, one operator at a time."""

    name = "dense"
    problem = Linear
    format = "dense"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Always."""
        return True

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """The whole matrix read and multiplied; libraries reach about 70 % of the peak."""
        return _CALL + machine.seconds(multiplies=weight.nnz * tokens / 0.7, streamed=weight.nbytes)

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The weight bound to PyTorch's operator."""
        return _DenseLinear(weight.to_dense(), problem.epilogue.activation)
