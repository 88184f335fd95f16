"""Products of a packed tile with a sparse weight.

Weights are cut at the same blocks of features as the tiles: `starts[block][group]` says where the entries of a row (or
a group of rows) begin, `columns` holds the feature of each entry within its block as u16, `weights` its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sparta.kernels.codegen.ir import I16, I32, PTR, Function, Type, Value, Variable
from sparta.kernels.codegen.tiles import Compute, Tile, Width


def _entries(tile: Tile, block: Value, group: Value, groups: int) -> tuple[Value, Value]:
    """Where the entries of a group begin and end."""
    starts = tile.f.offset(tile.f["starts"], block * (groups + 1) + group, I32)
    return tile.f.load_index(I32, starts, 0), tile.f.load_index(I32, starts, 1)


def _feature(tile: Tile, entry: Value) -> Value:
    """Where the tokens of the feature of an entry are."""
    column = tile.f.load_index(I16, tile.f["columns"], entry)
    return tile.f.offset(tile.inputs, column * tile.width.tokens)


def _sums(tile: Tile, row: Value, is_first: Value, vectors: range) -> list[Variable]:
    """Accumulators that go on from what `outputs` holds, or from zero in the first block."""
    f, vector = tile.f, tile.width.vector
    zero = f.constant(vector, 0.0)
    before = (f.load(vector, row, k * tile.width.lanes) for k in vectors)
    return [f.variable(vector, f.select(is_first, zero, sums)) for sums in before]


def _unless_idle(f: Function, is_first: Value, begin: Value, end: Value) -> AbstractContextManager[None]:
    """Skip a group without entries in this block, unless its sums must be set to zero."""
    return f.when(is_first | f.compare("slt", begin, end))


class _Weighted(Compute):
    @property
    def parameters(self) -> Mapping[str, Type]:
        """The packed weight."""
        return {"starts": PTR, "columns": PTR, "weights": PTR}


@dataclass(frozen=True, slots=True)
class CsrCompute(_Weighted):
    """One row at a time, one entry per nonzero: a broadcast, and a multiply-add per vector of tokens.

    Narrow tiles use several sets of accumulators, or each addition would wait for the one before.
    """

    rows: int

    def accumulate(self, tile: Tile, block: Value) -> None:
        """Emit the loop over rows."""
        f, width = tile.f, tile.width
        is_first = f.compare("eq", block, 0)
        with f.loop(tile.first_row, tile.last_row) as row:
            begin, end = _entries(tile, block, row, self.rows)
            with _unless_idle(f, is_first, begin, end):
                outputs = tile.output_row(row)
                sums = _sums(tile, outputs, is_first, range(width.vectors))
                self._add_row(tile, begin, end, sums)
                for k, total in enumerate(sums):
                    f.store(total.get(), outputs, k * width.lanes)

    @staticmethod
    def _add_row(tile: Tile, begin: Value, end: Value, sums: list[Variable]) -> None:
        """Emit ``sums += entries * features``, as many entries side by side as it takes to fill the pipelines."""
        f, width = tile.f, tile.width
        sets = width.chains // width.vectors
        middle = end - (end - begin) % sets
        zero = f.constant(width.vector, 0.0)
        accumulators = [sums, *([f.variable(width.vector, zero) for _ in sums] for _ in range(sets - 1))]
        with f.loop(begin, middle, sets) as entry:
            for number, accumulator in enumerate(accumulators):
                _add_entry(tile, entry + number, accumulator)
        if sets == 1:
            return
        with f.loop(middle, end) as entry:
            _add_entry(tile, entry, sums)
        for k, total in enumerate(sums):
            for accumulator in accumulators[1:]:
                total.set(total.get() + accumulator[k].get())


def _add_entry(tile: Tile, entry: Value, sums: list[Variable]) -> None:
    f, width = tile.f, tile.width
    feature = _feature(tile, entry)
    weight = f.load_splat(f["weights"], entry, width.lanes)
    for k, total in enumerate(sums):
        total.set(f.fma(weight, f.load(width.vector, feature, k * width.lanes), total.get()))


@dataclass(frozen=True, slots=True)
class GroupCompute(_Weighted):
    """Groups of `height` rows that share their columns: each vector of tokens loaded serves all rows of the group."""

    rows: int
    height: int
    vectors: int
    """Vectors of tokens computed together; with `height`, what the register file holds."""

    @property
    def groups(self) -> int:
        """Number of groups."""
        return -(-self.rows // self.height)

    def accumulate(self, tile: Tile, block: Value) -> None:
        """Emit the loop over groups."""
        f = tile.f
        is_first = f.compare("eq", block, 0)
        with f.loop(tile.first_row, tile.last_row, self.height) as row:
            begin, end = _entries(tile, block, row // self.height, self.groups)
            outputs = tile.output_row(row)
            with _unless_idle(f, is_first, begin, end):
                for vectors in self._parts(tile.width):
                    self._add_group(tile, (begin, end), outputs, is_first, vectors)

    def _parts(self, width: Width) -> list[range]:
        """The vectors of a tile in about equal runs."""
        count = -(-width.vectors // self.vectors)
        bounds = [width.vectors * part // count for part in range(count + 1)]
        return [range(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]

    def _add_group(
        self, tile: Tile, entries: tuple[Value, Value], outputs: Value, is_first: Value, vectors: range
    ) -> None:
        f, width = tile.f, tile.width
        rows = [f.offset(outputs, row * width.tokens) for row in range(self.height)]
        sums = [_sums(tile, row, is_first, vectors) for row in rows]
        with f.loop(*entries) as entry:
            feature = _feature(tile, entry)
            weights = f.offset(f["weights"], entry * self.height)
            tokens = [f.load(width.vector, feature, k * width.lanes) for k in vectors]
            for row, accumulators in enumerate(sums):
                weight = f.load_splat(weights, row, width.lanes)
                for vector, total in zip(tokens, accumulators, strict=True):
                    total.set(f.fma(weight, vector, total.get()))
        for target, accumulators in zip(rows, sums, strict=True):
            for k, total in zip(vectors, accumulators, strict=True):
                f.store(total.get(), target, k * width.lanes)
