"""Patterns: the structure that the zeros of a weight have, recognized exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

Bytes: TypeAlias = npt.NDArray[np.uint8]

LARGEST_BLOCK = 64
"""Sides of a block beyond this gain nothing more in any kernel."""

N_OF_M = ((1, 4), (2, 4), (1, 2), (2, 8), (4, 8))
"""The N:M patterns looked for, most specific first."""

FILLED = 0.75
"""An N:M weight keeps at least this part of the N elements it may keep in a group; below, it is merely sparse."""


@dataclass(frozen=True, slots=True)
class Dense:
    """No zeros."""

    density: float = 1.0

    def __str__(self) -> str:
        return "dense"


@dataclass(frozen=True, slots=True)
class Channel:
    """Whole slices along `axes` are zero (filters, input channels, rows, columns); the rest is dense."""

    axes: tuple[int, ...]
    density: float

    def __str__(self) -> str:
        return "channel"


@dataclass(frozen=True, slots=True)
class Block:
    """Aligned tiles of `height` x `width` of the weight as a matrix are zero or kept as a whole."""

    height: int
    width: int
    density: float

    def __str__(self) -> str:
        return f"block {self.height}x{self.width}"


@dataclass(frozen=True, slots=True)
class NM:
    """At most `n` of `m` consecutive elements along `axis` of the weight as a matrix are kept."""

    n: int
    m: int
    axis: int
    density: float

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"


@dataclass(frozen=True, slots=True)
class Unstructured:
    """Zeros anywhere."""

    density: float

    def __str__(self) -> str:
        return "unstructured"


Pattern: TypeAlias = Dense | Channel | Block | NM | Unstructured


def find_pattern(weight: Tensor) -> Pattern:
    """The most structured pattern that `weight` (or its mask) has exactly.

    Parameters
    ----------
    weight
        Any rank; beyond 2-d it is read as the matrix ``[O, I * KH * KW]``, in which a dropped kernel of a convolution
        is a ``1 x KH*KW`` block. Ragged last blocks are allowed.

    Examples
    --------
    >>> import torch
    >>> str(find_pattern(torch.eye(4).repeat_interleave(8, 0).repeat_interleave(2, 1)))
    'block 8x2'
    >>> str(find_pattern(torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 3.0, 4.0, 0.0], [1.0, 2.0, 0.0, 0.0]])))
    '2:4'
    """
    zeros = _Zeros.of(weight)
    if zeros.kept == weight.numel():
        return Dense()
    return next(found for finder in _FINDERS for found in finder(zeros))


@dataclass(frozen=True, slots=True, eq=False)
class _Zeros:
    """Where a weight is not zero: as a matrix, and that with eight columns to a byte."""

    shape: tuple[int, ...]
    matrix: npt.NDArray[np.bool_]
    packed: Bytes
    kept: int

    @classmethod
    def of(cls, weight: Tensor) -> _Zeros:
        bits = np.ascontiguousarray((weight.detach() != 0).cpu().numpy())  # NaN counts as kept
        rows = bits.shape[0] if bits.ndim > 1 else 1
        matrix = bits.reshape(rows, bits.size // rows if rows else 0)
        return cls(tuple(weight.shape), matrix, np.packbits(matrix, axis=1), int(np.count_nonzero(matrix)))

    @property
    def density(self) -> float:
        return self.kept / self.matrix.size

    def column_bits(self, packed: Bytes) -> npt.NDArray[np.bool_]:
        """The OR over all rows of packed bits, one bool for each column."""
        bits = np.unpackbits(np.bitwise_or.reduce(packed, axis=0), count=self.matrix.shape[1])
        return bits.astype(np.bool_)


def _channels(zeros: _Zeros) -> Iterator[Channel]:
    """Slices of the first axis, of the second, or of both."""
    if len(zeros.shape) < 2:
        yield Channel(tuple(range(len(zeros.shape))), zeros.density)
        return
    rows = int(np.count_nonzero(zeros.packed.any(axis=1)))
    columns = zeros.column_bits(zeros.packed).reshape(zeros.shape[1], -1)
    channels, taps = int(np.count_nonzero(columns.any(axis=1))), columns.shape[1]
    if zeros.kept == rows * channels * taps:
        alive = (rows, channels)
        yield Channel(tuple(axis for axis in (0, 1) if alive[axis] < zeros.shape[axis]), zeros.density)


def _blocks(zeros: _Zeros) -> Iterator[Block]:
    """All tiles are uniform exactly when rows change only at multiples of the height, columns of the width."""
    packed = zeros.packed
    rows = np.flatnonzero((packed[1:] != packed[:-1]).any(axis=1)) + 1
    following = np.pad(packed[:, 1:], ((0, 0), (0, 1)))
    next_column = np.left_shift(packed, 1) | np.right_shift(following, 7)
    columns = np.flatnonzero(zeros.column_bits(np.bitwise_xor(packed, next_column))[:-1]) + 1
    height, width = _side(rows), _side(columns)
    if (height, width) != (1, 1):
        yield Block(height, width, zeros.density)


def _side(changes: npt.NDArray[np.intp]) -> int:
    """The largest divisor up to `LARGEST_BLOCK` of all positions where a row (or column) differs from the last."""
    common = int(np.gcd.reduce(changes)) if changes.size else LARGEST_BLOCK
    return max(side for side in range(1, LARGEST_BLOCK + 1) if common % side == 0)


def _n_of_m(zeros: _Zeros) -> Iterator[NM]:
    """Groups along either axis of the matrix."""
    for n, m in N_OF_M:
        if FILLED * n / m <= zeros.density <= n / m:
            for axis in (1, 0):
                if zeros.matrix.shape[axis] % m == 0 and _largest_group(zeros, m, axis) <= n:
                    yield NM(n, m, axis, zeros.density)


def _largest_group(zeros: _Zeros, m: int, axis: int) -> int:
    """The most elements that any aligned group of `m` along `axis` keeps; `m` divides 8."""
    packed = zeros.packed if axis == 1 else np.packbits(zeros.matrix, axis=0)
    groups_of_byte = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).reshape(256, 8 // m, m)
    largest_in_byte = groups_of_byte.sum(axis=2).max(axis=1)
    return int(largest_in_byte[packed].max())


def _anything(zeros: _Zeros) -> Iterator[Unstructured]:
    yield Unstructured(zeros.density)


_FINDERS: tuple[Callable[[_Zeros], Iterator[Pattern]], ...] = (_channels, _blocks, _n_of_m, _anything)
"""Most structured first."""
