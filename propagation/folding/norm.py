"""LayerNorm over a shrunk dimension: exact, since known elements contribute to the statistics what they are worth."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.affine import working
from sparta.propagation.folding.cost import NARROW_NORM
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout, known_value
from sparta.propagation.folding.table import arguments, folds

aten = torch.ops.aten


@folds("aten.layer_norm")
def fold_layer_norm(folder: Folder, node: fx.Node) -> bool:
    """PyTorch's own operator over whole rows, or the same written out over the few elements that are not known."""
    bound = arguments(node)
    x, axes = bound["input"], len(bound["normalized_shape"])
    if not folder.placed(x):
        return False
    current = folder.layout(x)
    leading = current[: len(current) - axes]
    narrow = current[-1]
    if axes == 1 and narrow is not None and len(narrow) * NARROW_NORM <= int(folder.tesa(x).shape[-1]):
        known = _dropped(folder, x, narrow)
        if known is not None:
            return folder.place(node, *_written_out(folder, node, (*leading, narrow), known))
    layout = (*leading, *lay.whole(axes))
    parameters = [None if bound[name] is None else folder.get(bound[name]) for name in ("weight", "bias")]
    made = folder.call(aten.layer_norm.default, folder.get(x, layout), bound["normalized_shape"], *parameters)
    made.args = (*made.args, bound["eps"])
    return folder.place(node, made, layout)


def _dropped(folder: Folder, x: fx.Node, kept: Tensor) -> Tensor | None:
    """The values of the last dimension that are not physically there; None where they differ between rows."""
    tesa = folder.tesa(x)
    size = int(tesa.shape[-1])
    value = working(known_value(tesa))
    if value.numel() != value.shape[-1] or not bool(tesa.known.reshape(-1).expand(size)[_absent(kept, size)].all()):
        return None
    return value.reshape(-1).expand(size)[_absent(kept, size)]


def _absent(kept: Tensor, size: int) -> Tensor:
    return ~lay.membership(kept, size)


def _written_out(folder: Folder, node: fx.Node, layout: Layout, known: Tensor) -> tuple[fx.Node, Layout]:
    """`(x - mean) * rsqrt(variance + eps) * weight + bias` with statistics over kept and known elements."""
    bound = arguments(node)
    x, call = bound["input"], folder.call
    size = len(known) + int(lay.count(layout[-1], len(known)))
    kept = folder.get(x, layout)
    total = call(aten.sum.dim_IntList, kept, [-1], True)
    mean = call(aten.mul.Tensor, call(aten.add.Tensor, total, float(known.sum())), 1 / size)
    deviation = call(aten.sub.Tensor, kept, mean)
    squares = call(aten.sum.dim_IntList, call(aten.mul.Tensor, deviation, deviation), [-1], True)
    # sum (v - mean)^2 over the known v, from their own mean: no cancellation.
    center = float(known.mean())
    apart = call(aten.pow.Tensor_Scalar, call(aten.sub.Tensor, mean, center), 2)
    of_known = call(aten.add.Tensor, call(aten.mul.Tensor, apart, len(known)), float((known - center).square().sum()))
    variance = call(aten.mul.Tensor, call(aten.add.Tensor, squares, of_known), 1 / size)
    inverse = call(aten.rsqrt.default, call(aten.add.Tensor, variance, bound["eps"]))
    target = _outputs(folder, node, layout)
    if not lay.same(target[-1], layout[-1]):
        deviation = call(aten.sub.Tensor, folder.get(x, target), mean)
    made = call(aten.mul.Tensor, deviation, inverse)
    for target_op, name in ((aten.mul.Tensor, "weight"), (aten.add.Tensor, "bias")):
        if bound[name] is not None:
            made = call(target_op, made, folder.get(bound[name], target[-1:]))
    return made, target


def _outputs(folder: Folder, node: fx.Node, layout: Layout) -> Layout:
    """The kept inputs where they cover what is wanted, else the union of both."""
    wanted: Kept = folder.want(node)[-1]
    return (*layout[:-1], lay.union(layout[-1], wanted, folder.tesa(node).shape[-1]))
