"""The text of each piece of a tiled kernel, for a narrow tile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparta.kernels.codegen.computes import CsrCompute, GroupCompute
from sparta.kernels.codegen.ir import I64, PTR, Module
from sparta.kernels.codegen.sinks import Lattice, PlanesSink, RowsSink
from sparta.kernels.codegen.sources import PlanesSource, RowsSource
from sparta.kernels.codegen.tiles import Compute, Piece, Sink, Source, Tile, Tiling, Width
from sparta.kernels.conv.geometry import Geometry
from sparta.kernels.conv.spread import spread_module
from sparta.kernels.problem import Conv, Epilogue

_WIDTH = Width(lanes=4, vectors=2, chains=4)
_PIECES: dict[str, Piece] = {
    "rows_source": RowsSource(in_features=30),
    "planes_source": PlanesSource(image_floats=900, limit=100),
    "csr_compute": CsrCompute(rows=24),
    "group_compute": GroupCompute(rows=24, height=4, vectors=1),
    "rows_sink": RowsSink(24, Epilogue(True, True, "relu")),
    "planes_sink": PlanesSink(24, Epilogue(bias=True), Lattice(lines=5, columns=5, pitch=7)),
}


def _text(piece: Piece) -> str:
    """A module with a function that does nothing but `piece`."""
    module = Module()
    own = dict.fromkeys(("inputs", "outputs"), PTR) | dict.fromkeys(("image", "start", "first", "last", "block"), I64)
    f = module.function("piece", {**piece.parameters, "tokens": I64, **own})
    places = (f[name] for name in ("image", "start", "first", "last", "inputs", "outputs"))
    tile = Tile(f, Tiling(24, 30, 16, (_WIDTH,)), _WIDTH, *places)
    if isinstance(piece, Source):
        piece.pack(tile, f["block"])
    elif isinstance(piece, Compute):
        piece.accumulate(tile, f["block"])
    else:
        assert isinstance(piece, Sink)
        piece.store(tile)
    return str(module)


@pytest.mark.parametrize("name", list(_PIECES))
def test_piece(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.ll", _text(_PIECES[name]))


def test_spread(golden: Callable[[str, str], None]) -> None:
    conv = Conv(4, 3, (3, 3), (2, 2), (1, 1), (1, 1), 1, (9, 9))
    golden("spread.ll", str(spread_module(Geometry(conv), lanes=4)[0]))
