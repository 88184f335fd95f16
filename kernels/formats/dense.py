"""Every element stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparta.kernels.formats.base import VALUE_DTYPES, Format, check_weight, format


@format("dense")
@dataclass(frozen=True, slots=True, eq=False)
class Dense(Format):
    """A plain matrix ``values[O, I]``."""

    layout: ClassVar[Mapping[str, tuple[tuple[torch.dtype, ...], int]]] = {"values": (VALUE_DTYPES, 2)}

    shape: tuple[int, int]
    values: Tensor

    @classmethod
    def from_dense(cls, weight: Tensor, **parameters: Any) -> Dense:
        """`weight` itself, contiguous."""
        assert not parameters, f"the dense format has no parameters, got {parameters}"
        check_weight(weight)
        return cls((weight.shape[0], weight.shape[1]), weight.detach().contiguous())

    def to_dense(self) -> Tensor:
        """The stored matrix."""
        return self.values

    @classmethod
    def problems(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Iterator[str]:
        """What contradicts the format in stored components."""
        if tuple(components["values"].shape) != shape:
            yield f"component 'values' has shape {tuple(components['values'].shape)}, expected {shape}"

    @classmethod
    def restore(cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> Dense:
        """The weight made of checked components."""
        return cls(shape, components["values"])
