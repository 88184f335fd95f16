"""Where tiles of the input come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparta.kernels.codegen.ir import I32, I64, PTR, Type, Value
from sparta.kernels.codegen.tiles import Source, Tile
from sparta.kernels.codegen.transpose import transposed


@dataclass(frozen=True, slots=True)
class RowsSource(Source):
    """Row-major ``x[tokens][in_features]``, transposed a square of vectors at a time.

    Rows beyond the last token repeat it: lanes are independent, and theirs are not stored.
    """

    in_features: int

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The data and the number of tokens."""
        return {"x": PTR, "tokens": I64}

    def pack(self, tile: Tile, block: Value) -> None:
        """Emit the transposition of a block."""
        f, lanes = tile.f, tile.width.lanes
        first = block * tile.tiling.block
        ragged = self.in_features % lanes
        with f.loop(0, tile.width.tokens, lanes) as group:
            rows = [self._row(tile, group + lane, first) for lane in range(lanes)]
            whole = tile.features(block) - (f.select(self._is_last(tile, block), *self._both(tile, ragged)))
            with f.loop(0, whole, lanes) as feature:
                self._square(tile, [f.load(tile.width.vector, row, feature) for row in rows], feature, group)
            if ragged:
                with f.when(self._is_last(tile, block)):
                    mask = f.first_lanes(f.constant(I64, ragged), lanes)
                    vectors = [f.masked_load(tile.width.vector, row, mask, whole) for row in rows]
                    self._square(tile, vectors, whole, group, ragged)

    @staticmethod
    def _is_last(tile: Tile, block: Value) -> Value:
        return tile.f.compare("eq", block, tile.tiling.blocks - 1)

    @staticmethod
    def _both(tile: Tile, ragged: int) -> tuple[Value, Value]:
        return tile.f.constant(I64, ragged), tile.f.constant(I64, 0)

    def _row(self, tile: Tile, token: Value, feature: Value) -> Value:
        f = tile.f
        last = f["tokens"] - 1
        return f.offset(f["x"], f.minimum(tile.start + token, last) * self.in_features + feature)

    @staticmethod
    def _square(tile: Tile, rows: list[Value], feature: Value, group: Value, count: int | None = None) -> None:
        """Emit the stores of `count` features (all by default) of one group of tokens."""
        target = tile.f.offset(tile.inputs, feature * tile.width.tokens + group)
        for lane, column in enumerate(transposed(tile.f, rows)[:count]):
            tile.f.store(column, target, lane * tile.width.tokens)


@dataclass(frozen=True, slots=True)
class PlanesSource(Source):
    """Feature planes of images: feature i of token p is ``planes[image][offsets[i] + p]``.

    With `limit`, planes end after that many tokens, and what lies behind is not read.
    """

    image_floats: int
    limit: int | None

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The planes and the offset of each feature."""
        return {"planes": PTR, "offsets": PTR}

    def pack(self, tile: Tile, block: Value) -> None:
        """Emit the copy of a block."""
        f, width = tile.f, tile.width
        planes = f.offset(f["planes"], tile.image * self.image_floats + tile.start)
        if self.limit is None:
            self._copy(tile, block, planes)
            return
        left = self.value_of(tile, self.limit) - tile.start
        inside = f.compare("sge", left, width.tokens)
        with f.when(inside):
            self._copy(tile, block, planes)
        with f.when(f.compare("slt", left, width.tokens)):
            self._copy(tile, block, planes, left)

    @staticmethod
    def value_of(tile: Tile, number: int) -> Value:
        """A constant i64."""
        return tile.f.constant(I64, number)

    @staticmethod
    def _copy(tile: Tile, block: Value, planes: Value, left: Value | None = None) -> None:
        """Emit the copy of all tokens, or of the `left` ones only."""
        f, width = tile.f, tile.width
        steps = range(0, width.tokens, width.lanes)
        masks = {step: f.first_lanes(left - step, width.lanes) for step in steps} if left else {}
        offsets = f.offset(f["offsets"], block * tile.tiling.block, I32)
        with f.loop(0, tile.features(block)) as feature:
            plane = f.offset(planes, f.load_index(I32, offsets, feature))
            target = f.offset(tile.inputs, feature * width.tokens)
            for step in steps:
                if masks:
                    vector = f.masked_load(width.vector, plane, masks[step], step)
                else:
                    vector = f.load(width.vector, plane, step)
                f.store(vector, target, step)
