"""A program: one compiled graph of a model, for the input shapes it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.reporting.report import Report
from sparta.runtime.inputs import Leaf, accepts_all


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What runs a call, and for which calls.

    Parameters
    ----------
    module
        Takes the flattened leaves and returns the flat results (`out_spec` given), or takes the call itself.
    in_spec
        Structure of the calls it accepts.
    leaves
        What it accepts for each flattened argument; None where it takes any call.
    out_spec
        Structure of the result, or None where `module` takes and returns what forward does.
    report
        What was done and measured.
    direct
        The masked dense model, where that is not slower: it runs, and `module` is what a file holds.
    autocast
        Element type of the autocast it was compiled in, which its graph carries out; None for none.
    """

    module: nn.Module
    in_spec: pytree.TreeSpec
    leaves: tuple[Leaf, ...] | None
    out_spec: pytree.TreeSpec | None
    report: Report
    direct: nn.Module | None = None
    autocast: torch.dtype | None = None

    def accepts(self, leaves: Sequence[Any], spec: pytree.TreeSpec) -> bool:
        """Whether this program can run a call with these leaves."""
        if self.leaves is None:
            return True
        return spec == self.in_spec and accepts_all(self.leaves, leaves)

    def run(self, call: Call, leaves: Sequence[Any]) -> Any:
        """The result of the model for a call, given with its leaves."""
        if self.out_spec is None or self.direct is not None:
            args, kwargs = call
            return (self.direct or self.module)(*args, **kwargs)
        return pytree.tree_unflatten(list(self.module(*leaves)), self.out_spec)

    def reported(self, **changes: Any) -> Program:
        """The program with some facts of its report replaced."""
        return replace(self, report=replace(self.report, **changes))
