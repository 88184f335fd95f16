"""Weights as the computes of `sparta.kernels.codegen.computes` read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.formats import Bsr, Csr


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """Entries sorted by block of features, then group of rows, then column."""

    starts: Tensor
    """int32 [blocks, groups + 1]: where the entries of each group begin."""
    columns: Tensor
    """uint16 [entries]: the feature of each entry within its block."""
    weights: Tensor
    """float32 [entries, height]: the weights of each entry, one per row of its group."""

    @property
    def height(self) -> int:
        """Rows of a group."""
        return self.weights.shape[1]

    @property
    def addresses(self) -> tuple[int, int, int]:
        """What a kernel is passed."""
        return self.starts.data_ptr(), self.columns.data_ptr(), self.weights.data_ptr()

    @property
    def group_sizes(self) -> Tensor:
        """Entries of each group in all blocks."""
        return (self.starts[:, 1:] - self.starts[:, :-1]).sum(0)


def _pack(group: Tensor, column: Tensor, weights: Tensor, *, groups: int, in_features: int, block: int) -> PackedWeight:
    """Entries [n] of known groups and columns, in any order, sorted and cut into blocks of columns."""
    assert block <= 1 << 16, "columns within a block are stored as 16 bits"
    blocks = -(-in_features // block)
    cell = (column // block * groups + group) * block + column % block
    order = cell.argsort()
    counts = torch.bincount(cell // block, minlength=blocks * groups).view(blocks, groups)
    ends = counts.flatten().cumsum(0).view(blocks, groups)
    starts = torch.cat([ends[:, :1] - counts[:, :1], ends], dim=1)
    columns = (column % block)[order].to(torch.uint16)
    return PackedWeight(starts.int(), columns, weights[order].to(torch.float32).contiguous())


def pack_csr(weight: Csr, block: int) -> PackedWeight:
    """One entry per nonzero; groups are single rows."""
    rows, in_features = weight.shape
    return _pack(
        weight.row_indices(),
        weight.col_indices.long(),
        weight.values[:, None],
        groups=rows,
        in_features=in_features,
        block=block,
    )


def pack_bsr(weight: Bsr, block: int, height: int) -> PackedWeight:
    """One entry per column of a block and group of `height` of its rows; columns past the last are left out."""
    (block_height, block_width), (rows, in_features) = weight.block, weight.shape
    pieces = block_height // height
    count = weight.values.shape[0]
    values = weight.values.view(count, pieces, height, block_width).transpose(2, 3)
    group = weight.row_indices()[:, None, None] * pieces + torch.arange(pieces)[None, :, None]
    column = weight.col_indices.long()[:, None, None] * block_width + torch.arange(block_width)
    groups = -(-rows // height)
    kept = ((column < in_features) & (group < groups)).expand(count, pieces, block_width)
    return _pack(
        group.expand(kept.shape)[kept],
        column.expand(kept.shape)[kept],
        values[kept],
        groups=groups,
        in_features=in_features,
        block=block,
    )
