"""Reference kernels: plain loops over the stored elements, portable, exact and slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparta.kernels.formats import Format
from sparta.kernels.linear.dense import finish
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Activation, Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

Loop = Callable[..., None]
"""``loop(x, crow_indices, col_indices, values, y)`` on numpy arrays."""


@dataclass(frozen=True, slots=True)
class SparseMatmul:
    """``x[T, I] -> x @ W.T`` in double precision, by a loop over the stored elements of W."""

    loop: Loop
    out_features: int
    arrays: tuple[Any, ...]

    @classmethod
    def of(cls, weight: Format) -> SparseMatmul:
        """The matmul with a weight stored as CSR or BSR."""
        from sparta.kernels.linear import loops  # lazily: compiling with numba takes a second

        loop: Loop = {"csr": loops.csr_matmul, "bsr": loops.bsr_matmul}[weight.name]
        stored = weight.components()
        arrays = tuple(stored[name].numpy() for name in ("crow_indices", "col_indices"))
        return cls(loop, weight.shape[0], (*arrays, weight.values.to(torch.float32).numpy()))

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.empty((x.shape[0], self.out_features), dtype=torch.float64)
        self.loop(x.detach().numpy(), *self.arrays, y.numpy())
        return y


@dataclass(frozen=True, slots=True)
class _ReferenceLinear:
    matmul: SparseMatmul
    activation: Activation

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        y = self.matmul(x)
        return finish(y if bias is None else y + bias, residual, self.activation).to(x.dtype)


class ReferenceKernel(Kernel):
    """What the reference kernels of all operators and formats share."""

    reference = True

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Always."""
        return True

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """One multiply per nanosecond."""
        return 1e-9 * weight.nnz * tokens


class _Reference(ReferenceKernel):
    problem = Linear

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The loop over the stored elements."""
        return _ReferenceLinear(SparseMatmul.of(weight), problem.epilogue.activation)


@kernel()
class CsrReference(_Reference):
    """A loop over the nonzeros."""

    name = "csr_reference"
    format = "csr"


@kernel()
class BsrReference(_Reference):
    """A loop over the blocks."""

    name = "bsr_reference"
    format = "bsr"
