"""Compressed sparse rows: one column index and one value per nonzero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparta.kernels.formats.base import (
    INDEX_DTYPES,
    VALUE_DTYPES,
    Format,
    check_weight,
    format,
    offsets_of,
    offsets_problems,
    order_problems,
    range_problems,
)


@format("csr")
@dataclass(frozen=True, slots=True, eq=False)
class Csr(Format):
    """Row o holds ``values[j]`` at column ``col_indices[j]`` for ``crow_indices[o] <= j < crow_indices[o + 1]``.

    Examples
    --------
    >>> Csr.from_dense(torch.tensor([[0.0, 2.0], [0.0, 0.0]])).crow_indices
    tensor([0, 1, 1], dtype=torch.int32)
    """

    layout: ClassVar[Mapping[str, tuple[tuple[torch.dtype, ...], int]]] = {
        "crow_indices": (INDEX_DTYPES, 1),
        "col_indices": (INDEX_DTYPES, 1),
        "values": (VALUE_DTYPES, 1),
    }

    shape: tuple[int, int]
    crow_indices: Tensor
    col_indices: Tensor
    values: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, **parameters: Any) -> Csr:
        """The nonzeros of `weight`, row by row."""
        assert not parameters, f"the csr format has no parameters, got {parameters}"
        check_weight(weight)
        weight = weight.detach()
        rows, columns = weight.nonzero(as_tuple=True)
        crow_indices = offsets_of(torch.bincount(rows, minlength=weight.shape[0]))
        return cls((weight.shape[0], weight.shape[1]), crow_indices, columns.int(), weight[rows, columns])

    def to_dense(self) -> Tensor:
        """The weight [O, I]."""
        weight = self.values.new_zeros(self.shape)
        weight[self.row_indices(), self.col_indices.long()] = self.values
        return weight

    def row_indices(self) -> Tensor:
        """The row of each stored element (int64)."""
        counts = (self.crow_indices[1:] - self.crow_indices[:-1]).long()
        return torch.repeat_interleave(torch.arange(self.shape[0]), counts)

    @classmethod
    def problems(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Iterator[str]:
        """What contradicts the format in stored components."""
        crow, columns, values = (components[name] for name in cls.layout)
        if columns.numel() != values.numel():
            yield f"'col_indices' has {columns.numel()} elements but 'values' has {values.numel()}"
        broken = list(offsets_problems("crow_indices", crow, count=shape[0], total=values.numel()))
        yield from broken
        yield from range_problems("col_indices", columns, limit=shape[1])
        if not broken and columns.numel() == values.numel():
            yield from order_problems("col_indices", columns, crow)

    @classmethod
    def restore(cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> Csr:
        """The weight made of checked components."""
        return cls(shape, *(components[name] for name in cls.layout))
