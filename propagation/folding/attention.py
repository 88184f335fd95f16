"""Fused attention: heads, query-key dimensions and value dimensions shrink separately; the scale stays."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept
from sparta.propagation.folding.table import arguments, folds
from sparta.tesa.compressed import any_over

HEAD = 1


@folds("aten.scaled_dot_product_attention")
def fold_attention(folder: Folder, node: fx.Node) -> bool:
    """`sdpa(q[:, heads, :, dims], k[:, heads, :, dims], v[:, heads, :, outs], scale=1 / sqrt(D))`."""
    bound = arguments(node)
    query, key, value = operands = [bound[name] for name in ("query", "key", "value")]
    shapes = [folder.tesa(operand).shape for operand in operands]
    if bound["enable_gqa"] or any(len(shape) != 4 or shape[HEAD] != shapes[0][HEAD] for shape in shapes):
        return False
    _, heads, tokens, outs = folder.want(node)
    if bound["is_causal"]:
        tokens = None
    dims = _shared_dims(folder, query, key, heads)
    width = int(shapes[0][3])
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


def _mask(folder: Folder, mask: fx.Node | None, heads: Kept, tokens: Kept) -> fx.Node | None:
    if mask is None:
        return None
    shape = folder.tesa(mask).shape
    layout = (None, heads, tokens, None)[4 - len(shape) :]
    return folder.get(mask, tuple(None if size == 1 else kept for size, kept in zip(shape, layout, strict=True)))


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
