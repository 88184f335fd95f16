"""Linear layers and matrix products: dead rows and columns go, known columns end up in the bias."""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.affine import (
    Offset,
    along,
    any_nonzero,
    choose_columns,
    choose_rows,
    dropped_constants,
    emit_bias,
    emit_offset,
    whole_columns,
    whole_rows,
    work_along,
    working,
)
from sparta.propagation.folding.batchnorm import tail_of
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout, known_value
from sparta.propagation.folding.table import arguments, folds
from sparta.tesa.compressed import any_over

aten = torch.ops.aten


@folds("aten.linear")
def fold_linear(folder: Folder, node: fx.Node) -> bool:
    """`linear(x[..., cols], W[rows][:, cols], b[rows] + W[rows][:, known] @ value)`."""
    bound = arguments(node)
    if not folder.is_constant(bound["weight"]):
        return False
    return _affine(folder, node, bound["input"], bound["weight"], bound["bias"], transposed=False)


@folds("aten.addmm")
def fold_addmm(folder: Folder, node: fx.Node) -> bool:
    """The same for `addmm(b, x, W)` with `W[in, out]`: GPT-2's Conv1D."""
    bound = arguments(node)
    bias = bound["self"]
    plain = bound["beta"] == 1 and bound["alpha"] == 1 and len(folder.tesa(bias).shape) == 1
    if not (plain and folder.is_constant(bias) and _is_matrix(folder, bound["mat2"])):
        return False
    return _affine(folder, node, bound["mat1"], bound["mat2"], bias, transposed=True)


@folds("aten.mm", "aten.matmul", "aten.bmm")
def fold_product(folder: Folder, node: fx.Node) -> bool:
    """`x @ W` becomes a linear layer; a product of two activations drops the inner indices one side is zero at."""
    left, right = node.args
    assert isinstance(left, fx.Node)
    assert isinstance(right, fx.Node)
    if _is_matrix(folder, right):
        return _affine(folder, node, left, right, None, transposed=True)
    return _product(folder, node, left, right)


def _is_matrix(folder: Folder, node: fx.Node) -> bool:
    """Whether the node is a constant matrix of fixed size."""
    return folder.is_constant(node) and [type(size) for size in folder.tesa(node).shape] == [int, int]


def _affine(
    folder: Folder, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None, *, transposed: bool
) -> bool:
    if bias is not None and not folder.is_constant(bias):
        return False
    matrix = folder.tensor(weight).t() if transposed else folder.tensor(weight)
    last = len(folder.tesa(node).shape) - 1
    tail = tail_of(folder, node, last)
    rows = whole_rows(matrix, choose_rows(folder, tail.result, last, work_along(matrix, 0)))
    kept = lay.take(matrix, (rows, None))
    used = any_nonzero(kept, 1)
    columns = choose_columns(folder, x, last, used, work_along(kept, 1))
    columns = whole_columns(matrix, columns, folder.layout(x)[last])
    layout = (*folder.layout(x)[:last], columns)
    scale, shift = (None if part is None else lay.take(part, (rows,)) for part in (tail.scale, tail.shift))
    own = None if bias is None else working(lay.take(folder.tensor(bias), (rows,)))
    offset = _offset(folder, x, kept, own, layout, used).normalized(scale, shift, last, last + 1)
    final = lay.take(kept, (None, columns))
    if scale is not None:
        final = (working(final) * along(scale, 0, 2)).to(final.dtype)
    made = folder.call(
        aten.linear.default,
        folder.get(x, layout),
        folder.weight(final, weight),
        emit_bias(folder, offset, bias, tail),
    )
    folder.stand_for(made, node)
    return folder.place(tail.result, emit_offset(folder, made, offset, tail), (*layout[:last], rows))


def _offset(folder: Folder, x: fx.Node, matrix: Tensor, bias: Tensor | None, layout: Layout, used: Tensor) -> Offset:
    """The bias with the contribution of the known columns that are dropped."""
    last = len(layout) - 1
    where, values = dropped_constants(folder, x, last, layout[last], used)
    if len(where) == 0:
        return Offset(bias, None)
    constant = values @ working(matrix.index_select(1, where)).t()
    if math.prod(constant.shape[:last]) == 1:
        constant = constant.reshape(-1)
        return Offset(constant if bias is None else bias + constant, None)
    return Offset(bias, lay.take(constant, (*layout[:last], None)))


def _product(folder: Folder, node: fx.Node, left: fx.Node, right: fx.Node) -> bool:
    """`a[..., m, k] @ b[..., k, n]` with the inner indices at which both sides can be non-zero."""
    result = folder.tesa(node).shape
    rank = len(result)
    shapes = [folder.tesa(side).shape for side in (left, right)]
    if min(map(len, shapes)) < 2 or max(map(len, shapes)) != rank:
        return False
    inner = _inner(folder, left, right)
    batch = folder.want(node)[:-2]
    height = _outer(folder, node, left, -2)
    width = _outer(folder, node, right, -1)
    operands = [
        folder.get(side, (*_batch_layout(shape, batch), *tail))
        for side, shape, tail in zip((left, right), shapes, ((height, inner), (inner, width)), strict=True)
    ]
    batch = tuple(None if _is_single(shapes, dim, rank) else kept for dim, kept in enumerate(batch))
    return folder.place(node, folder.again(node, *operands), (*batch, height, width))


def _outer(folder: Folder, node: fx.Node, side: fx.Node, dim: int) -> Kept:
    """An outer dimension of a product: as its operand has it where that covers what is wanted."""
    wanted, size = folder.want(node)[dim], folder.tesa(node).shape[dim]
    covered = folder.placed(side) and lay.contains(folder.layout(side)[dim], wanted, size)
    return folder.layout(side)[dim] if covered else wanted


def _batch_layout(shape: tuple[object, ...], batch: Layout) -> Layout:
    """The batch part of an operand's layout; broadcast dimensions stay whole."""
    own = len(shape) - 2
    return tuple(None if shape[dim] == 1 else kept for dim, kept in enumerate(batch[len(batch) - own :]))


def _is_single(shapes: list[tuple[object, ...]], dim: int, rank: int) -> bool:
    """Whether no operand has a batch dimension of more than one index at `dim` of the result."""
    own = [shape[dim - rank + len(shape)] for shape in shapes if dim - rank + len(shape) >= 0]
    return all(size == 1 for size in own)


def _inner(folder: Folder, left: fx.Node, right: fx.Node) -> Kept:
    size = folder.tesa(left).shape[-1]
    if not isinstance(size, int):
        return None
    both = _reachable(folder, left, len(folder.tesa(left).shape) - 1)
    both = both & _reachable(folder, right, len(folder.tesa(right).shape) - 2)
    if not bool(both.any()):
        both[0] = True
    return lay.from_membership(both.expand(size))


def _reachable(folder: Folder, node: fx.Node, dim: int) -> Tensor:
    """Where along `dim` the operand can be non-zero: it is known to be, or it is physically there and unknown."""
    tesa = folder.tesa(node)
    size = int(tesa.shape[dim])
    others = [other for other in range(len(tesa.shape)) if other != dim]
    known = any_nonzero(known_value(tesa), dim)
    unknown = any_over(~tesa.known, others).reshape(-1)
    if folder.placed(node):
        unknown = unknown & lay.membership(folder.layout(node)[dim], size)
    return (known | unknown).expand(size).clone()
