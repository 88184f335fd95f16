"""Linear layers for many tokens: tiles of tokens in vector lanes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.codegen.computes import CsrCompute, GroupCompute, register_tile
from sparta.kernels.codegen.jit import load
from sparta.kernels.codegen.packing import PackedWeight, pack_bsr, pack_csr
from sparta.kernels.codegen.sinks import RowsSink
from sparta.kernels.codegen.sources import RowsSource
from sparta.kernels.codegen.tiled import Tiled, row_limit
from sparta.kernels.codegen.tiles import Compute, Tiling, tile_module
from sparta.kernels.formats import Bsr, Csr, Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel


def address(tensor: Tensor | None) -> int:
    """Where the elements of a tensor are; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


@dataclass(frozen=True, slots=True, eq=False)
class _TiledLinear:
    problem: Linear
    tiled: Tiled

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        tokens = x.shape[0]
        y = torch.empty((tokens, self.problem.out_features), dtype=torch.float32)
        arguments = (
            x.data_ptr(),
            tokens,
            *self.tiled.weight.addresses,
            y.data_ptr(),
            address(bias),
            address(residual),
        )
        self.tiled(arguments, images=1, tokens=tokens, threads=threads)
        return y


class _TileLinear(Kernel):
    """What the tiled kernels of all formats share."""

    problem = Linear

    @abstractmethod
    def pieces(self, weight: Format, tiling: Tiling, machine: Machine) -> tuple[PackedWeight, Compute]:
        """The packed weight and the code that multiplies with it."""

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The kernel, compiled or from the cache, and the weight packed for it."""
        assert isinstance(problem, Linear)
        tiling = Tiling.of(problem.matrix, machine)
        packed, compute = self.pieces(weight, tiling, machine)
        source, sink = RowsSource(problem.in_features), RowsSink(problem.out_features, problem.epilogue)
        module, entry = tile_module(tiling, source, compute, sink)
        return _TiledLinear(problem, Tiled(load(str(module), entry), tiling, packed, row_limit(tiling, machine)))


@kernel()
class CsrTileLinear(_TileLinear):
    """Unstructured weights."""

    name = "csr_tile"
    format = "csr"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Always."""
        return True

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        return 0.0

    def pieces(self, weight: Format, tiling: Tiling, machine: Machine) -> tuple[PackedWeight, Compute]:
        """Rows one by one."""
        assert isinstance(weight, Csr)
        return pack_csr(weight, tiling.block), CsrCompute(tiling.out_features)


@kernel()
class BsrTileLinear(_TileLinear):
    """Blocks of at least four rows."""

    name = "bsr_tile"
    format = "bsr"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Blocks whose rows fall into groups of four."""
        return isinstance(weight, Bsr) and weight.block[0] % 4 == 0

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        return 0.0

    def pieces(self, weight: Format, tiling: Tiling, machine: Machine) -> tuple[PackedWeight, Compute]:
        """Groups of rows."""
        assert isinstance(weight, Bsr)
        height, vectors = register_tile(weight.block[0], (machine.lanes, machine.registers))
        return pack_bsr(weight, tiling.block, height), GroupCompute(tiling.out_features, height, vectors)
