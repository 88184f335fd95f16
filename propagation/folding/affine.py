"""Shared by linear layers and convolutions: which rows and columns to keep, and where dropped constants go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.batchnorm import Tail
from sparta.propagation.folding.cost import scatter_pays, selection_pays
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, known_value
from sparta.tesa import TeSA
from sparta.tesa.compressed import any_over
from sparta.tesa.patterns import Block, find_pattern

DENSE_ENOUGH = 0.5
"""Density, without empty rows and columns, from which a weight counts as dense."""


@dataclass(frozen=True, slots=True, eq=False)
class Offset:
    """What is added to the product of the kept rows and columns.

    Parameters
    ----------
    bias
        One value for each kept row, in working precision; None for no bias.
    varying
        A constant that differs between positions and broadcasts against the result (borders of a padded
        convolution, positional embeddings); None when there is no such thing.
    """

    bias: Tensor | None
    varying: Tensor | None

    def normalized(self, scale: Tensor | None, shift: Tensor | None, channel: int, rank: int) -> Offset:
        """The offset after a BatchNorm that multiplies each row by `scale` and adds `shift`."""
        if scale is None or shift is None:
            return self
        bias = shift if self.bias is None else self.bias * scale + shift
        varying = None if self.varying is None else self.varying * along(scale, channel, rank)
        return replace(self, bias=bias, varying=varying)


def along(vector: Tensor, dim: int, rank: int) -> Tensor:
    """The vector as a tensor of `rank` dimensions that lies along `dim`."""
    extent = [1] * rank
    extent[dim] = -1
    return vector.reshape(extent)


def working(tensor: Tensor) -> Tensor:
    """The tensor in the precision constants are computed in: double for doubles, float for everything else."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def any_nonzero(tensor: Tensor, dim: int) -> Tensor:
    """A bool vector along `dim`: is anything there different from zero?"""
    return any_over(tensor != 0, [other for other in range(tensor.dim()) if other != dim]).reshape(-1)


def unknown_along(tesa: TeSA, dim: int) -> Tensor:
    """A bool vector along `dim`: is anything there unknown?"""
    unknown = any_over(~tesa.known, [other for other in range(len(tesa.shape)) if other != dim]).reshape(-1)
    return unknown.expand(int(tesa.shape[dim]))


def work_along(matrix: Tensor, dim: int) -> Tensor:
    """The multiply-adds that each row (`dim` 0) or column (1) of a weight costs at one position, as a vector.

    All of them where the weight without its empty rows and columns is dense; only the non-zero ones where a sparse
    kernel will run it: dropping an empty column then saves nothing.
    """
    nonzero = (matrix != 0).view(torch.uint8)
    along_dim = nonzero.sum(1 - dim, dtype=torch.float32)
    other = nonzero.amax(dim).sum(dtype=torch.float32) if nonzero.numel() else torch.zeros(())
    dense = float(along_dim.sum()) > DENSE_ENOUGH * float(other) * int((along_dim > 0).sum())
    return other.expand(len(along_dim)) if dense else along_dim


def choose_rows(folder: Folder, result: fx.Node, dim: int, work: Tensor) -> Kept:
    """The rows to compute: the wanted ones, or what the users will ask for when scattering would not pay.

    `work` holds the multiply-adds of each row at one position.
    """
    wanted, demanded = folder.want(result)[dim], folder.demand(result)[dim]
    if lay.same(wanted, demanded):
        return wanted
    assert wanted is not None
    target = int(lay.count(demanded, folder.tesa(result).shape[dim]))
    saved = float(lay.take(work, (demanded,)).sum() - work[wanted].sum())
    pays = scatter_pays(saved, target, folder.positions(result, dim))
    return wanted if pays else demanded


def whole_rows(weight: Tensor, rows: Kept) -> Kept:
    """The rows extended to whole blocks of a block-sparse weight, whose kernels need them aligned.

    Dropping single rows of ``32 x 1`` blocks would leave an unstructured weight, at half the speed.
    """
    pattern = None if rows is None else find_pattern(weight)
    return lay.whole_blocks(rows, len(weight), pattern.height) if isinstance(pattern, Block) else rows


def whole_columns(matrix: Tensor, columns: Kept, present: Kept) -> Kept:
    """The columns extended to whole blocks in the same way, as far as they are physically `present`."""
    pattern = None if columns is None else find_pattern(matrix)
    if not isinstance(pattern, Block):
        return columns
    extended = lay.whole_blocks(columns, matrix.shape[1], pattern.width)
    return extended if lay.contains(present, extended, matrix.shape[1]) else columns


def choose_columns(folder: Folder, x: fx.Node, dim: int, used: Tensor, work: Tensor) -> Kept:
    """The columns to multiply: unknown and used ones, or all there are when selecting would not pay.

    `work` holds the multiply-adds of each column at one position.
    """
    current = folder.layout(x)[dim]
    size = len(used)
    present = lay.membership(current, size)
    chosen = unknown_along(folder.tesa(x), dim) & used & present
    kept = int(chosen.sum())
    saved = float(work[present & ~chosen].sum())
    if not selection_pays(saved, kept, folder.positions(x, dim)):
        return current
    if kept == 0:
        chosen[int(present.nonzero()[0])] = True
    return lay.from_membership(chosen)


def dropped_constants(folder: Folder, x: fx.Node, dim: int, kept: Kept, used: Tensor) -> tuple[Tensor, Tensor]:
    """`(columns, values)` of the used columns outside `kept` with known values other than zero, compressed."""
    value = known_value(folder.tesa(x))
    size = len(used)
    columns = used & ~lay.membership(kept, size) & any_nonzero(value, dim).expand(size)
    where = columns.nonzero().reshape(-1)
    extent = list(value.shape)
    extent[dim] = size
    return where, working(value.expand(extent).index_select(dim, where))


def emit_offset(folder: Folder, made: fx.Node, offset: Offset, tail: Tail) -> fx.Node:
    """`made` plus the position-dependent part of the offset."""
    if offset.varying is None:
        return made
    constant = folder.emit(offset.varying.to(folder.tesa(tail.result).dtype), f"{tail.result.name}_offset")
    return folder.call(torch.ops.aten.add.Tensor, made, constant)


def emit_bias(folder: Folder, offset: Offset, origin: fx.Node | None, tail: Tail) -> fx.Node | None:
    """The bias of the kept rows, named after the layer's own bias where it has one."""
    if offset.bias is None:
        return None
    bias = offset.bias.to(folder.tesa(tail.result).dtype)
    return folder.emit(bias, f"{tail.result.name}_bias") if origin is None else folder.weight(bias, origin)
