"""Bringing a placed value into another layout: selections, and scatters that fill in what is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.layout import Layout, known_value
from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape, compress

if TYPE_CHECKING:
    from sparta.propagation.folding.folder import Folder

aten = torch.ops.aten


def relayout(folder: Folder, node: fx.Node, made: fx.Node, source: Layout, target: Layout) -> fx.Node:
    """The value of `node`, which `made` holds in layout `source`, in layout `target`."""
    current, shape = list(source), folder.tesa(node).shape
    changed = [dim for dim in range(len(shape)) if not lay.same(source[dim], target[dim])]
    # Selections first: they leave less for the scatters to move.
    for dim in sorted(changed, key=lambda dim: not lay.contains(source[dim], target[dim], shape[dim])):
        where = lay.positions(lay.indices(target[dim], shape[dim]), source[dim], shape[dim])
        current[dim] = target[dim]
        if bool((where >= 0).all()):
            made = pick(folder, made, dim, where, lay.physical(tuple(current), shape))
        else:
            have = int(lay.count(source[dim], shape[dim]))
            made = _scatter(folder, node, made, dim, where, have, tuple(current))
    return made


def pick(folder: Folder, made: fx.Node, dim: int, chosen: Tensor, shape: Shape) -> fx.Node:
    """The chosen physical indices of one dimension, a slice where they are consecutive; `shape` is the result's."""
    span = lay.run(chosen)
    if span is not None:
        return folder.call(aten.slice.Tensor, made, dim, *span)
    where = folder.emit(chosen, "indices")
    if dim != len(shape) - 1 or dim < 2 or not all(map(folder.sizes.knows, shape)):
        return folder.call(aten.index_select.default, made, dim, where)
    # PyTorch selects columns of a matrix several times faster than those of a tensor of higher rank.
    flat = folder.call(aten.flatten.using_ints, made, 0, dim - 1)
    columns = folder.call(aten.index_select.default, flat, 1, where)
    return folder.call(aten.reshape.default, columns, folder.sizes.target(shape))


def _scatter(
    folder: Folder, node: fx.Node, made: fx.Node, dim: int, where: Tensor, have: int, layout: Layout
) -> fx.Node:
    """The `have` computed elements beside the known ones, brought into order; `where` is -1 for the latter."""
    tesa, present = folder.tesa(node), where >= 0
    missing = lay.indices(layout[dim], tesa.shape[dim])[~present]
    if torch.equal(where[present], torch.arange(have)):
        span = lay.run(present.nonzero().reshape(-1))
        if span is not None:
            before, after = (_fill(folder, node, dim, part, layout) for part in missing.tensor_split([span[0]]))
            return concatenate(folder, [*before, made, *after], dim)
    order = have + (~present).cumsum(0) - 1
    if _is_uniform(tesa, dim, missing):
        missing, order = missing[:1], torch.full_like(order, have)
    both = concatenate(folder, [made, *_fill(folder, node, dim, missing, layout)], dim)
    return pick(folder, both, dim, torch.where(present, where, order), lay.physical(layout, tesa.shape))


def concatenate(folder: Folder, parts: list[fx.Node], dim: int) -> fx.Node:
    """The parts in one tensor; a single part as it is."""
    return parts[0] if len(parts) == 1 else folder.call(aten.cat.default, parts, dim)


def _is_uniform(tesa: TeSA, dim: int, missing: Tensor) -> bool:
    value = known_value(tesa)
    return value.shape[dim] == 1 or compress(value.index_select(dim, missing), [dim]).shape[dim] == 1


def _fill(folder: Folder, node: fx.Node, dim: int, kept: Tensor, layout: Layout) -> list[fx.Node]:
    """The known values at the indices `kept` of one dimension; nothing for no index at all."""
    if len(kept) == 0:
        return []
    layout = (*layout[:dim], kept, *layout[dim + 1 :])
    value = lay.take(known_value(folder.tesa(node)), layout)
    sizes = [folder.sizes.emit(size) for size in folder.physical(node, layout)]
    return [folder.call(aten.expand.default, folder.emit(value, f"{node.name}_fill"), sizes)]
