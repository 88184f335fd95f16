"""Transposing a square of vectors in registers."""

from __future__ import annotations

from collections.abc import Sequence

from sparta.kernels.codegen.ir import Function, Value

_LANE = 4
"""Floats of the 128-bit pieces that x86 shuffles cheaply; every vector is a whole number of them."""


def _within(lanes: int, pattern: Sequence[int]) -> list[int]:
    """A shuffle of two vectors that applies `pattern` (0-3 from the first, 4-7 from the second) to each 128 bits."""
    pieces = range(0, lanes, _LANE)
    return [piece + (lane if lane < _LANE else lane - _LANE + lanes) for piece in pieces for lane in pattern]


def _quads(f: Function, rows: Sequence[Value]) -> list[Value]:
    """The 4 x 4 squares of four rows, each transposed in place."""
    lanes = rows[0].type.lanes
    low, high = _within(lanes, (0, 4, 1, 5)), _within(lanes, (2, 6, 3, 7))
    first, second = _within(lanes, (0, 1, 4, 5)), _within(lanes, (2, 3, 6, 7))
    a, b, c, d = rows
    ab, cd = f.shuffle(a, b, low), f.shuffle(c, d, low)
    ab_high, cd_high = f.shuffle(a, b, high), f.shuffle(c, d, high)
    pairs = ((ab, cd), (ab_high, cd_high))
    return [f.shuffle(left, right, half) for left, right in pairs for half in (first, second)]


def _exchanged(f: Function, vectors: list[Value]) -> list[Value]:
    """The square whose elements are 128-bit pieces, transposed: one butterfly per bit of the index."""
    lanes = vectors[0].type.lanes
    distance = 1
    while distance < len(vectors):
        block = distance * _LANE
        low = [lane if not lane & block else lanes + lane - block for lane in range(lanes)]
        high = [lane + block if not lane & block else lanes + lane for lane in range(lanes)]
        result = list(vectors)
        for index in range(len(vectors)):
            if not index & distance:
                a, b = vectors[index], vectors[index + distance]
                result[index], result[index + distance] = f.shuffle(a, b, low), f.shuffle(a, b, high)
        vectors = result
        distance *= 2
    return vectors


def transposed(f: Function, rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of n vectors with n lanes (4, 8 or 16)."""
    assert len(rows) == rows[0].type.lanes, "only squares are transposed"
    quads = [_quads(f, rows[i : i + _LANE]) for i in range(0, len(rows), _LANE)]
    columns = [_exchanged(f, [quad[lane] for quad in quads]) for lane in range(_LANE)]
    return [columns[i % _LANE][i // _LANE] for i in range(len(rows))]
