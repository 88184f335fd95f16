"""Sliced ELLPACK: slices of a few rows, one row per vector lane, padded to the longest row of the slice."""

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
    is_size,
    offsets_of,
    offsets_problems,
    range_problems,
)
from sparta.kernels.formats.csr import Csr

PADDING = -1
"""Column index of a lane that has no more elements."""


@format("sell")
@dataclass(frozen=True, slots=True, eq=False)
class Sell(Format):
    """Slice s is ``values[slice_indices[s]:slice_indices[s + 1]]``, lane l of it row ``row_indices[s * height + l]``.

    Rows are sorted by length within windows of `window` rows, so that the rows of a slice have about the same number of
    nonzeros. Lanes past the last row have row indices of O and more; a lane with fewer elements than its slice has
    column index -1 and value 0.
    """

    layout: ClassVar[Mapping[str, tuple[tuple[torch.dtype, ...], int]]] = {
        "row_indices": (INDEX_DTYPES, 1),
        "slice_indices": (INDEX_DTYPES, 1),
        "col_indices": (INDEX_DTYPES, 2),
        "values": (VALUE_DTYPES, 2),
    }

    shape: tuple[int, int]
    row_indices: Tensor
    slice_indices: Tensor
    col_indices: Tensor
    values: Tensor
    window: int

    @property
    def height(self) -> int:
        """Rows of a slice."""
        return self.values.shape[1]

    @classmethod
    def from_dense(cls, weight: Tensor, **parameters: Any) -> Sell:
        """The nonzeros of `weight` in slices of ``height=16`` rows, sorted within ``window=128`` rows."""
        check_weight(weight)
        height, window = int(parameters.get("height", 16)), int(parameters.get("window", 128))
        assert window % height == 0, f"windows of {window} rows are no whole number of slices of {height}"
        csr = Csr.from_dense(weight)
        counts = torch.zeros(-(-weight.shape[0] // height) * height, dtype=torch.int64)
        counts[: weight.shape[0]] = csr.crow_indices[1:] - csr.crow_indices[:-1]
        # Longest first within a window, one window after the other.
        key = torch.arange(counts.numel()) // window * (weight.shape[1] + 1) + weight.shape[1] - counts
        order = key.argsort(stable=True)
        slices = offsets_of(counts[order].view(-1, height).amax(1))
        row_of = csr.row_indices()
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        lane = place[row_of]
        slot = slices[lane // height] + torch.arange(row_of.numel()) - csr.crow_indices[row_of]
        columns = torch.full((int(slices[-1]), height), PADDING, dtype=torch.int32)
        values = csr.values.new_zeros(columns.shape)
        columns[slot, lane % height] = csr.col_indices
        values[slot, lane % height] = csr.values
        return cls(csr.shape, order.int(), slices, columns, values, window)

    def to_dense(self) -> Tensor:
        """The weight [O, I]."""
        weight = self.values.new_zeros(self.shape)
        counts = (self.slice_indices[1:] - self.slice_indices[:-1]).long()
        rows = self.row_indices.view(-1, self.height).repeat_interleave(counts, 0)
        stored = self.col_indices != PADDING
        weight[rows[stored].long(), self.col_indices[stored].long()] = self.values[stored]
        return weight

    def parameters(self) -> dict[str, Any]:
        """The rows of a slice and of a window."""
        return {"height": self.height, "window": self.window}

    @classmethod
    def problems(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Iterator[str]:
        """What contradicts the format in stored components."""
        rows, slices, columns, values = (components[name] for name in cls.layout)
        height = parameters.get("height")
        if not is_size(height) or columns.shape != values.shape or values.shape[1] != height:
            yield (
                f"'col_indices' {tuple(columns.shape)} and 'values' {tuple(values.shape)} must both have as many "
                f"columns as parameter 'height', which is {height!r}"
            )
            return
        window, lanes = parameters.get("window"), -(-shape[0] // height) * height
        if not isinstance(window, int) or not is_size(window) or window % height:
            yield f"parameter 'window' must be a multiple of {height}, not {window!r}"
            return
        if not _sorted_within(rows.long(), lanes, window):
            yield f"component 'row_indices' does not permute 0 to {lanes - 1} within windows of {window}"
            return
        broken = [
            *offsets_problems("slice_indices", slices, count=lanes // height, total=values.shape[0]),
            *range_problems("col_indices", columns, low=PADDING, limit=shape[1]),
        ]
        yield from broken or cls.restore(shape, components, parameters)._lane_problems()

    def _lane_problems(self) -> Iterator[str]:
        """Whether padding or lanes without a row hold something, or a row has two elements in one column."""
        counts = (self.slice_indices[1:] - self.slice_indices[:-1]).long()
        rows = self.row_indices.view(-1, self.height).repeat_interleave(counts, 0).long()
        stored = self.col_indices != PADDING
        if bool((self.values[~stored] != 0).any()):
            yield "component 'values' is not zero in the padding"
        if bool((rows[stored] >= self.shape[0]).any()):
            yield f"component 'col_indices' places elements below the last of {self.shape[0]} rows"
        places = (rows * self.shape[1] + self.col_indices)[stored].sort().values
        if bool((places[1:] == places[:-1]).any()):
            yield "component 'col_indices' places two elements of a row in one column"

    @classmethod
    def restore(cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> Sell:
        """The weight made of checked components."""
        rows, slices, columns, values = (components[name] for name in cls.layout)
        return cls(shape, rows, slices, columns, values, parameters["window"])


def _sorted_within(rows: Tensor, lanes: int, window: int) -> bool:
    """Whether `rows` permutes 0, 1, ... ``lanes - 1`` without leaving windows of `window`."""
    if rows.numel() != lanes:
        return False
    whole = torch.arange(lanes)
    return torch.equal(rows.sort().values, whole) and torch.equal(rows // window, whole // window)
