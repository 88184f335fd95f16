"""Unstructured linear for a few tokens: one vector of tokens per nonzero.

Tokens are taken 8 or 16 at a time. Their features are transposed into scratch memory, ``features[I + 1][width]``,
where each nonzero finds a whole vector; the last row stays zero, for the entries that pad a row of the weight. Sums of
as many outputs as a vector has lanes are transposed back and stored row-major.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.codegen.ir import F32, I16, I32, I64, PTR, Function, Module, Type, Value
from sparta.kernels.codegen.transpose import transposed
from sparta.kernels.formats import Csr, Format
from sparta.kernels.formats.base import offsets_of
from sparta.kernels.linear.native import CALL, bind, cut, kernel_function, loop_over_parts, store_outputs, sum_of
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

WIDTHS = (8, 16)
"""Tokens taken at a time."""

UNROLL = 4
"""Entries of a row computed side by side; rows are padded to a multiple of it."""

_LIMIT = 2**16 - 1
"""The largest 16-bit index; the column of zeros needs one, too."""

BLOCK = 16
"""Outputs that stay on one thread: a multiple of the lanes of every tile."""

_LOAD = 1.25
"""Time of a load in multiply-adds: processors do two of these and about 1.6 loads in a cycle."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """CSR with 16-bit column indices and rows padded with zeros in column I."""

    starts: Tensor
    columns: Tensor
    values: Tensor


def pack(weight: Csr) -> Packed:
    """The nonzeros of `weight`, each row padded to a multiple of `UNROLL` entries."""
    counts = (weight.crow_indices[1:] - weight.crow_indices[:-1]).long()
    starts = offsets_of(-(-counts // UNROLL) * UNROLL)
    rows = weight.row_indices()
    places = torch.arange(rows.numel()) + (starts[:-1] - weight.crow_indices[:-1])[rows]
    columns = torch.full((int(starts[-1]),), weight.shape[1])
    values = torch.zeros(columns.numel())
    columns[places] = weight.col_indices.long()
    values[places] = weight.values.to(torch.float32)
    return Packed(starts, columns.to(torch.uint16), values)


@dataclass(frozen=True, slots=True)
class Tile:
    """How some tokens are held in vectors."""

    width: int
    lanes: int

    @property
    def vectors(self) -> int:
        """Vectors that hold the tokens."""
        return self.width // self.lanes

    def scratch(self, in_features: int) -> int:
        """Bytes for the transposed features, the sums of a few outputs, and a square of these transposed."""
        return 4 * (self.width * (in_features + 1 + self.lanes) + self.lanes**2)


def tiles(machine: Machine) -> tuple[Tile, ...]:
    """A tile for each width."""
    return tuple(Tile(width, min(width, machine.lanes)) for width in WIDTHS)


def generate(problem: Linear, machine: Machine) -> Function:
    """The kernel for one shape of weight; its pattern is data."""
    module = Module()
    few, many = (_Emitter(module, problem, tile) for tile in tiles(machine))
    few.emit()
    many.emit()
    f = kernel_function(module, "small", ("starts", "columns", "values"))
    with f.loop(0, f["tokens"], many.tile.width) as token:
        left = f["tokens"] - token
        count = f.minimum(left, many.tile.width)
        with f.when(f.compare("sle", left, few.tile.width)):
            few.call(f, token, count)
        with f.when(f.compare("sgt", left, few.tile.width)):
            many.call(f, token, count)
    return f


class _Emitter:
    """Emits the function that computes one tile of tokens."""

    def __init__(self, module: Module, problem: Linear, tile: Tile) -> None:
        pointers = ("x", "y", "bias", "residual", "starts", "columns", "values", "cuts", "scratch")
        parameters: dict[str, Type] = dict.fromkeys(pointers, PTR)
        parameters |= dict.fromkeys(("count", "parts", "jobs", "job"), I64)
        self.f = module.function(f"tile{tile.width}", parameters, internal=True)
        self.problem = problem
        self.tile = tile
        self.type = F32.vector(tile.lanes)
        self.sums = (problem.in_features + 1) * tile.width
        """Where in the scratch memory the sums of a few outputs lie."""

    def call(self, f: Function, token: Value, count: Value) -> None:
        """Call the function for `count` tokens from `token` on."""
        x = f.offset(f["x"], token * self.problem.in_features)
        y, residual = (f.offset(f[name], token * self.problem.out_features) for name in ("y", "residual"))
        names = ("starts", "columns", "values", "cuts", "scratch")
        sizes = (count, f["parts"], f["jobs"], f["job"])
        f.call(self.f.name, x, y, f["bias"], residual, *(f[name] for name in names), *sizes)

    def emit(self) -> None:
        f, lanes = self.f, self.tile.lanes
        self._transpose_features()
        whole, rest = divmod(self.problem.out_features, lanes)
        with loop_over_parts(f) as (first, last):
            with f.loop(first * BLOCK, f.minimum(last * BLOCK, whole * lanes), lanes) as output:
                self._group(output, lanes)
            if rest:
                with f.when(f.compare("sgt", last * BLOCK, whole * lanes)):
                    self._group(f.constant(I64, whole * lanes), rest)

    def _transpose_features(self) -> None:
        """Fill ``features[I + 1][width]``; tokens that do not exist repeat the last one."""
        f, lanes, width = self.f, self.tile.lanes, self.tile.width
        whole = self.problem.in_features // lanes * lanes
        with f.loop(0, width, lanes) as token:
            rows = [self._token_row(token + lane) for lane in range(lanes)]
            with f.loop(0, whole, lanes) as feature:
                square = [f.load(self.type, row, feature) for row in rows]
                for lane, column in enumerate(transposed(f, square)):
                    f.store(column, f["scratch"], (feature + lane) * width + token)
            for left in range(whole, self.problem.in_features):
                for lane, row in enumerate(rows):
                    f.store(f.load(F32, row, left), f["scratch"], token + (left * width + lane))
            f.store(f.constant(self.type, 0.0), f["scratch"], token + self.problem.in_features * width)

    def _token_row(self, token: Value) -> Value:
        f = self.f
        return f.offset(f["x"], f.minimum(token, f["count"] - 1) * self.problem.in_features)

    def _group(self, output: Value, valid: int) -> None:
        """As many outputs as a vector has lanes, of which the first `valid` exist."""
        f, width = self.f, self.tile.width
        with f.loop(0, valid) as row:
            for vector, total in enumerate(self._row(output + row)):
                f.store(total, f["scratch"], row * width + (self.sums + vector * self.tile.lanes))
        with f.loop(0, width, self.tile.lanes) as token, f.when(f.compare("slt", token, f["count"])):
            self._store(output, token, valid)

    def _row(self, row: Value) -> list[Value]:
        """The sums of one output, by vector of tokens."""
        f, tile = self.f, self.tile
        chains = max(1, UNROLL // max(1, tile.vectors // 2))  # fewer where the tokens alone fill the pipes
        sums = [[f.variable(self.type, 0.0) for _ in range(tile.vectors)] for _ in range(chains)]
        start, stop = (f.load_index(I32, f["starts"], r) for r in (row, row + 1))
        with f.loop(start, stop, UNROLL) as entry:
            indices = f.load(I64, f.offset(f["columns"], entry, I16))
            for step in range(UNROLL):
                column = (indices >> (16 * step)) & _LIMIT
                features = f.offset(f["scratch"], column * tile.width)
                value = f.load_splat(f["values"], entry + step, tile.lanes)
                for vector, total in enumerate(sums[step % chains]):
                    total.set(f.fma(value, f.load(self.type, features, vector * tile.lanes), total.get()))
        return [sum_of([chain[vector] for chain in sums]) for vector in range(tile.vectors)]

    def _store(self, output: Value, token: Value, valid: int) -> None:
        """Transpose the sums of a square of outputs and tokens, and store them."""
        f, tile, sums = self.f, self.tile, self.f.offset(self.f["scratch"], self.sums)
        rows = [f.load(self.type, sums, token + lane * tile.width) for lane in range(tile.lanes)]
        square = f.offset(sums, tile.width * tile.lanes)
        for index, outputs in enumerate(transposed(f, rows)):
            f.store(outputs, square, index * tile.lanes)
        with f.loop(0, f.minimum(f["count"] - token, tile.lanes)) as lane:
            place = output + (token + lane) * self.problem.out_features
            total = f.load(self.type, square, lane * tile.lanes)
            store_outputs(f, total, self.problem.epilogue, output=output, place=place, valid=valid)


def _tile_cost(tile: Tile, problem: Linear, weight: Format, machine: Machine) -> float:
    multiply = machine.seconds(multiplies=machine.lanes, streamed=0)
    entries = weight.nnz * max(_LOAD * (1 + tile.vectors), tile.vectors) * multiply
    moved = (problem.in_features + problem.out_features) * tile.width
    return max(entries, machine.seconds(multiplies=0, streamed=weight.nnz * 6)) + 1e-10 * moved


def _tiles_for(tokens: int, machine: Machine) -> tuple[Tile, ...]:
    few, many = tiles(machine)
    whole, left = divmod(tokens, many.width)
    return (many,) * whole + ((few,) if 0 < left <= few.width else (many,) if left else ())


@kernel()
class SmallLinear(Kernel):
    """Unstructured weights for 2 to 15 tokens; right for any number."""

    name = "small"
    problem = Linear
    format = "csr"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Whether 16 bits can index the columns."""
        return weight.shape[1] < _LIMIT

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """Two loads and a multiply-add of a vector per nonzero and tile of tokens, and the transposes."""
        assert isinstance(problem, Linear)
        return CALL + sum(_tile_cost(tile, problem, weight, machine) for tile in _tiles_for(tokens, machine))

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The nonzeros packed with short indices, and the code for the shape."""
        assert isinstance(problem, Linear) and isinstance(weight, Csr)
        packed = pack(weight)
        bounds = torch.cat([packed.starts[:-1:BLOCK], packed.starts[-1:]])
        return bind(
            generate(problem, machine),
            problem,
            cuts=cut(bounds, 4 * machine.cores, overhead=64),
            packed=(packed.starts, packed.columns, packed.values),
            scratch=max(tile.scratch(problem.in_features) for tile in tiles(machine)),
        )
