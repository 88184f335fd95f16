"""Convolutions: dead filters and channels go, known channels end up in the bias or, with padding, in a border map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
    whole_rows,
    work_along,
    working,
)
from sparta.propagation.folding.batchnorm import Tail, tail_of
from sparta.propagation.folding.cost import selection_pays
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, known_value
from sparta.propagation.folding.table import arguments, folds, operator_name
from sparta.tesa.compressed import any_over

CHANNEL = 1
TRANSPOSED = frozenset({"aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d"})


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A convolution node with a constant weight, its arguments by name."""

    node: fx.Node
    bound: dict[str, Any]
    weight: Tensor
    transposed: bool

    @property
    def x(self) -> fx.Node:
        """The image."""
        node = self.bound["input"]
        assert isinstance(node, fx.Node)
        return node

    @property
    def groups(self) -> int:
        """Into how many groups the channels are divided."""
        return int(self.bound["groups"])

    @property
    def row_axis(self) -> int:
        """The dimension of the weight that belongs to the output channels."""
        return 1 if self.transposed else 0

    @property
    def taps(self) -> int:
        """Weights per pair of channels."""
        return math.prod(self.weight.shape[2:])

    def arguments(self, x: Any, weight: Any, bias: Any, groups: int) -> list[Any]:
        """All arguments in the order of the schema, with other operands."""
        changed = {"input": x, "weight": weight, "bias": bias, "groups": groups}
        return list({**self.bound, **changed}.values())

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution of constants, without bias, in one group."""
        assert callable(self.node.target)
        result: Tensor = self.node.target(*self.arguments(x, weight, None, 1))
        return result

    def pads(self) -> bool:
        """Whether the result at a border differs from the inside for an image of one color."""
        padding = self.bound["padding"]
        return self.transposed or padding == "same" or (padding != "valid" and any(padding))


@folds("aten.conv1d", "aten.conv2d", "aten.conv3d", *TRANSPOSED)
def fold_convolution(folder: Folder, node: fx.Node) -> bool:
    """`conv(x[:, cols], W[rows][:, cols], b[rows] + known part)`; of grouped convolutions, whole groups."""
    bound = arguments(node)
    operands = [operand for operand in (bound["weight"], bound["bias"]) if operand is not None]
    if not all(folder.is_constant(operand) for operand in operands):
        return False
    transposed = operator_name(node) in TRANSPOSED
    conv = Convolution(node, bound, folder.tensor(bound["weight"]), transposed)
    if len(folder.tesa(conv.x).shape) != conv.weight.dim():
        return False
    if conv.groups == 1:
        return _single(folder, conv)
    return not transposed and _grouped(folder, conv)


def _single(folder: Folder, conv: Convolution) -> bool:
    tail = tail_of(folder, conv.node, CHANNEL)
    row_axis, column_axis = conv.row_axis, 1 - conv.row_axis
    rows = choose_rows(folder, tail.result, CHANNEL, _work(conv.weight, row_axis))
    rows = rows if conv.transposed else whole_rows(conv.weight, rows)
    kept = conv.weight if rows is None else conv.weight.index_select(row_axis, rows)
    used = any_nonzero(kept, column_axis)
    columns = _columns(folder, conv, used, _work(kept, column_axis))
    bias = _own_bias(folder, conv, rows)
    offset = _offset(folder, conv, kept, bias, columns, used)
    final = kept if columns is None else kept.index_select(column_axis, columns)
    return _emit(folder, conv, tail, (rows, columns), final, offset, groups=1)


def _own_bias(folder: Folder, conv: Convolution, rows: Kept) -> Tensor | None:
    bias = conv.bound["bias"]
    return None if bias is None else working(lay.take(folder.tensor(bias), (rows,)))


def _emit(
    folder: Folder,
    conv: Convolution,
    tail: Tail,
    kept: tuple[Kept, Kept],
    weight: Tensor,
    offset: Offset,
    *,
    groups: int,
) -> bool:
    rows, columns = kept
    rank = weight.dim()
    scale, shift = (None if part is None else lay.take(part, (rows,)) for part in (tail.scale, tail.shift))
    offset = offset.normalized(scale, shift, CHANNEL, rank)
    if scale is not None:
        weight = (working(weight) * along(scale, conv.row_axis, rank)).to(weight.dtype)
    whole = lay.whole(rank - 2)
    batch = folder.layout(conv.x)[0]
    made = folder.again(
        conv.node,
        *conv.arguments(
            folder.get(conv.x, (batch, columns, *whole)),
            folder.weight(weight, conv.bound["weight"]),
            emit_bias(folder, offset, conv.bound["bias"], tail),
            groups,
        ),
    )
    folder.stand_for(made, conv.node)
    return folder.place(tail.result, emit_offset(folder, made, offset, tail), (batch, rows, *whole))


def _work(weight: Tensor, axis: int) -> Tensor:
    """The multiply-adds of each filter or input channel at one position."""
    return work_along(weight.transpose(0, axis).flatten(1), 0)


def _columns(folder: Folder, conv: Convolution, used: Tensor, work: Tensor) -> Kept:
    """The input channels to keep; where a border map would depend on the image size, known ones stay as well."""
    columns = choose_columns(folder, conv.x, CHANNEL, used, work / math.prod(conv.bound["stride"]))
    if columns is None or _maps_are_static(folder, conv):
        return columns
    constant = used & any_nonzero(known_value(folder.tesa(conv.x)), CHANNEL).expand(len(used))
    return lay.from_membership(lay.membership(columns, len(used)) | constant)


def _maps_are_static(folder: Folder, conv: Convolution) -> bool:
    """Whether the contribution of known channels can be computed now: no padding, or an image of fixed size."""
    fixed = all(isinstance(size, int) for size in folder.tesa(conv.x).shape[2:])
    return fixed or not conv.pads()


def _offset(
    folder: Folder, conv: Convolution, weight: Tensor, bias: Tensor | None, columns: Kept, used: Tensor
) -> Offset:
    """The bias with the contribution of the known channels that are dropped."""
    where, values = dropped_constants(folder, conv.x, CHANNEL, columns, used)
    if len(where) == 0:
        return Offset(bias, None)
    part = working(weight.index_select(1 - conv.row_axis, where))
    if not conv.pads() and values.numel() == len(where):
        constant = part.sum(list(range(2, part.dim()))) @ values.reshape(-1)
        return Offset(constant if bias is None else bias + constant, None)
    image = values.expand([*values.shape[:2], *(int(size) for size in folder.tesa(conv.x).shape[2:])])
    return Offset(bias, conv.run(image.contiguous(), part))


def _grouped(folder: Folder, conv: Convolution) -> bool:
    """Only whole groups go; depthwise, that is every channel by itself."""
    tail = tail_of(folder, conv.node, CHANNEL)
    groups = conv.groups
    inputs, outputs = conv.weight.shape[1], conv.weight.shape[0] // groups
    wanted = _groups_with(folder.want(tail.result)[CHANNEL], groups, outputs)
    present = _groups_with(folder.layout(conv.x)[CHANNEL], groups, inputs) | wanted
    spared = int(present.sum() - wanted.sum()) * conv.weight[:outputs].numel()
    moved = int(wanted.sum()) * inputs
    pays = selection_pays(spared / math.prod(conv.bound["stride"]), moved, folder.positions(conv.x, CHANNEL))
    chosen = wanted if pays else present
    rows = lay.from_membership(chosen.repeat_interleave(outputs))
    columns = lay.from_membership(chosen.repeat_interleave(inputs))
    weight = conv.weight if rows is None else conv.weight.index_select(0, rows)
    offset = Offset(_own_bias(folder, conv, rows), None)
    return _emit(folder, conv, tail, (rows, columns), weight, offset, groups=int(chosen.sum()))


def _groups_with(kept: Kept, groups: int, width: int) -> Tensor:
    """A bool vector over the groups: does one of its `width` channels survive?"""
    return any_over(lay.membership(kept, groups * width).reshape(groups, width), [1]).reshape(-1)
