"""Calls of an optimized module: what a program accepts, and fresh inputs to verify with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a program expects of one flattened argument: a tensor's type and shape, or a value.

    A size is an int, or the name of a symbol that may have any value, the same everywhere in the call.
    """

    dtype: torch.dtype | None
    shape: tuple[int | str, ...]
    value: Any = None

    def accepts(self, leaf: object, symbols: dict[str, int]) -> bool:
        """Whether the program can take this argument; notes the values of symbolic sizes in `symbols`."""
        if not isinstance(leaf, Tensor):
            return self.dtype is None and type(leaf) is type(self.value) and _equal(leaf, self.value)
        if leaf.dtype != self.dtype or leaf.dim() != len(self.shape):
            return False
        for want, got in zip(self.shape, leaf.shape, strict=True):
            if got != (symbols.setdefault(want, got) if isinstance(want, str) else want):
                return False
        return True


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are the same for sure; arrays, which compare element by element, are not."""
    try:
        return bool(a == b)
    except ValueError:
        return False


def accepts_all(wanted: Sequence[Leaf], leaves: Sequence[Any]) -> bool:
    """Whether a program with these expectations can take these arguments."""
    symbols: dict[str, int] = {}
    return len(wanted) == len(leaves) and all(
        want.accepts(leaf, symbols) for want, leaf in zip(wanted, leaves, strict=True)
    )


def expected(leaf: object, symbols: Mapping[int, str] | None = None) -> Leaf:
    """The expectation that `leaf` itself fulfills; `symbols` names the dimensions of free size."""
    if not isinstance(leaf, Tensor):
        return Leaf(None, (), leaf)
    free = symbols or {}
    return Leaf(leaf.dtype, tuple(free.get(dim, int(size)) for dim, size in enumerate(leaf.shape)))


def autocast_type() -> torch.dtype | None:
    """The element type of the autocast in force on the CPU, or None."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def flatten(call: Call) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a call and their structure."""
    return pytree.tree_flatten(call)


@torch.no_grad()
def copied(call: Call) -> Call:
    """The call with its own containers and its own copies of all tensors."""
    leaves, spec = flatten(call)
    args, kwargs = pytree.tree_unflatten([x.clone() if isinstance(x, Tensor) else x for x in leaves], spec)
    return args, kwargs


def fresh(call: Call) -> Call:
    """The call with new random tensors: floats of the same mean and deviation, integers and bools in the range seen."""
    leaves, spec = flatten(call)
    args, kwargs = pytree.tree_unflatten([_fresh_leaf(leaf) for leaf in leaves], spec)
    return args, kwargs


def _fresh_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.numel() == 0:
        return leaf
    leaf = leaf.detach()
    if leaf.dtype.is_floating_point:
        return _fresh_float(leaf)
    if leaf.dtype.is_complex:
        return leaf.clone()
    low, high = int(leaf.min()), int(leaf.max())
    return torch.randint(low, high + 1, leaf.shape, device=leaf.device).to(leaf.dtype)


def _fresh_float(leaf: Tensor) -> Tensor:
    """Normal draws where the example varies; entries such as -inf of an attention mask stay where they are."""
    finite = leaf.isfinite() & (leaf.abs() < torch.finfo(leaf.dtype).max / 2)
    values = leaf[finite].double()
    if values.numel() < 2 or float(values.std()) == 0.0:
        return leaf.clone()
    draw = torch.randn(leaf.shape, device=leaf.device, dtype=torch.float64) * values.std() + values.mean()
    return torch.where(finite, draw.to(leaf.dtype), leaf)


def first_of_batch(call: Call, dynamic: Sequence[Sequence[int]]) -> Call:
    """The call with every symbolic batch dimension cut to 1."""
    leaves, spec = flatten(call)
    cut = [
        leaf[:1] if isinstance(leaf, Tensor) and 0 in dims else leaf for leaf, dims in zip(leaves, dynamic, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(cut, spec)
    return args, kwargs


def shapes_of(call: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors of a call."""
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
