"""Shape-only operators: the same elements under another shape."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, Rule, aten, register
from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape, Size, align, any_over, reduce_to, static_sizes

Segment = tuple[list[int], list[int]]
"""Neighboring dimensions of one shape, and those of another that hold the same elements."""


def reshaping(*names: str) -> None:
    """Rows of operators that keep the order of the elements: reshape, flatten, squeeze."""
    for name in names:
        register(name, Rule(_reshape, _reshape_backward))


def segments(old: Shape, new: Shape) -> list[Segment]:
    """The finest split of two shapes of equally many elements into runs with equal products.

    Sizes are compared as expressions, so the split holds for every value of a symbolic size; what cannot be matched
    that way is one last segment.

    Examples
    --------
    >>> segments((4, 6, 5), (4, 2, 3, 5))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    old_ends, new_ends = _prefix_products(old), _prefix_products(new)
    found, old_start, new_start = [], 0, 0
    for product, old_end in old_ends.items():
        if product in new_ends:
            found.append((_wide(old, old_start, old_end), _wide(new, new_start, new_ends[product])))
            old_start, new_start = old_end, new_ends[product]
    rest = _wide(old, old_start, len(old)), _wide(new, new_start, len(new))
    return [*found, rest] if any(rest) else found


def _wide(shape: Shape, start: int, stop: int) -> list[int]:
    return [d for d in range(start, stop) if shape[d] != 1]


def _prefix_products(shape: Shape) -> dict[Size, int]:
    """Product of the first n sizes -> n, for every n that ends in a size other than 1."""
    ends: dict[Size, int] = {}
    product: Size = 1
    for d, size in enumerate(shape):
        if size != 1:
            product = product * size
            ends[sympy.expand(product) if isinstance(product, sympy.Expr) else product] = d + 1
    return ends


def _mixed_dims(tensor: Tensor, old: Shape, new: Shape) -> list[int]:
    """Dimensions along which `tensor` varies although they are merged with, or split into, symbolic ones."""
    return [
        d
        for before, after in segments(old, new)
        if not all(isinstance(size, int) for size in _sizes(old, before) + _sizes(new, after))
        for d in before
        if tensor.shape[d] != 1
    ]


def _sizes(shape: Shape, dims: Sequence[int]) -> list[Size]:
    return [shape[d] for d in dims]


def reshape_compressed(tensor: Tensor, old: Shape, new: Shape) -> Tensor:
    """A compressed tensor of true shape `old` as one of true shape `new`; only segments that vary are expanded."""
    if 0 in old or 0 in new:
        return tensor.flatten()[:1].reshape([1] * len(new)) if tensor.numel() else tensor.reshape(static_sizes(new))
    before, after = [1] * len(old), [1] * len(new)
    for old_dims, new_dims in segments(old, new):
        if any(tensor.shape[d] != 1 for d in old_dims):
            for dims, sizes, shape in ((old_dims, before, old), (new_dims, after, new)):
                for d in dims:
                    sizes[d] = int(shape[d])
    return tensor.expand(before).reshape(after)


def reshape_need(need: Tensor, old: Shape, new: Shape) -> Tensor:
    """The need of a reshaped tensor, widened where a symbolic size leaves no other way to say it."""
    return reshape_compressed(any_over(need, _mixed_dims(need, old, new)), old, new)


def reshape_tesa(tesa: TeSA, new: Shape) -> TeSA:
    """The attribute after a reshape; what varies along dimensions that mix with symbolic ones is forgotten."""
    mixed = {*_mixed_dims(tesa.known, tesa.shape, new), *_mixed_dims(tesa.value, tesa.shape, new)}
    source = tesa.uniform_over(mixed)
    known, value = (reshape_compressed(part, source.shape, new) for part in (source.known, source.value))
    return TeSA.partial(new, tesa.dtype, known, value)


def _reshape(call: Call) -> TeSA | None:
    _, data = call.data()
    return reshape_tesa(data, call.shape) if call.dtype == data.dtype else None


def _reshape_backward(call: Call) -> Needs:
    name, data = call.data()
    return {name: reshape_need(call.need, call.shape, data.shape)}


reshaping(*aten("reshape view _unsafe_view flatten unflatten squeeze unsqueeze"))


def permuting(*names: str) -> None:
    """Rows of operators that reorder dimensions: transpose, permute."""
    for name in names:
        register(name, Rule(_permute, _permute_backward))


def _order(call: Call) -> list[int]:
    """For each dimension of the result, the dimension it was; read off the operator itself with distinct sizes."""
    name, data = call.data()
    distinct = torch.zeros([1] * len(data.shape)).expand(list(range(2, 2 + len(data.shape))))
    return [size - 2 for size in call.run(**{name: distinct}).shape]


def _permute(call: Call) -> TeSA:
    data, order = call.data()[1], _order(call)
    parts = (part.permute(order) for part in (data.known, data.value, data.need))
    return TeSA(call.shape, call.dtype, *parts)


def _permute_backward(call: Call) -> Needs:
    order = _order(call)
    return {call.data()[0]: call.need.permute([order.index(d) for d in range(len(order))])}


permuting(*aten("permute transpose t numpy_T swapaxes swapdims movedim moveaxis mT"))


def _expand(call: Call) -> TeSA:
    _, data = call.data()
    parts = (align(part, call.rank) for part in (data.known, data.value, data.need))
    return TeSA(call.shape, call.dtype, *parts)


def _expand_backward(call: Call) -> Needs:
    name, data = call.data()
    return {name: reduce_to(call.need, data.shape)}


for _name in aten("expand broadcast_to"):
    register(_name, Rule(_expand, _expand_backward))
