"""Block compressed sparse rows: dense blocks of one size, only those that hold a nonzero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from sparta.kernels.formats.base import (
    INDEX_DTYPES,
    VALUE_DTYPES,
    Format,
    check_weight,
    format,
    is_size,
    offsets_of,
    offsets_problems,
    order_problems,
    range_problems,
)


def _ceil_div(size: int, step: int) -> int:
    return -(-size // step)


@format("bsr")
@dataclass(frozen=True, slots=True, eq=False)
class Bsr(Format):
    """Block row r holds ``values[j]`` [bh, bw] at block column ``col_indices[j]``, ``crow_indices`` delimiting rows.

    Blocks that stick out over the last row or column are padded with zeros.

    Examples
    --------
    >>> weight = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    >>> Bsr.from_dense(weight, block=(2, 2)).values
    tensor([[[1., 0.],
             [0., 2.]]])
    """

    layout: ClassVar[Mapping[str, tuple[tuple[torch.dtype, ...], int]]] = {
        "crow_indices": (INDEX_DTYPES, 1),
        "col_indices": (INDEX_DTYPES, 1),
        "values": (VALUE_DTYPES, 3),
    }

    shape: tuple[int, int]
    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.values.shape[1], self.values.shape[2]

    @property
    def grid(self) -> tuple[int, int]:
        """Number of block rows and block columns."""
        return _ceil_div(self.shape[0], self.block[0]), _ceil_div(self.shape[1], self.block[1])

    @classmethod
    def from_dense(cls, weight: Tensor, **parameters: Any) -> Bsr:
        """The blocks of `weight`, of size ``block=(bh, bw)``, that hold a nonzero."""
        check_weight(weight)
        height, width = parameters["block"]
        rows, columns = weight.shape
        padded = functional.pad(weight.detach(), (0, -columns % width, 0, -rows % height))
        grid = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
        blocks = grid.permute(0, 2, 1, 3)
        # Reduced as bytes: torch's any() over several dimensions of a bool tensor is far slower.
        stored = (blocks != 0).to(torch.uint8).amax((2, 3)).bool()
        at_row, at_column = stored.nonzero(as_tuple=True)
        crow_indices = offsets_of(torch.bincount(at_row, minlength=stored.shape[0]))
        return cls((rows, columns), crow_indices, at_column.int(), blocks[at_row, at_column].contiguous())

    def to_dense(self) -> Tensor:
        """The weight [O, I]."""
        blocks = self.values.new_zeros((*self.grid, *self.block))
        blocks[self.row_indices(), self.col_indices.long()] = self.values
        padded = blocks.permute(0, 2, 1, 3).flatten(2, 3).flatten(0, 1)
        return padded[: self.shape[0], : self.shape[1]].contiguous()

    def row_indices(self) -> Tensor:
        """The block row of each stored block (int64)."""
        counts = (self.crow_indices[1:] - self.crow_indices[:-1]).long()
        return torch.repeat_interleave(torch.arange(self.grid[0]), counts)

    def parameters(self) -> dict[str, Any]:
        """The block size."""
        return {"block": self.block}

    @classmethod
    def problems(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Iterator[str]:
        """What contradicts the format in stored components."""
        crow, columns, values = (components[name] for name in cls.layout)
        block = parameters.get("block")
        if not (isinstance(block, tuple | list) and len(block) == 2 and all(is_size(size) for size in block)):
            yield f"parameter 'block' must be two positive sizes, not {block!r}"
            return
        if tuple(values.shape[1:]) != tuple(block):
            yield f"component 'values' holds blocks of {tuple(values.shape[1:])}, expected {tuple(block)}"
            return
        if columns.numel() != values.shape[0]:
            yield f"'col_indices' has {columns.numel()} elements but 'values' has {values.shape[0]} blocks"
            return
        grid = _ceil_div(shape[0], block[0]), _ceil_div(shape[1], block[1])
        broken = [
            *offsets_problems("crow_indices", crow, count=grid[0], total=values.shape[0]),
            *range_problems("col_indices", columns, limit=grid[1]),
        ]
        yield from broken or order_problems("col_indices", columns, crow)
        yield from () if broken else cls.restore(shape, components, parameters)._padding_problems()

    def _padding_problems(self) -> Iterator[str]:
        """Whether something is stored beyond the last row or column."""
        (rows, columns), (height, width) = self.shape, self.block
        below = self.values[self.row_indices() == self.grid[0] - 1, (rows - 1) % height + 1 :]
        right = self.values[self.col_indices == self.grid[1] - 1][:, :, (columns - 1) % width + 1 :]
        if bool((below != 0).any()) or bool((right != 0).any()):
            yield f"component 'values' holds nonzeros outside the {rows} x {columns} matrix"

    @classmethod
    def restore(cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> Bsr:
        """The weight made of checked components."""
        return cls(shape, *(components[name] for name in cls.layout))
