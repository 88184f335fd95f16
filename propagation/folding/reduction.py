"""Reductions: exact over a shrunk dimension, since known elements contribute what they are worth."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.affine import working
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout, known_value
from sparta.propagation.folding.table import arguments, folds, operator_name

aten = torch.ops.aten


@folds("aten.amax", "aten.amin", "aten.var", "aten.std", "aten.logsumexp", "aten.linalg_vector_norm", "aten.prod")
def fold_reduction(folder: Folder, node: fx.Node) -> bool:
    """The reduction over whole dimensions; the others stay in the layout they are in."""
    bound = arguments(node)
    x = bound.get("self", bound.get("x"))
    assert isinstance(x, fx.Node)
    if not folder.placed(x):
        return False
    dims = reduced_dims(bound, len(folder.tesa(x).shape))
    layout = tuple(None if dim in dims else kept for dim, kept in enumerate(folder.layout(x)))
    made = folder.again(node, folder.get(x, layout), *node.args[1:], **node.kwargs)
    return folder.place(node, made, _result(node, layout, dims))


@folds("aten.sum", "aten.mean")
def fold_sum(folder: Folder, node: fx.Node) -> bool:
    """`sum(kept) + known`, `mean(kept) * (kept / all) + known`."""
    bound = arguments(node)
    x, averages = bound["self"], operator_name(node) == "aten.mean"
    if not folder.placed(x):
        return False
    layout, shape = folder.layout(x), folder.tesa(x).shape
    dims = reduced_dims(bound, len(shape))
    shrunk = [dim for dim in dims if layout[dim] is not None]
    if not shrunk or not (averages or all(isinstance(shape[dim], int) for dim in dims)):
        return fold_reduction(folder, node)
    known = _known_part(folder, x, layout, dims, averages=averages)
    known = known if bound.get("keepdim", False) else known.squeeze(tuple(dims))
    made = folder.again(node, folder.get(x, layout), *node.args[1:], **node.kwargs)
    if averages:
        kept = math.prod(int(lay.count(layout[dim], shape[dim])) for dim in shrunk)
        made = folder.call(aten.mul.Tensor, made, kept / math.prod(int(shape[dim]) for dim in shrunk))
    if bool((known != 0).any()):
        constant = folder.emit(known.to(folder.tesa(node).dtype), f"{node.name}_known")
        made = folder.call(aten.add.Tensor, made, constant)
    return folder.place(node, made, _result(node, layout, dims))


def reduced_dims(bound: dict[str, Any], rank: int) -> set[int]:
    """The dimensions a reduction removes: all of them when it names none."""
    dims = bound.get("dim")
    if dims is None or dims == []:
        return set(range(rank))
    return {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)} if rank else set()


def _result(node: fx.Node, layout: Layout, dims: set[int]) -> list[Kept]:
    keeps = arguments(node).get("keepdim", False)
    return [None if dim in dims else kept for dim, kept in enumerate(layout) if keeps or dim not in dims]


def _known_part(folder: Folder, x: fx.Node, layout: Layout, dims: set[int], *, averages: bool) -> Tensor:
    """The reduction of the known elements that are not physically there, in the layout of the result."""
    tesa = folder.tesa(x)
    value = working(known_value(tesa))
    value = torch.where(lay.presence(layout, tesa.shape), torch.zeros((), dtype=value.dtype), value)
    extent = [
        int(size) if dim in dims and isinstance(size, int) else have
        for dim, (have, size) in enumerate(zip(value.shape, tesa.shape, strict=True))
    ]
    value = value.expand(extent)
    reduced = value.mean(tuple(dims), keepdim=True) if averages else value.sum(tuple(dims), keepdim=True)
    return lay.take(reduced, tuple(None if dim in dims else kept for dim, kept in enumerate(layout)))
