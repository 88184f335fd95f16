"""Broadcast-compressed tensors: every dimension is either 1 (uniform along it) or the true size.

A compressed tensor stands for ``t.expand(true_shape)``; symbolic dimensions are always stored as 1. That is why a
mask over channels costs as many bytes as there are channels, whatever the batch and image size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sympy
import torch
from torch import Tensor

Size = int | sympy.Expr
"""A dimension: an int, or a sympy expression where the exported graph keeps it symbolic."""

Shape = tuple[Size, ...]


def shape_of(tensor: Tensor) -> Shape:
    """The shape with symbolic sizes as sympy expressions, so that comparing sizes adds no guard."""
    return tuple(d if isinstance(d, int) else d.node.expr for d in tensor.shape)


def uniform(rank: int, fill: bool | float, dtype: torch.dtype = torch.bool) -> Tensor:
    """A compressed tensor of `rank` dimensions that holds `fill` everywhere."""
    return torch.full([1] * rank, fill, dtype=dtype)


def compress(tensor: Tensor, dims: Iterable[int] | None = None) -> Tensor:
    """`tensor` with each of `dims` (all by default) narrowed to 1 where it is uniform."""
    for dim in range(tensor.dim()) if dims is None else dims:
        if tensor.shape[dim] > 1:
            first = tensor.narrow(dim, 0, 1)
            if bool((tensor == first).all()):
                tensor = first
    return tensor


def expand_dims(tensor: Tensor, shape: Shape, dims: Iterable[int]) -> Tensor:
    """`tensor` with the given dimensions at their true size; symbolic dimensions stay 1."""
    sizes = list(tensor.shape)
    for dim in dims:
        size = shape[dim]
        if isinstance(size, int):
            sizes[dim] = size
    return tensor.expand(sizes)


def align(tensor: Tensor, rank: int) -> Tensor:
    """`tensor` with leading dimensions of size 1 up to `rank`, as broadcasting aligns operands."""
    return tensor.reshape([1] * (rank - tensor.dim()) + list(tensor.shape))


def any_over(tensor: Tensor, dims: Iterable[int]) -> Tensor:
    """Logical OR over `dims`, kept as size 1 (through uint8: torch's bool reduction is hundreds of times slower)."""
    dims = [d for d in dims if tensor.shape[d] != 1]
    if not dims or tensor.numel() == 0:
        return tensor if not dims else tensor.any(dims[0], keepdim=True) if len(dims) == 1 else _empty_any(tensor, dims)
    return tensor.view(torch.uint8).amax(dims, keepdim=True).view(torch.bool)


def _empty_any(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        tensor = tensor.any(dim, keepdim=True)
    return tensor


def reduce_to(tensor: Tensor, shape: Shape) -> Tensor:
    """The adjoint of broadcasting: OR over every dimension that an operand of `shape` does not have."""
    extra = tensor.dim() - len(shape)
    if extra:
        tensor = any_over(tensor, range(extra)).reshape(tensor.shape[extra:])
    return any_over(tensor, [d for d, size in enumerate(shape) if size == 1])
