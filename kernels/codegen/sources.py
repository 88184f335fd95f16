"""Where tiles of the input come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparta.kernels.codegen.ir import I32, I64, PTR, Type, Value
from sparta.kernels.codegen.tiles import Access, Source, Tile
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
        """Emit the transposition of a block; features that fill no vector are masked."""
        f, lanes = tile.f, tile.width.lanes
        count = tile.features(block)
        whole = count - count % lanes
        ragged = self.in_features % lanes
        with f.loop(0, tile.width.tokens, lanes) as group:
            rows = [self._row(tile, group + lane, block) for lane in range(lanes)]
            with f.loop(0, whole, lanes) as feature:
                self._square(tile, rows, feature, group, lanes, tile.access())
            if ragged:
                with f.when(f.compare("slt", whole, count)):
                    mask = f.first_lanes(f.constant(I64, ragged), lanes)
                    self._square(tile, rows, whole, group, ragged, tile.access(mask))

    def _row(self, tile: Tile, token: Value, block: Value) -> Value:
        f = tile.f
        existing = f.minimum(tile.start + token, f["tokens"] - 1)
        return f.offset(f["x"], existing * self.in_features + block * tile.tiling.block)

    @staticmethod
    def _square(tile: Tile, rows: list[Value], feature: Value, group: Value, count: int, access: Access) -> None:
        """Emit the transposition of `count` features of a group of tokens."""
        f, tokens = tile.f, tile.width.tokens
        target = f.offset(tile.inputs, feature * tokens + group)
        columns = transposed(f, [access.read(row, feature) for row in rows])
        for lane, column in enumerate(columns[:count]):
            f.store(column, target, lane * tokens)


@dataclass(frozen=True, slots=True)
class PlanesSource(Source):
    """Planes of pixels: feature i of pixel p is ``planes[image][offsets[i] + p]``."""

    image_floats: int
    limit: int | None
    """Pixels of an image, beyond which nothing may be read; None if reading on is harmless."""

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The planes and the offset of each feature."""
        return {"planes": PTR, "offsets": PTR}

    def pack(self, tile: Tile, block: Value) -> None:
        """Emit the copy of a block; in the last tile of an image, masked."""
        f, width = tile.f, tile.width
        steps = range(0, width.tokens, width.lanes)
        if self.limit is None:
            self._copy(tile, block, [tile.access() for _ in steps])
            return
        left = f.constant(I64, self.limit) - tile.start
        with f.when(f.compare("sge", left, width.tokens)):
            self._copy(tile, block, [tile.access() for _ in steps])
        with f.when(f.compare("slt", left, width.tokens)):
            self._copy(tile, block, [tile.access(f.first_lanes(left - step, width.lanes)) for step in steps])

    def _copy(self, tile: Tile, block: Value, accesses: list[Access]) -> None:
        """Emit the copy of a block, with an access for each vector of a feature."""
        f, width = tile.f, tile.width
        planes = f.offset(f["planes"], tile.image * self.image_floats + tile.start)
        offsets = f.offset(f["offsets"], block * tile.tiling.block, I32)
        with f.loop(0, tile.features(block)) as feature:
            plane = f.offset(planes, f.load_index(I32, offsets, feature))
            target = f.offset(tile.inputs, feature * width.tokens)
            for k, access in enumerate(accesses):
                f.store(access.read(plane, k * width.lanes), target, k * width.lanes)
