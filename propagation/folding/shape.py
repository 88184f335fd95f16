"""Operators that only rearrange: they run on the layout their operand is in."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.folder import Folder, alive_along
from sparta.propagation.folding.layout import Layout
from sparta.propagation.folding.table import arguments, folds, pulls
from sparta.tesa.compressed import Shape

aten = torch.ops.aten

RESHAPES = tuple(
    f"aten.{name}" for name in ["view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"]
)
"""Operators that keep the order of the elements."""


@folds(*RESHAPES)
def fold_reshape(folder: Folder, node: fx.Node) -> bool:
    """`reshape` to the physical sizes: `[B, T, kept heads * dims]` becomes `[B, T, kept heads, dims]`.

    Never `view`: the strides that were seen at capture are gone.
    """
    x = node.args[0]
    assert isinstance(x, fx.Node)
    source, target = folder.tesa(x).shape, folder.tesa(node).shape
    if not folder.placed(x) or not all(map(folder.sizes.knows, target)):
        return False
    if source == target:
        return folder.place(node, folder.get(x, folder.layout(x)), folder.layout(x))
    before, after = reshaped(folder.layout(x), source, target)
    sizes = folder.sizes.target(lay.physical(after, target))
    return folder.place(node, folder.call(aten.reshape.default, folder.get(x, before), sizes), after)


@pulls(*RESHAPES)
def pull_reshape(folder: Folder, operand: fx.Node, user: fx.Node, layout: Layout) -> Layout:
    """What a reshape of the result back to the operand keeps."""
    return reshaped(layout, folder.tesa(user).shape, folder.tesa(operand).shape)[1]


def reshaped(layout: Layout, source: Shape, target: Shape) -> tuple[Layout, Layout]:
    """`(layout of the operand, layout of the result)` for a reshape; the former contains `layout`.

    Only what is a product of index sets on both sides survives, such as whole heads; ragged sets are filled up.
    """
    before, after = list(layout), list(lay.whole(len(target)))
    for left, right in lay.segments(source, target):
        before[left], after[right] = _segment(layout[left], source[left], target[right])
    return tuple(before), tuple(after)


def _segment(layout: Layout, source: Shape, target: Shape) -> tuple[Layout, Layout]:
    if len(source) == len(target) == 1:
        return layout, layout
    whole = lay.whole(len(source)), lay.whole(len(target))
    if all(kept is None for kept in layout) or not all(isinstance(size, int) for size in (*source, *target)):
        return whole
    present = _spread(layout, source)
    after = _projections(present.reshape([int(size) for size in target]))
    filled = _spread(after, target).reshape(present.shape)
    before = _projections(filled)
    return (before, after) if torch.equal(_spread(before, source), filled) else whole


def _spread(layout: Layout, shape: Shape) -> Tensor:
    return lay.presence(layout, shape).expand([int(size) for size in shape])


def _projections(present: Tensor) -> Layout:
    """Per dimension the indices at which anything is present."""
    present = present.contiguous()
    return tuple(alive_along(present, dim, size) for dim, size in enumerate(present.shape))


@folds("aten.permute", "aten.transpose", "aten.t")
def fold_permute(folder: Folder, node: fx.Node) -> bool:
    """The same permutation of the layout."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    if not folder.placed(x):
        return False
    layout = folder.layout(x)
    order = _order(node, len(layout))
    made = folder.call(aten.permute.default, folder.get(x, layout), order)
    return folder.place(node, made, [layout[dim] for dim in order])


@pulls("aten.permute", "aten.transpose", "aten.t")
def pull_permute(folder: Folder, operand: fx.Node, user: fx.Node, layout: Layout) -> Layout:
    """The inverse permutation of the layout."""
    order = _order(user, len(layout))
    return tuple(layout[order.index(dim)] for dim in range(len(layout)))


def _order(node: fx.Node, rank: int) -> list[int]:
    """Which dimension of the operand each dimension of the result is."""
    bound = arguments(node)
    if "dims" in bound:
        return [dim % rank for dim in bound["dims"]]
    order = list(range(rank))
    first, second = bound.get("dim0", 0), bound.get("dim1", rank - 1)
    if rank > 0:
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    return order


@folds("aten.expand")
def fold_expand(folder: Folder, node: fx.Node) -> bool:
    """`expand` to the physical sizes."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    source, target = folder.tesa(x).shape, folder.tesa(node).shape
    if not folder.placed(x) or not all(map(folder.sizes.knows, target)):
        return False
    extra = len(target) - len(source)
    layout = folder.layout(x)
    sizes: list[object] = [folder.sizes.emit(size) for size in target[:extra]]
    sizes += [
        -1 if size == have else folder.sizes.emit(size) for have, size in zip(source, target[extra:], strict=True)
    ]
    made = folder.call(aten.expand.default, folder.get(x, layout), sizes)
    return folder.place(node, made, (*lay.whole(extra), *layout))
