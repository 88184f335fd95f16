"""Where tiles of the result go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparta.kernels.codegen.epilogue import finish
from sparta.kernels.codegen.ir import I64, PTR, Type, Value
from sparta.kernels.codegen.tiles import Sink, Tile
from sparta.kernels.codegen.transpose import transposed
from sparta.kernels.problem import Epilogue

_PARAMETERS = {"y": PTR, "bias": PTR, "residual": PTR}


@dataclass(frozen=True, slots=True)
class RowsSink(Sink):
    """Row-major ``y[tokens][out_features]``, transposed a square of vectors at a time."""

    out_features: int
    epilogue: Epilogue

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The result and the operands of the epilogue; the number of tokens is that of the source."""
        return _PARAMETERS

    def store(self, tile: Tile) -> None:
        """Emit the transposition of the tile."""
        f, lanes = tile.f, tile.width.lanes
        ragged = self.out_features % lanes
        # Two vectors of tokens are a cache line of the sums.
        span = min(2, tile.width.vectors) * lanes
        last = f.minimum(tile.start + tile.width.tokens, f["tokens"])
        whole = tile.last_row - tile.last_row % lanes
        with f.loop(tile.start, last, span) as token:
            with f.loop(tile.first_row, whole, lanes) as row:
                for group in range(0, span, lanes):
                    self._square(tile, row, token + group, None)
            if ragged:
                with f.when(f.compare("eq", tile.last_row, self.out_features)):
                    mask = f.first_lanes(f.constant(I64, ragged), lanes)
                    for group in range(0, span, lanes):
                        self._square(tile, whole, token + group, mask)

    def _square(self, tile: Tile, row: Value, token: Value, mask: Value | None) -> None:
        """Emit the stores of a vector of rows for the tokens that exist of a vector of them.

        The transposed square waits on the stack, since one epilogue in a loop compiles much faster than one per token.
        """
        f, width = tile.f, tile.width
        sums = f.offset(tile.output_row(row), token - tile.start)
        vectors = [f.load(width.vector, sums, lane * width.tokens) for lane in range(width.lanes)]
        square = f.array(width.vector, width.lanes)
        for lane, vector in enumerate(transposed(f, vectors)):
            f.store(vector, square, lane * width.lanes)
        bias = self._read(tile, mask, "bias", row) if self.epilogue.bias else None
        with f.loop(0, f.minimum(f["tokens"] - token, f.constant(I64, width.lanes))) as lane:
            place = (token + lane) * self.out_features + row
            self._finish(tile, f.load(width.vector, square, lane * width.lanes), place, bias, mask)

    @staticmethod
    def _read(tile: Tile, mask: Value | None, name: str, index: Value) -> Value:
        f, kind = tile.f, tile.width.vector
        return f.load(kind, f[name], index) if mask is None else f.masked_load(kind, f[name], mask, index)

    def _finish(self, tile: Tile, sums: Value, place: Value, bias: Value | None, mask: Value | None) -> None:
        f = tile.f
        residual = self._read(tile, mask, "residual", place) if self.epilogue.residual else None
        result = finish(f, sums, bias=bias, residual=residual, activation=self.epilogue.activation)
        if mask is None:
            f.store(result, f["y"], place)
        else:
            f.masked_store(result, f["y"], mask, place)


@dataclass(frozen=True, slots=True)
class Lattice:
    """The pixels that tiles run over: `lines` lines, `pitch` apart, of which the first `columns` pixels are real."""

    lines: int
    columns: int
    pitch: int

    @property
    def pixels(self) -> int:
        """Pixels from the first to the last real one."""
        return (self.lines - 1) * self.pitch + self.columns


@dataclass(frozen=True, slots=True)
class PlanesSink(Sink):
    """Contiguous NCHW ``y[image][row][line][column]``; lattice pixels between the lines are dropped."""

    out_features: int
    lattice: Lattice
    epilogue: Epilogue

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The result and the operands of the epilogue."""
        return _PARAMETERS

    def store(self, tile: Tile) -> None:
        """Emit a loop over the lines that the tile touches."""
        f, grid = tile.f, self.lattice
        stop = f.minimum(tile.start + tile.width.tokens, f.constant(I64, grid.pixels))
        first = tile.start // grid.pitch
        plane = tile.image * self.out_features
        with f.loop(first, (stop + (grid.pitch - 1)) // grid.pitch) as line:
            begin = line * grid.pitch
            left = f.maximum(tile.start, begin)
            count = f.minimum(stop, begin + grid.columns) - left
            with f.when(f.compare("sgt", count, 0)), f.loop(tile.first_row, tile.last_row) as row:
                sums = f.offset(tile.output_row(row), left - tile.start)
                place = ((plane + row) * grid.lines + line) * grid.columns + (left - begin)
                self._segment(tile, row, sums, place, count)

    def _segment(self, tile: Tile, row: Value, sums: Value, place: Value, count: Value) -> None:
        """Emit the stores of `count` consecutive pixels: the last vector overlaps the one before, or is masked."""
        f, width = tile.f, tile.width
        bias = f.load_splat(f["bias"], row, width.lanes) if self.epilogue.bias else None
        enough = f.compare("sge", count, width.lanes)
        with f.when(enough), f.loop(0, count, width.lanes) as step:
            at = f.minimum(step, count - width.lanes)
            self._finish(tile, sums, place + 0, at, bias, lambda base, i: f.load(width.vector, base, i), f.store)
        with f.when(f.compare("slt", count, width.lanes)):
            mask = f.first_lanes(count, width.lanes)
            zero = f.constant(I64, 0)
            self._finish(
                tile,
                sums,
                place,
                zero,
                bias,
                lambda base, i: f.masked_load(width.vector, base, mask, i),
                lambda value, base, i: f.masked_store(value, base, mask, i),
            )

    def _finish(
        self,
        tile: Tile,
        sums: Value,
        place: Value,
        at: Value,
        bias: Value | None,
        read: Callable[[Value, Value], Value],
        write: Callable[[Value, Value, Value], None],
    ) -> None:
        f = tile.f
        residual = read(f["residual"], place + at) if self.epilogue.residual else None
        result = finish(f, read(sums, at), bias=bias, residual=residual, activation=self.epilogue.activation)
        write(result, f["y"], place + at)
