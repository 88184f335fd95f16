"""A constant weight in every form that choosing a kernel asks for, computed once each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparta.kernels import Format, conv_matrix, find_format
from sparta.kernels.problem import Conv, Problem
from sparta.tesa.patterns import Block, Pattern, find_pattern


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """The weight of one operator.

    Parameters
    ----------
    dense
        As PyTorch has it, `[O, I]` or `[O, C / groups, KH, KW]`, contiguous.
    problem
        The operator.
    pattern
        The structure of its zeros.
    """

    dense: Tensor
    problem: Problem
    pattern: Pattern
    _stored: dict[str, Format] = field(default_factory=dict)

    @classmethod
    def of(cls, weight: Tensor, problem: Problem) -> Weight:
        """The weight of an operator, with its pattern recognized."""
        return cls(weight, problem, find_pattern(weight))

    @property
    def density(self) -> float:
        """Fraction of the weight's elements that are not zero."""
        return self.pattern.density

    def stored(self, name: str) -> Format:
        """The weight in the storage format `name`, as a matrix over all input channels."""
        if name not in self._stored:
            matrix = conv_matrix(self.dense, self.problem.groups) if isinstance(self.problem, Conv) else self.dense
            self._stored[name] = find_format(name).from_dense(matrix, **self.parameters(name))
        return self._stored[name]

    def parameters(self, name: str) -> dict[str, Any]:
        """What the storage format `name` needs to know besides the values."""
        block = (self.pattern.height, self.pattern.width) if isinstance(self.pattern, Block) else (1, 1)
        return {"block": block} if name == "bsr" else {}

    def formats(self) -> Iterator[str]:
        """The storage formats worth trying for this pattern."""
        yield "csr"
        if isinstance(self.pattern, Block):
            yield "bsr"

    def profile(self) -> str:
        """What latency depends on besides the problem: pattern, density, and how uneven the rows are.

        Weights with equal profiles share one measurement: a model has dozens of layers of the same shape and pruning.
        """
        rows = (self.dense != 0).view(torch.uint8).flatten(1).sum(1, dtype=torch.float32)
        unevenness = float(rows.max() / rows.mean().clamp_min(1e-9)) if rows.numel() else 0.0
        return f"{self.pattern} {self.density:.2g} {unevenness:.1g}"
