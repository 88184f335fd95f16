"""The plain loops of the reference kernels; numba compiles them on first use, so import this module lazily."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Indices = NDArray[np.int32]
Floats = NDArray[np.float32]


@njit(cache=True, nogil=True)
def csr_matmul(x: Floats, crow: Indices, columns: Indices, values: Floats, y: NDArray[np.float64]) -> None:
    """Fills ``y[T, O] = x[T, I] @ W.T`` for W in CSR, accumulating in double precision."""
    for token in range(x.shape[0]):
        for row in range(crow.shape[0] - 1):
            total = 0.0
            for j in range(crow[row], crow[row + 1]):
                total += np.float64(values[j]) * x[token, columns[j]]
            y[token, row] = total


@njit(cache=True, nogil=True)
def bsr_matmul(x: Floats, crow: Indices, columns: Indices, values: Floats, y: NDArray[np.float64]) -> None:
    """Fills ``y[T, O] = x[T, I] @ W.T`` for W in BSR with blocks `values` [n, bh, bw], edges cut off."""
    _, height, width = values.shape
    for token in range(x.shape[0]):
        for row in range(y.shape[1]):
            total = 0.0
            for j in range(crow[row // height], crow[row // height + 1]):
                first = columns[j] * width
                for k in range(min(width, x.shape[1] - first)):
                    total += np.float64(values[j, row % height, k]) * x[token, first + k]
            y[token, row] = total
