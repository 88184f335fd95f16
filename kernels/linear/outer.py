"""Block-sparse linear, outputs in vector lanes: each kept column of a block adds ``w[outputs] * x[t, column]``.

Activations stay row-major in and out, nothing is repacked. A *group* is as many consecutive outputs as a few vectors
hold; its weights are stored column after column, so that they stream. A part of the weight is small enough to stay in
L2 while the tokens pass, a few at a time so that their features stay in L1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.codegen.ir import F32, I32, I64, PTR, Function, Module, Type, Value, Variable
from sparta.kernels.formats import Bsr, Format
from sparta.kernels.formats.base import offsets_of
from sparta.kernels.linear.native import CALL, bind, cut, kernel_function, loop_over_parts, store_outputs, sum_of
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

_CHAINS = 8
"""Independent accumulators that keep two multiply-add pipes of latency 4 busy."""

_PART = 1 / 16
"""Part of L2 that the weights of one part take."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a group is held in registers."""

    lanes: int
    vectors: int
    """Vectors of one group."""
    tokens: int
    """Tokens computed together, at most."""

    @property
    def rows(self) -> int:
        """Outputs of a group."""
        return self.lanes * self.vectors

    def unroll(self, tokens: int) -> int:
        """Columns computed side by side, so that a few tokens still make enough independent accumulators."""
        return max(1, min(4, _CHAINS // (tokens * self.vectors)))

    @classmethod
    def of(cls, height: int, machine: Machine) -> Shape | None:
        """The shape for blocks of `height` rows; None if no vector divides them.

        Examples
        --------
        >>> from sparta.kernels.machine import machine_for
        >>> Shape.of(32, machine_for(frozenset(("avx2", "fma"))))
        Shape(lanes=8, vectors=2, tokens=6)
        """
        lanes = next((n for n in (16, 8, 4) if n <= machine.lanes and height % n == 0), 0)
        if not lanes:
            return None
        # Two vectors need the fewest loads per multiply-add that the registers allow.
        vectors = next(n for n in (2, 3, 1) if height // lanes % n == 0)
        spare = machine.registers - vectors - 2  # the weights, a broadcast, and one for LLVM's scheduler
        return cls(lanes, vectors, max(1, min(_CHAINS, spare // vectors)))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The weight as the kernel reads it."""

    starts: Tensor
    """[groups + 1] where the columns of each group start."""
    columns: Tensor
    """[n] which input feature each stored column multiplies."""
    weights: Tensor
    """[n, rows] the stored columns."""


def pack(weight: Bsr, rows: int) -> Packed:
    """The columns of `weight` that hold a nonzero, in groups of `rows` outputs."""
    height, width = weight.block
    pieces = height // rows
    groups = -(-weight.shape[0] // rows)
    # Piece p of a block goes to group (block row * pieces + p), behind the blocks to the left of it.
    group = (weight.row_indices()[:, None] * pieces + torch.arange(pieces)).flatten()
    order = group.argsort(stable=True)
    values = weight.values.to(torch.float32).view(-1, pieces, rows, width).transpose(2, 3)
    weights = values.reshape(-1, width, rows)[order]
    columns = weight.col_indices.long()[:, None] * width + torch.arange(width)
    columns = columns.repeat_interleave(pieces, 0)[order]
    kept = (weights != 0).any(-1)
    lengths = torch.bincount(group[order][:, None].expand(-1, width)[kept], minlength=groups)
    return Packed(offsets_of(lengths), columns[kept].int(), weights[kept])


def generate(problem: Linear, shape: Shape) -> Function:
    """The kernel for one shape of weight; its pattern is data."""
    module = Module()
    for valid in {shape.rows, problem.out_features % shape.rows} - {0}:
        _emit_finish(module, problem, shape, valid)
    for tokens in range(1, shape.tokens + 1):
        _Tile(module, problem, shape, tokens).emit()
    f = kernel_function(module, "outer", ("starts", "columns", "weights"))
    with loop_over_parts(f) as (first, last):
        # As few tiles as possible, all about equally large.
        tiles = (f["tokens"] + (shape.tokens - 1)) // shape.tokens
        with f.loop(0, tiles) as tile:
            begin, end = (i * f["tokens"] // tiles for i in (tile, tile + 1))
            _call_tile(f, problem, shape, (first, last), begin, end - begin)
    return f


def _call_tile(
    f: Function, problem: Linear, shape: Shape, groups: tuple[Value, Value], begin: Value, count: Value
) -> None:
    x = f.offset(f["x"], begin * problem.in_features)
    y, residual = (f.offset(f[name], begin * problem.out_features) for name in ("y", "residual"))
    packed = (f[name] for name in ("starts", "columns", "weights"))
    arguments = (x, y, f["bias"], residual, *packed, f["scratch"], *groups)
    for tokens in range(1, shape.tokens + 1):
        with f.when(f.compare("eq", count, tokens)):
            f.call(f"tile{tokens}", *arguments)


def _emit_finish(module: Module, problem: Linear, shape: Shape, valid: int) -> None:
    """The function that stores the first `valid` outputs of a group for some tokens, from sums in scratch memory.

    All tiles call it: activations are much code, which would be compiled for every token of every tile.
    """
    parameters: dict[str, Type] = dict.fromkeys(("sums", "y", "bias", "residual"), PTR)
    f = module.function(f"finish{valid}", {**parameters, "output": I64, "tokens": I64}, internal=True)
    with f.loop(0, f["tokens"]) as token:
        for lane in range(0, valid, shape.lanes):
            output = f["output"] + lane
            total = f.load(F32.vector(shape.lanes), f["sums"], token * shape.rows + lane)
            place = output + token * problem.out_features
            rest = min(shape.lanes, valid - lane)
            store_outputs(f, total, problem.epilogue, output=output, place=place, valid=rest)


class _Tile:
    """Emits the function that computes some groups for a fixed number of tokens."""

    def __init__(self, module: Module, problem: Linear, shape: Shape, tokens: int) -> None:
        pointers = ("x", "y", "bias", "residual", "starts", "columns", "weights", "scratch")
        parameters: dict[str, Type] = {**dict.fromkeys(pointers, PTR), "first": I64, "last": I64}
        self.f = module.function(f"tile{tokens}", parameters, internal=True)
        self.problem = problem
        self.shape = shape
        self.tokens = tokens
        self.type = F32.vector(shape.lanes)

    def emit(self) -> None:
        f, rows = self.f, self.shape.rows
        whole, rest = divmod(self.problem.out_features, rows)
        with f.loop(f["first"], f.minimum(f["last"], f.constant(I64, whole))) as group:
            self._group(group, rows)
        if rest:
            with f.when(f.compare("sgt", f["last"], whole)):
                self._group(f.constant(I64, whole), rest)

    def _group(self, group: Value, valid: int) -> None:
        """One group, of whose rows only the first `valid` exist."""
        f, shape = self.f, self.shape
        for (token, vector), accumulated in self._accumulate(group).items():
            f.store(accumulated, f["scratch"], token * shape.rows + vector * shape.lanes)
        output, tokens = group * shape.rows, f.constant(I64, self.tokens)
        f.call(f"finish{valid}", f["scratch"], f["y"], f["bias"], f["residual"], output, tokens)

    def _accumulate(self, group: Value) -> dict[tuple[int, int], Value]:
        """The sums over the columns of a group, by token and vector."""
        f, unroll = self.f, self.shape.unroll(self.tokens)
        start, stop = (f.load_index(I32, f["starts"], g) for g in (group, group + 1))
        places = [(token, vector) for token in range(self.tokens) for vector in range(self.shape.vectors)]
        sums = [{place: f.variable(self.type, 0.0) for place in places} for _ in range(unroll)]
        even = start + (stop - start) // unroll * unroll
        with f.loop(start, even, unroll) as column:
            for step in range(unroll):
                self._column(column + step, sums[step])
        if unroll > 1:
            with f.loop(even, stop) as column:
                self._column(column, sums[0])
        return {place: sum_of([part[place] for part in sums]) for place in places}

    def _column(self, column: Value, sums: dict[tuple[int, int], Variable]) -> None:
        f, shape = self.f, self.shape
        features = f.offset(f["x"], f.load_index(I32, f["columns"], column))
        weights = f.offset(f["weights"], column * shape.rows)
        vectors = [f.load(self.type, weights, vector * shape.lanes) for vector in range(shape.vectors)]
        for token in range(self.tokens):
            x = f.load_splat(features, token * self.problem.in_features, shape.lanes)
            for vector, weight in enumerate(vectors):
                total = sums[token, vector]
                total.set(f.fma(weight, x, total.get()))


@kernel()
class OuterLinear(Kernel):
    """Blocks of 4, 8, 16 or more rows, for any T; the best there is for small T."""

    name = "outer"
    problem = Linear
    format = "bsr"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Whether vectors divide the height of a block."""
        assert isinstance(weight, Bsr)
        return Shape.of(weight.block[0], machine) is not None

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """The blocks read once and multiplied; narrow groups of vectors are bound by loads instead."""
        assert isinstance(weight, Bsr)
        shape = Shape.of(weight.block[0], machine)
        assert shape is not None
        filled = shape.lanes / machine.lanes * (0.9 if shape.vectors > 1 else 0.6)
        groups = weight.shape[0] / shape.rows * -(-tokens // shape.tokens)
        work = machine.seconds(multiplies=weight.nnz * tokens / filled, streamed=weight.nbytes)
        return CALL + work + 10e-9 * groups

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The blocks packed column by column, and the code for their shape."""
        assert isinstance(problem, Linear) and isinstance(weight, Bsr)
        shape = Shape.of(weight.block[0], machine)
        assert shape is not None, "supports() says no"
        packed = pack(weight, shape.rows)
        share = machine.l2 * _PART * machine.cores
        parts = machine.cores * max(1, round(packed.weights.numel() * 4 / share))
        cuts = cut(packed.starts, parts, overhead=4)
        return bind(
            generate(problem, shape),
            problem,
            cuts=cuts,
            packed=(packed.starts, packed.columns, packed.weights),
            scratch=4 * shape.tokens * shape.rows,
        )
