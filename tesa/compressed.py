"""Broadcast-compressed tensors: every dimension is either 1 (uniform along it) or the true size.

A compressed tensor stands for ``t.expand(true_shape)``; symbolic dimensions are always stored as 1. That is why a
mask over channels costs as many bytes as there are channels, whatever the batch and image size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import sympy
import torch
from torch import Tensor

Size: TypeAlias = "int | sympy.Expr"
"""A dimension: an int, or a sympy expression where the exported graph keeps it symbolic."""

Shape = tuple[Size, ...]


def shape_of(tensor: Tensor) -> Shape:
    """The shape with symbolic sizes as sympy expressions, so that comparing sizes adds no guard."""
    return tuple(size_of(d) for d in tensor.shape)


def size_of(size: int | torch.SymInt) -> Size:
    """`size` as an int where it is a number, else as a sympy expression (reading it adds no guard)."""
    if isinstance(size, int):
        return size
    expression: sympy.Expr = size.node.expr
    return int(expression) if expression.is_Integer else expression


def static_sizes(shape: Shape) -> list[int]:
    """`shape` with symbolic sizes, along which compressed tensors are uniform, as 1."""
    return [size if isinstance(size, int) else 1 for size in shape]


def uniform(rank: int, fill: bool | float, dtype: torch.dtype = torch.bool) -> Tensor:
    """A compressed tensor of `rank` dimensions that holds `fill` everywhere."""
    return torch.full([1] * rank, fill, dtype=dtype)


def compress(tensor: Tensor, dims: Iterable[int] | None = None) -> Tensor:
    """`tensor` with each of `dims` (all by default) narrowed to 1 where it is uniform."""
    for dim in range(tensor.dim()) if dims is None else dims:
        if tensor.shape[dim] > 1:
            first = tensor.narrow(dim, 0, 1)
            if everywhere(tensor == first):
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
    """`tensor` with leading dimensions of size 1 added, or dropped, up to `rank`, as broadcasting aligns operands."""
    extra = tensor.dim() - rank
    return tensor.reshape(tensor.shape[extra:] if extra > 0 else [1] * -extra + list(tensor.shape))


def any_over(tensor: Tensor, dims: Iterable[int]) -> Tensor:
    """Logical OR over `dims`, kept as size 1 (through uint8: torch's bool reduction is hundreds of times slower)."""
    return _reduce(tensor, dims, torch.amax, empty=False)


def all_over(tensor: Tensor, dims: Iterable[int]) -> Tensor:
    """Logical AND over `dims`, kept as size 1."""
    return _reduce(tensor, dims, torch.amin, empty=True)


def _reduce(tensor: Tensor, dims: Iterable[int], extreme: Callable[..., Tensor], *, empty: bool) -> Tensor:
    reduced = [d % tensor.dim() for d in dims if tensor.shape[d] != 1]
    if not reduced:
        return tensor
    if any(tensor.shape[d] == 0 for d in reduced):
        return torch.full([1 if d in reduced else size for d, size in enumerate(tensor.shape)], empty)
    return extreme(tensor.view(torch.uint8), reduced, keepdim=True).view(torch.bool)


def anywhere(tensor: Tensor) -> bool:
    """Whether any element of a bool tensor is True."""
    return bool(any_over(tensor, range(tensor.dim())))


def everywhere(tensor: Tensor) -> bool:
    """Whether every element of a bool tensor is True."""
    return bool(all_over(tensor, range(tensor.dim())))


def reduce_to(tensor: Tensor, shape: Shape) -> Tensor:
    """The adjoint of broadcasting: OR over every dimension that an operand of `shape` does not have."""
    extra = tensor.dim() - len(shape)
    if extra:
        tensor = any_over(tensor, range(extra)).reshape(tensor.shape[extra:])
    return any_over(tensor, [d for d, size in enumerate(shape) if size == 1])
