"""Linear layers for many tokens: tiles of tokens in vector lanes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparta.kernels.codegen.products import can_tile, estimate, make_product
from sparta.kernels.codegen.sinks import RowsSink
from sparta.kernels.codegen.sources import RowsSource
from sparta.kernels.codegen.tiled import Tiled, address, floats, operand
from sparta.kernels.formats import Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel


@dataclass(frozen=True, slots=True, eq=False)
class _TiledLinear:
    """A call: ``[T, I] -> [T, O]``."""

    linear: Linear
    tiled: Tiled

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        tokens, features = x.shape
        assert features == self.linear.in_features, f"x has {features} features, not {self.linear.in_features}"
        x = floats(x)
        y = x.new_empty(tokens, self.linear.out_features)
        bias = operand(bias, self.linear.epilogue.bias, self.linear.out_features)
        residual = operand(residual, self.linear.epilogue.residual, y.numel())
        result = y.data_ptr(), address(bias), address(residual)
        arguments = (x.data_ptr(), tokens, *self.tiled.weight.addresses, *result)
        self.tiled(arguments, images=1, tokens=tokens, threads=threads)
        return y


class _TileLinear(Kernel):
    """What the tiled kernels of all formats share."""

    problem = Linear

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Any linear with a weight that the tiles can multiply with."""
        return can_tile(weight)

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """Multiply-adds, loads and row changes of all tiles, and transposing in and out."""
        return estimate(weight, machine, tokens=tokens, activation=problem.epilogue.activation)

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The kernel, compiled or from the cache, and the weight packed for it."""
        assert isinstance(problem, Linear)
        product = make_product(weight, machine)
        source, sink = RowsSource(problem.in_features), RowsSink(problem.out_features, problem.epilogue)
        pieces = (source, product.compute, sink)
        return _TiledLinear(problem, Tiled.build(product.tiling, product.weight, pieces, machine))


@kernel()
class CsrTileLinear(_TileLinear):
    """Unstructured weights: one broadcast and a row of vectors per nonzero."""

    name = "csr_tile"
    format = "csr"


@kernel()
class BsrTileLinear(_TileLinear):
    """Blocks whose rows fall into groups of four: a group and a few vectors of tokens share registers."""

    name = "bsr_tile"
    format = "bsr"
