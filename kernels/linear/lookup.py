"""Unstructured linear for one token: outputs in vector lanes, features looked up in registers or fetched one by one.

The columns are seen as windows of as many features as a vector has lanes. A *layer* holds at most one nonzero of every
row in every window: one permutation of the window's features serves a vector of outputs. As many layers as are well
filled are stored that way; what is left over is stored in slices (`Sell`), whose features are fetched one by one.

The token's features are copied to scratch memory with zeros behind them, where the padding of slices points. The sums
of slices are scattered to scratch memory, where the layers start from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.codegen.ir import F32, I16, I32, I64, Function, Module, Value, Variable
from sparta.kernels.formats import Csr, Format, Sell
from sparta.kernels.formats.sell import PADDING
from sparta.kernels.linear.native import CALL, bind, cut, kernel_function, loop_over_parts, store_outputs, sum_of
from sparta.kernels.machine import Isa, Machine
from sparta.kernels.problem import Linear, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

_LIMIT = 2**16 - 1
"""The largest 16-bit index; the column of zeros needs one, too."""

_QUAD = 4
"""16-bit indices loaded together."""

_NIBBLES = 8
"""Windows whose 4-bit places share a 32-bit word per lane."""

_WINDOW = 128
"""Outputs that stay on one thread: a window of the sorted slices, and whole vectors."""

_PERMUTE: dict[Isa, str] = {"avx512": "llvm.x86.avx512.permvar.sf.512", "avx2": "llvm.x86.avx2.permps"}
"""The instruction sets that permute a vector by a vector in one instruction."""

_FETCH: dict[Isa, float] = {"avx512": 0.55, "avx2": 0.8, "neon": 1.0, "generic": 1.2}
"""Cycles per feature that is fetched."""

_CHAINS = 4
"""Independent sums of a vector of outputs."""

_PERMUTED = 1.6
"""Cycles per vector of features that are looked up."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes that the code and the packed weight agree on."""

    out_features: int
    in_features: int
    isa: Isa
    lanes: int

    @classmethod
    def of(cls, problem: Problem, machine: Machine) -> Layout:
        """The layout for a problem on a machine."""
        return cls(*problem.matrix, machine.isa, machine.lanes)

    @property
    def block(self) -> int:
        """Features of the windows that share their words of places."""
        return _NIBBLES * self.lanes

    @property
    def padded(self) -> int:
        """The features and at least one zero, in whole blocks."""
        return (self.in_features // self.block + 1) * self.block

    @property
    def groups(self) -> int:
        """Vectors of outputs."""
        return -(-self.out_features // self.lanes)

    @property
    def worthwhile(self) -> float:
        """How many nonzeros a vector must hold on average for its layer to beat fetching them."""
        return _PERMUTED / _FETCH[self.isa] if self.isa in _PERMUTE else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The weight as the kernel reads it."""

    layers: int
    places: Tensor
    """[groups, layers, blocks, lanes] int32: which feature of its window a lane looks up, four bits per window."""
    weights: Tensor
    """[groups, layers, blocks, 8, lanes], zero where a row has nothing in the window."""
    rest: Sell
    """What the layers do not hold."""


def pack(weight: Csr, layout: Layout) -> Packed:
    """The nonzeros of `weight` in as many layers as are worthwhile, and slices."""
    lanes = layout.lanes
    rows, columns = weight.row_indices(), weight.col_indices.long()
    ranks = _ranks(rows * layout.padded + columns // lanes)
    slots = layout.groups * layout.padded // lanes
    filled = torch.bincount(ranks, minlength=1) / slots
    layers = int((filled >= layout.worthwhile).cumprod(0).sum())
    blocks = layout.padded // layout.block
    weights = torch.zeros((layout.groups, layers, blocks * _NIBBLES, lanes))
    places = torch.zeros(weights.shape, dtype=torch.int64)
    inside = ranks < layers
    where = tuple(index[inside] for index in (rows // lanes, ranks, columns // lanes, rows % lanes))
    weights[where] = weight.values[inside].to(torch.float32)
    places[where] = columns[inside] % lanes
    shifted = places.view(layout.groups, layers, blocks, _NIBBLES, lanes) << 4 * torch.arange(_NIBBLES)[:, None]
    rest = weight.values.new_zeros(weight.shape)
    rest[rows[~inside], columns[~inside]] = weight.values[~inside]
    return Packed(layers, shifted.sum(3).to(torch.uint32), weights, Sell.from_dense(rest, window=_WINDOW))


def _ranks(keys: Tensor) -> Tensor:
    """How many equal elements stand before each element of the nondecreasing `keys`."""
    first = torch.searchsorted(keys, keys)
    return torch.arange(keys.numel()) - first


def generate(problem: Linear, layout: Layout, height: int) -> Function:
    """The kernel for one shape of weight; its pattern is data."""
    arrays = ("rows", "starts", "columns", "values", "places", "weights")
    f = kernel_function(Module(), "lookup", arrays, sizes=("layers",))
    with f.loop(0, f["tokens"]) as token:
        emitter = _Emitter(f, problem, layout, height)
        emitter.copy_features(token)
        with loop_over_parts(f) as (first, last):
            emitter.sum_slices(first, last)
            emitter.sum_layers(token, first, last)
    return f


class _Emitter:
    """Emits the steps of the kernel; scratch memory holds the features, then the sums."""

    def __init__(self, f: Function, problem: Linear, layout: Layout, height: int) -> None:
        self.f = f
        self.problem = problem
        self.layout = layout
        self.height = height
        self.type = F32.vector(layout.lanes)
        self.sums = f.offset(f["scratch"], layout.padded)

    def copy_features(self, token: Value) -> None:
        """Copy the token's features and put zeros behind them."""
        f, size, layout = self.f, self.problem.in_features, self.layout
        x = f.offset(f["x"], token * size)
        whole = size // layout.lanes * layout.lanes
        with f.loop(layout.padded - layout.block, layout.padded, layout.lanes) as feature:
            f.store(f.constant(self.type, 0.0), f["scratch"], feature)
        with f.loop(0, whole, layout.lanes) as feature:
            f.store(f.load(self.type, x, feature), f["scratch"], feature)
        with f.loop(whole, size) as feature:
            f.store(f.load(F32, x, feature), f["scratch"], feature)

    def sum_slices(self, first: Value, last: Value) -> None:
        """Scatter the sums of the slices of some windows of outputs."""
        f, height, lanes = self.f, self.height, self.layout.lanes
        slices = -(-self.problem.out_features // height)
        per_window = _WINDOW // height
        with f.loop(first * per_window, f.minimum(last * per_window, slices)) as piece:
            for vector, total in enumerate(self._slice(piece)):
                for lane in range(lanes):
                    row = f.load_index(I32, f["rows"], piece * height + (vector * lanes + lane))
                    f.store(f.emit(F32, f"extractelement {total}, i64 {lane}"), self.sums, row)

    def _slice(self, piece: Value) -> list[Value]:
        """The sums of a slice, by vector."""
        f, height, lanes = self.f, self.height, self.layout.lanes
        totals = [f.variable(self.type, 0.0) for _ in range(height // lanes)]
        start, stop = (f.load_index(I32, f["starts"], s) * height for s in (piece, piece + 1))
        with f.loop(start, stop, height) as entry:
            for vector, total in enumerate(totals):
                place = entry + vector * lanes
                total.set(f.fma(f.load(self.type, f["values"], place), self._fetched(place), total.get()))
        return [total.get() for total in totals]

    def _fetched(self, place: Value) -> Value:
        """The features that a vector of entries multiplies, each from its own column."""
        f, lanes = self.f, self.layout.lanes
        columns = f.offset(f["columns"], place, I16)
        if self.layout.isa == "avx512":  # elsewhere, single loads are at least as fast as an instruction that gathers
            return f.gather(f["scratch"], f.convert("zext", f.load(I16.vector(lanes), columns), I32.vector(lanes)))
        features = Value(f, self.type, "poison")
        for quad in range(0, lanes, _QUAD):
            word = f.load(I64, f.offset(columns, quad, I16))
            for lane in range(_QUAD):
                feature = f.load(F32, f["scratch"], (word >> (16 * lane)) & _LIMIT)
                features = f.emit(self.type, f"insertelement {features}, {feature}, i64 {quad + lane}")
        return features

    def sum_layers(self, token: Value, first: Value, last: Value) -> None:
        """Add the layers to the sums of some windows of outputs, and store."""
        f, lanes = self.f, self.layout.lanes
        whole, rest = divmod(self.problem.out_features, lanes)
        per_window = _WINDOW // lanes
        with f.loop(first * per_window, f.minimum(last * per_window, whole)) as group:
            self._group(token, group, lanes)
        if rest:
            with f.when(f.compare("sgt", last * per_window, whole)):
                self._group(token, f.constant(I64, whole), rest)

    def _group(self, token: Value, group: Value, valid: int) -> None:
        f, lanes = self.f, self.layout.lanes
        output = group * lanes
        totals = [f.variable(self.type, f.load(self.type, self.sums, output))]
        totals += [f.variable(self.type, 0.0) for _ in range(_CHAINS - 1)]
        if self.layout.isa in _PERMUTE:
            self._layers(group, totals)
        place = output + token * self.problem.out_features
        store_outputs(f, sum_of(totals), self.problem.epilogue, output=output, place=place, valid=valid)

    def _layers(self, group: Value, totals: list[Variable]) -> None:
        """Add the layers of a vector of outputs to `totals`."""
        f, layout = self.f, self.layout
        blocks = layout.padded // layout.block
        with f.loop(0, f["layers"]) as layer, f.loop(0, blocks) as block:
            index = (group * f["layers"] + layer) * blocks + block
            words = f.load(I32.vector(layout.lanes), f["places"], index * layout.lanes)
            features = f.offset(f["scratch"], block * layout.block)
            weights = f.offset(f["weights"], index * layout.block)
            for window in range(_NIBBLES):
                weight = f.load(self.type, weights, window * layout.lanes)
                present = f.compare("une", weight, 0.0)
                # A row without a nonzero here must not see the feature: it may be infinite.
                kept = f.select(present, self._looked_up(features, window, words), f.constant(self.type, 0.0))
                total = totals[window % len(totals)]
                total.set(f.fma(weight, kept, total.get()))

    def _looked_up(self, features: Value, window: int, words: Value) -> Value:
        """The features of a window in the order of the lanes' places (the instruction ignores the bits above)."""
        f, lanes = self.f, self.layout.lanes
        row = f.load(self.type, features, window * lanes)
        return f.intrinsic(_PERMUTE[self.layout.isa], self.type, row, words >> (4 * window))


@kernel()
class LookupLinear(Kernel):
    """Unstructured weights for one token; right for any number, one after the other."""

    name = "lookup"
    problem = Linear
    format = "csr"

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Whether 16 bits can index the columns."""
        return weight.shape[1] < _LIMIT

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """Every nonzero fetched, which the layers about halve where they are well filled."""
        cycle = machine.seconds(multiplies=2 * machine.lanes, streamed=0)
        layered = 0.6 if machine.isa in _PERMUTE and weight.density * machine.lanes > 0.5 else 1.0
        fetched = weight.nnz * _FETCH[machine.isa] * layered * cycle
        work = max(fetched, machine.seconds(multiplies=0, streamed=weight.nnz * 7))
        return CALL + tokens * (work + 1e-9 * weight.shape[0])

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The nonzeros packed in layers and slices, and the code for the shape."""
        assert isinstance(problem, Linear) and isinstance(weight, Csr)
        layout = Layout.of(problem, machine)
        packed = pack(weight, layout)
        rest = packed.rest
        columns = torch.where(rest.col_indices == PADDING, layout.in_features, rest.col_indices).to(torch.uint16)
        arrays = (rest.row_indices, rest.slice_indices, columns, rest.values.to(torch.float32))
        return bind(
            generate(problem, layout, rest.height),
            problem,
            cuts=_cuts(weight, machine),
            packed=(*arrays, packed.places, packed.weights),
            sizes=(packed.layers,),
            scratch=4 * (layout.padded + rest.row_indices.numel() + layout.lanes),
        )


def _cuts(weight: Csr, machine: Machine) -> Tensor:
    """Windows of outputs in parts of equal work."""
    bounds = torch.cat([weight.crow_indices[:-1:_WINDOW], weight.crow_indices[-1:]])
    return cut(bounds, 4 * machine.cores, overhead=_WINDOW)
