"""Where tiles of the result go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparta.kernels.codegen.epilogue import finish
from sparta.kernels.codegen.ir import I64, PTR, Type, Value
from sparta.kernels.codegen.tiles import Access, Sink, Tile
from sparta.kernels.codegen.transpose import transposed
from sparta.kernels.problem import Epilogue


@dataclass(frozen=True, slots=True)
class _FinishingSink(Sink):
    """What both sinks share: the epilogue of a vector of the result."""

    out_features: int
    epilogue: Epilogue

    @property
    def parameters(self) -> Mapping[str, Type]:
        """The result and the operands of the epilogue."""
        return {"y": PTR, "bias": PTR, "residual": PTR}

    def _write(self, tile: Tile, sums: Value, bias: Value | None, place: Value, access: Access) -> None:
        """Emit the epilogue and the store of a vector at element `place` of the result."""
        f = tile.f
        residual = access.read(f["residual"], place) if self.epilogue.residual else None
        result = finish(f, sums, bias=bias, residual=residual, activation=self.epilogue.activation)
        access.write(result, f["y"], place)


@dataclass(frozen=True, slots=True)
class RowsSink(_FinishingSink):
    """Row-major ``y[tokens][out_features]``, transposed a square of vectors at a time.

    The number of tokens is the parameter ``tokens`` of the source.
    """

    def store(self, tile: Tile) -> None:
        """Emit the transposition of the tile; rows that fill no vector are masked."""
        f, lanes = tile.f, tile.width.lanes
        # Two vectors of tokens are a cache line of the sums.
        span = min(2, tile.width.vectors) * lanes
        stop = f.minimum(tile.start + tile.width.tokens, f["tokens"])
        whole = tile.last_row - tile.last_row % lanes
        ragged = self.out_features % lanes
        with f.loop(tile.start, stop, span) as token:
            with f.loop(tile.first_row, whole, lanes) as row:
                for group in range(0, span, lanes):
                    self._square(tile, row, token + group, tile.access())
            if ragged:
                with f.when(f.compare("slt", whole, tile.last_row)):
                    mask = f.first_lanes(f.constant(I64, ragged), lanes)
                    for group in range(0, span, lanes):
                        self._square(tile, whole, token + group, tile.access(mask))

    def _square(self, tile: Tile, row: Value, token: Value, access: Access) -> None:
        """Emit the stores of a vector of rows, for those of a vector of tokens that exist.

        The transposed square waits on the stack, since one epilogue in a loop compiles much faster than one per token.
        """
        f, width = tile.f, tile.width
        sums = f.offset(tile.output_row(row), token - tile.start)
        vectors = [f.load(width.vector, sums, lane * width.tokens) for lane in range(width.lanes)]
        square = f.array(width.vector, width.lanes)
        for number, vector in enumerate(transposed(f, vectors)):
            f.store(vector, square, number * width.lanes)
        bias = access.read(f["bias"], row) if self.epilogue.bias else None
        with f.loop(0, f.minimum(f["tokens"] - token, f.constant(I64, width.lanes))) as lane:
            place = (token + lane) * self.out_features + row
            self._write(tile, f.load(width.vector, square, lane * width.lanes), bias, place, access)


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
class PlanesSink(_FinishingSink):
    """Contiguous NCHW ``y[image][row][line][column]``; lattice pixels between the lines are dropped."""

    lattice: Lattice

    def store(self, tile: Tile) -> None:
        """Emit a loop over the lines that the tile touches."""
        f, grid = tile.f, self.lattice
        stop = f.minimum(tile.start + tile.width.tokens, f.constant(I64, grid.pixels))
        plane = tile.image * self.out_features
        with f.loop(tile.start // grid.pitch, (stop + (grid.pitch - 1)) // grid.pitch) as line:
            begin = line * grid.pitch
            left = f.maximum(tile.start, begin)
            count = f.minimum(stop, begin + grid.columns) - left
            with f.when(f.compare("sgt", count, 0)), f.loop(tile.first_row, tile.last_row) as row:
                sums = f.offset(tile.output_row(row), left - tile.start)
                place = ((plane + row) * grid.lines + line) * grid.columns + (left - begin)
                self._segment(tile, row, sums, place, count)

    def _segment(self, tile: Tile, row: Value, sums: Value, place: Value, count: Value) -> None:
        """Emit the stores of `count` consecutive pixels: the last vector overlaps the one before, or is masked."""
        f, lanes = tile.f, tile.width.lanes
        bias = f.load_splat(f["bias"], row, lanes) if self.epilogue.bias else None
        with f.when(f.compare("sge", count, lanes)), f.loop(0, count, lanes) as step:
            at = f.minimum(step, count - lanes)
            access = tile.access()
            self._write(tile, access.read(sums, at), bias, place + at, access)
        with f.when(f.compare("slt", count, lanes)):
            access = tile.access(f.first_lanes(count, lanes))
            self._write(tile, access.read(sums, 0), bias, place, access)
