"""Layouts: which logical indices of every dimension of a tensor are physically there.

A layout has one entry for each dimension, a sorted int64 tensor of the kept logical indices, or None for all of them.
Symbolic dimensions are always whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch import Tensor

from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape, Size

Kept = Tensor | None
Layout = tuple[Kept, ...]


def whole(rank: int) -> Layout:
    """The layout of a tensor that keeps all its elements."""
    return (None,) * rank


def indices(kept: Kept, size: Size) -> Tensor:
    """The kept logical indices, spelled out."""
    return torch.arange(int(size)) if kept is None else kept


def count(kept: Kept, size: Size) -> Size:
    """How many indices are kept: the physical size of the dimension."""
    return size if kept is None else len(kept)


def membership(kept: Kept, size: int) -> Tensor:
    """A bool vector over the logical indices: is it kept?"""
    if kept is None:
        return torch.ones(size, dtype=torch.bool)
    return torch.zeros(size, dtype=torch.bool).index_fill_(0, kept, True)


def from_membership(member: Tensor) -> Kept:
    """The indices where `member` is True, or None where it is everywhere."""
    return None if bool(member.all()) else member.nonzero().reshape(-1)


def simplify(kept: Kept, size: Size) -> Kept:
    """None in place of an index list that is complete."""
    return None if kept is None or len(kept) == size else kept


def same(left: Kept, right: Kept) -> bool:
    """Whether both keep the same indices (both simplified)."""
    return left is right or (left is not None and right is not None and torch.equal(left, right))


def same_layout(left: Layout, right: Layout) -> bool:
    """Whether both layouts keep the same indices in every dimension."""
    return all(map(same, left, right))


def contains(outer: Kept, inner: Kept, size: Size) -> bool:
    """Whether every index of `inner` is in `outer`."""
    if outer is None or outer is inner:
        return True
    return bool((membership(outer, int(size)) | ~membership(inner, int(size))).all())


def union(left: Kept, right: Kept, size: Size) -> Kept:
    """The indices that either keeps."""
    if left is None or right is None:
        return None
    return from_membership(membership(left, int(size)) | membership(right, int(size)))


def intersect(left: Kept, right: Kept, size: Size) -> Kept:
    """The indices that both keep."""
    if left is None or right is None:
        return right if left is None else left
    return from_membership(membership(left, int(size)) & membership(right, int(size)))


def whole_blocks(kept: Kept, size: int, block: int) -> Kept:
    """The indices of all aligned blocks that `kept` touches.

    Examples
    --------
    >>> whole_blocks(torch.tensor([1, 5]), 9, 4)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    if kept is None or block == 1:
        return kept
    touched = torch.zeros(-(-size // block), dtype=torch.bool).index_fill_(0, kept // block, True)
    return from_membership(touched.repeat_interleave(block)[:size])


def positions(wanted: Tensor, source: Kept, size: Size) -> Tensor:
    """Where each wanted logical index lies in a dimension laid out as `source`; -1 where it is absent."""
    if source is None:
        return wanted
    table = torch.full((int(size),), -1)
    table[source] = torch.arange(len(source))
    return table[wanted]


def run(positions: Tensor) -> tuple[int, int] | None:
    """`(start, stop)` when the positions are consecutive, so that a slice selects them; None otherwise."""
    if len(positions) == 0:
        return None
    start, length = int(positions[0]), len(positions)
    consecutive = int(positions[-1]) == start + length - 1 and bool((positions.diff() == 1).all())
    return (start, start + length) if consecutive else None


def take(tensor: Tensor, layout: Layout) -> Tensor:
    """The elements of a (compressed) constant that `layout` keeps; the tensor itself when that is all of them."""
    for dim, kept in enumerate(layout):
        if kept is not None and tensor.shape[dim] != 1:
            tensor = tensor.index_select(dim, kept)
    return tensor


def known_value(tesa: TeSA) -> Tensor:
    """The compressed value, zero where it is not known."""
    if tesa.is_constant:
        return tesa.value
    return torch.where(tesa.known, tesa.value, torch.zeros((), dtype=tesa.value.dtype))


def presence(layout: Layout, shape: Shape) -> Tensor:
    """A compressed bool tensor: the element is physically there."""
    present = torch.ones([1] * len(layout), dtype=torch.bool)
    for dim, kept in enumerate(layout):
        if kept is not None:
            extent = [1] * len(layout)
            extent[dim] = -1
            present = present & membership(kept, int(shape[dim])).reshape(extent)
    return present


def physical(layout: Layout, shape: Shape) -> Shape:
    """The physical shape of a tensor of logical `shape`."""
    return tuple(count(kept, size) for kept, size in zip(layout, shape, strict=True))


def digest(layout: Layout) -> tuple[bytes | None, ...]:
    """A hashable stand-in for the layout."""
    return tuple(None if kept is None else kept.numpy().tobytes() for kept in layout)


def segments(left: Sequence[Size], right: Sequence[Size]) -> list[tuple[slice, slice]]:
    """Minimal runs of dimensions with equal products: how a reshape maps dimensions to dimensions.

    Examples
    --------
    >>> segments((2, 6, 4), (2, 24))
    [(slice(0, 1, None), slice(0, 1, None)), (slice(1, 3, None), slice(1, 2, None))]
    """
    left_products, right_products = _products(left), _products(right)
    end = len(left) + len(right)
    cuts = [(0, 0)]
    for total in range(1, end + 1):
        i, j = cuts[-1]
        options = ((m, total - m) for m in range(i, len(left) + 1) if j <= total - m <= len(right))
        cuts += [(m, n) for m, n in options if total == end or left_products[m] == right_products[n]][:1]
    return [(slice(i, m), slice(j, n)) for (i, j), (m, n) in zip(cuts[:-1], cuts[1:], strict=True)]


def _products(sizes: Sequence[Size]) -> list[Size]:
    products: list[Size] = [1]
    for size in sizes:
        products.append(products[-1] * size if isinstance(size, int) else sympy.expand(products[-1] * size))
    return products
