"""Operators that take parts or put parts together: indices are offset, absent parts are left out."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.cost import DROPPED_PARTS
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout
from sparta.propagation.folding.relayout import concatenate, pick
from sparta.propagation.folding.table import arguments, folds, folds_item
from sparta.tesa import TeSA

aten = torch.ops.aten


def replaced(layout: Layout, dim: int, kept: Kept) -> Layout:
    """The layout with another entry for one dimension."""
    return (*layout[:dim], kept, *layout[dim + 1 :])


@folds("aten.slice")
def fold_slice(folder: Folder, node: fx.Node) -> bool:
    """A slice of the kept indices that lie in its range."""
    bound = arguments(node)
    x = bound["self"]
    if not folder.placed(x):
        return False
    layout = folder.layout(x)
    dim = bound["dim"] % len(layout)
    ends = [folder.scalar(bound[name]) for name in ("start", "end", "step")]
    if ends[0] in (None, 0) and ends[1] in (None, sys.maxsize) and ends[2] == 1:
        return folder.place(node, folder.get(x, layout), layout)
    if not all(end is None or isinstance(end, int) for end in ends):
        return False
    if layout[dim] is None:
        return folder.place(node, folder.call(aten.slice.Tensor, folder.get(x, layout), dim, *ends), layout)
    chosen = range(*slice(*ends).indices(int(folder.tesa(x).shape[dim])))
    return _take(folder, node, x, dim, torch.arange(chosen.start, chosen.stop, chosen.step))


def _take(folder: Folder, node: fx.Node, x: fx.Node, dim: int, chosen: Tensor) -> bool:
    """`x` at the logical indices `chosen` of `dim`, as far as they are physically there."""
    layout = folder.layout(x)
    where = lay.positions(chosen, layout[dim], folder.tesa(x).shape[dim])
    present = where >= 0
    if not bool(present.any()):
        return False
    kept = replaced(layout, dim, lay.from_membership(present))
    made = pick(folder, folder.get(x, layout), dim, where[present], folder.physical(node, kept))
    return folder.place(node, made, kept)


@folds("aten.select")
def fold_select(folder: Folder, node: fx.Node) -> bool:
    """The selected index at the position where it is now."""
    bound = arguments(node)
    return _select(folder, node, bound["self"], bound["dim"], folder.scalar(bound["index"]))


@folds_item("aten.unbind")
def fold_unbind(folder: Folder, item: fx.Node, producer: fx.Node, index: int) -> bool:
    """One result of `unbind`, as a selection."""
    bound = arguments(producer)
    return _select(folder, item, bound["self"], bound["dim"], index)


def _select(folder: Folder, node: fx.Node, x: fx.Node, dim: int, index: Any) -> bool:
    if not folder.placed(x) or not isinstance(index, int):
        return False
    layout, shape = folder.layout(x), folder.tesa(x).shape
    dim %= len(layout)
    if layout[dim] is not None:
        logical = torch.tensor([index % int(shape[dim])])
        index = int(lay.positions(logical, layout[dim], shape[dim]))
        if index < 0:
            return False
    made = folder.call(aten.select.int, folder.get(x, layout), dim, index)
    return folder.place(node, made, (*layout[:dim], *layout[dim + 1 :]))


@folds_item("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split")
def fold_split(folder: Folder, item: fx.Node, producer: fx.Node, index: int) -> bool:
    """One result of a split, as a slice."""
    bound = arguments(producer)
    x, parts = bound["self"], folder.propagated.tesa[producer]
    if not folder.placed(x) or not isinstance(parts, tuple):
        return False
    dim = bound["dim"] % len(folder.tesa(x).shape)
    lengths = [part.shape[dim] if isinstance(part, TeSA) else None for part in parts[: index + 1]]
    if not all(isinstance(length, int) for length in lengths):
        return False
    start = sum(int(length) for length in lengths[:-1] if length is not None)
    return _take(folder, item, x, dim, torch.arange(start, start + int(folder.tesa(item).shape[dim])))


@folds("aten.cat")
def fold_cat(folder: Folder, node: fx.Node) -> bool:
    """The concatenation of the parts that are computed; known parts are left out."""
    bound = arguments(node)
    shape = folder.tesa(node).shape
    dim = bound["dim"] % len(shape)
    parts = [part for part in bound["tensors"] if len(folder.tesa(part).shape) == len(shape)]
    if not all(isinstance(folder.tesa(part).shape[dim], int) for part in parts):
        return False
    others = replaced(folder.want(node), dim, None)
    spared = sum(int(folder.tesa(part).shape[dim]) for part in parts if folder.is_constant(part))
    drops = spared >= DROPPED_PARTS * int(shape[dim])
    made, kept, offset = [], [], 0
    for part in parts:
        size = int(folder.tesa(part).shape[dim])
        own = _part(folder, node, part, dim, offset, drops=drops)
        if own is None or len(own):
            made.append(folder.get(part, replaced(others, dim, own)))
            kept.append(lay.indices(own, size) + offset)
        offset += size
    return folder.place(node, concatenate(folder, made, dim), replaced(others, dim, torch.cat(kept)))


def _part(folder: Folder, node: fx.Node, part: fx.Node, dim: int, offset: int, *, drops: bool) -> Kept:
    """What to concatenate of a part: as it is laid out when computed; constants whole, or not at all."""
    if folder.placed(part):
        return folder.layout(part)[dim]
    return torch.arange(0) if drops or not folder.is_constant(part) else None


@folds("aten.stack")
def fold_stack(folder: Folder, node: fx.Node) -> bool:
    """The stacked parts, all in the layout that is wanted of the result."""
    bound = arguments(node)
    wanted = folder.want(node)
    dim = bound["dim"] % len(wanted)
    layout = (*wanted[:dim], *wanted[dim + 1 :])
    made = folder.call(aten.stack.default, [folder.get(part, layout) for part in bound["tensors"]], dim)
    return folder.place(node, made, replaced(wanted, dim, None))


@folds("aten.embedding")
def fold_embedding(folder: Folder, node: fx.Node) -> bool:
    """`embedding(weight[:, kept], indices)`."""
    bound = arguments(node)
    weight, chosen = bound["weight"], bound["indices"]
    if not folder.is_constant(weight) or not folder.placed(chosen):
        return False
    columns, layout = folder.want(node)[-1], folder.layout(chosen)
    made = folder.call(aten.embedding.default, folder.get(weight, (None, columns)), folder.get(chosen, layout))
    return folder.place(node, made, (*layout, columns))
