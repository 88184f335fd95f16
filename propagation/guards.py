"""Which calls a captured graph may run: shapes, types, constants, and the conditions assumed about symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
from torch import Tensor
from torch.utils import _pytree as pytree

from sparta.propagation.stages import Captured
from sparta.tesa.compressed import Size, shape_of

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def guards_of(program: ExportedProgram) -> tuple[sympy.Basic, ...]:
    """The conditions on symbolic sizes that tracing assumed, such as ``s0 > 5`` where the forward branched on it."""
    values = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    environments = [value.fake_mode.shape_env for value in values if hasattr(value, "fake_mode")]
    if not environments or environments[0] is None:
        return ()
    environment = environments[0]
    conditions = dict.fromkeys(environment.replace(guard.expr) for guard in environment.guards)
    return tuple(condition for condition in conditions if condition is not sympy.true)


def mismatch(captured: Captured, leaves: Sequence[Any]) -> str | None:
    """Why the captured graph must not run a call with these flat arguments; None where it may.

    A symbolic size may be anything that meets the guards, also 1, although tracing assumed at least 2: whether a batch
    of 1 broadcasts differently is for verification to find out.

    Examples
    --------
    >>> import torch
    >>> from sparta.propagation import capture
    >>> captured = capture(torch.nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> mismatch(captured, [torch.randn(7, 4)])
    >>> mismatch(captured, [torch.randn(7, 5)])
    'input_1 has size 5 in dimension 1, captured 4'
    """
    placeholders = {node.name: node for node in captured.graph.find_nodes(op="placeholder")}
    expected = [placeholders[name].meta.get("val") for name in captured.user_inputs]
    constants = pytree.tree_leaves(captured.example)
    sizes: dict[Size, int] = {}
    for name, want, constant, have in zip(captured.user_inputs, expected, constants, leaves, strict=True):
        problem = _leaf_mismatch(want, constant, have, sizes)
        if problem is not None:
            return f"{name} {problem}"
    return violated(captured.guards, sizes)


def violated(guards: Sequence[sympy.Basic], sizes: dict[Size, int]) -> str | None:
    """The first guard that the given values of the symbols break."""
    for guard in guards:
        if guard.subs(sizes) is sympy.false:
            return f"the call breaks {guard}, which the captured graph assumes"
    return None


def _leaf_mismatch(want: Any, constant: Any, have: Any, sizes: dict[Size, int]) -> str | None:
    """What differs between one argument and the captured one; notes the values of symbolic sizes in `sizes`."""
    if not isinstance(want, Tensor):
        return None if have is constant or have == constant else f"is {have!r}, captured {constant!r}"
    if not isinstance(have, Tensor):
        return f"is a {type(have).__name__}, captured a tensor"
    if have.dtype != want.dtype or have.device != want.device or have.dim() != want.dim():
        return f"is {_kind(have)}, captured {_kind(want)}"
    for dim, (size, symbol) in enumerate(zip(have.shape, shape_of(want), strict=True)):
        known = symbol if isinstance(symbol, int) else sizes.setdefault(symbol, size)
        if size != known:
            return f"has size {size} in dimension {dim}, captured {known}"
    return None


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dim()}-d {tensor.dtype} on {tensor.device}"
