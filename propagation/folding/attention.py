"""Fused attention: heads, query-key dimensions and value dimensions shrink separately; the scale stays."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout
from sparta.propagation.folding.table import arguments, folds, pulls
from sparta.tesa.compressed import any_over

HEAD = 1


@folds("aten.scaled_dot_product_attention")
def fold_attention(folder: Folder, node: fx.Node) -> bool:
    """`sdpa(q[:, heads, :, dims], k[:, heads, :, dims], v[:, heads, :, outs], scale=1 / sqrt(D))`."""
    bound = arguments(node)
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    if not _is_plain(folder, node):
        return False
    _, heads, tokens, outs = folder.want(node)
    if bound["is_causal"]:
        tokens = None
    dims = _shared_dims(folder, query, key, heads)
    width = int(folder.tesa(query).shape[3])
    made = folder.call(
        torch.ops.aten.scaled_dot_product_attention.default,
        folder.get(query, (None, heads, tokens, dims)),
        folder.get(key, (None, heads, None, dims)),
        folder.get(value, (None, heads, None, outs)),
        _mask(folder, bound["attn_mask"], heads, tokens),
        bound["dropout_p"],
        bound["is_causal"],
        scale=1 / math.sqrt(width) if bound["scale"] is None else bound["scale"],
    )
    return folder.place(node, made, (None, heads, tokens, outs))


@pulls("aten.scaled_dot_product_attention")
def pull_attention(folder: Folder, operand: fx.Node, user: fx.Node, layout: Layout) -> Layout:
    """Kept heads, with the dimensions that query and key share, or those that are wanted of the values."""
    bound = arguments(user)
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    if not _is_plain(folder, user) or operand not in (query, key, value):
        return lay.whole(len(folder.tesa(operand).shape))
    heads, outs = layout[HEAD], layout[3]
    dims = _shared_dims(folder, query, key, heads)
    return (None, heads, None, dims if operand in (query, key) else outs)


def _is_plain(folder: Folder, node: fx.Node) -> bool:
    """Whether queries, keys and values are `[batch, heads, tokens, dims]` with the same heads."""
    bound = arguments(node)
    shapes = [folder.tesa(bound[name]).shape for name in ("query", "key", "value")]
    return not bound["enable_gqa"] and all(len(shape) == 4 and bool(shape[HEAD] == shapes[0][HEAD]) for shape in shapes)


def _mask(folder: Folder, mask: fx.Node | None, heads: Kept, tokens: Kept) -> fx.Node | None:
    if mask is None or _masks_nothing(folder, mask):
        return None
    shape = folder.tesa(mask).shape
    layout = (None, heads, tokens, None)[4 - len(shape) :]
    return folder.get(mask, tuple(None if size == 1 else kept for size, kept in zip(shape, layout, strict=True)))


def _masks_nothing(folder: Folder, mask: fx.Node) -> bool:
    """Whether the mask is known to be True everywhere, or to add zero everywhere."""
    tesa = folder.tesa(mask)
    return tesa.is_constant and bool((tesa.value == (tesa.dtype == torch.bool)).all())


def _shared_dims(folder: Folder, query: fx.Node, key: fx.Node, heads: Kept) -> Kept:
    """The dimensions along which a kept head's query and key are needed and can both be non-zero."""
    both = _reachable(folder, query) & _reachable(folder, key)
    if heads is not None and both.shape[0] > 1:
        both = both[heads]
    dims = any_over(both, [0]).reshape(-1).expand(int(folder.tesa(query).shape[3])).clone()
    if not bool(dims.any()):
        dims[0] = True
    return lay.from_membership(dims)


def _reachable(folder: Folder, node: fx.Node) -> Tensor:
    """A compressed `[heads, dims]` bool tensor: needed and possibly non-zero at some position."""
    tesa = folder.tesa(node)
    return any_over(tesa.need & tesa.nonzero, [0, 2])[0, :, 0]
