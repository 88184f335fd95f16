"""Reductions over whole dimensions."""

from __future__ import annotations

from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, Rule, register
from sparta.tesa import TeSA
from sparta.tesa.compressed import all_over, expand_dims


def reduction(*names: str) -> None:
    """Rows of reductions: known where all reduced elements are, with the value the operator itself gives.

    Over a symbolic dimension only zeros stay known (sum, mean and extremes of zeros are zero).
    """
    for name in names:
        register(name, Rule(_forward, _backward))


def _reduced_dims(call: Call) -> list[int]:
    rank = len(call["self"].shape)
    dims = call.args.get("dim")
    listed = dims if isinstance(dims, list | tuple) else [] if dims is None else [dims]
    return [d % rank for d in listed] if listed else list(range(rank))


def _drop_dims(reduced: Tensor, call: Call) -> Tensor:
    """`reduced`, whose reduced dimensions have size 1, in the rank of the result."""
    dims = _reduced_dims(call)
    if call.rank == reduced.dim():
        return reduced
    return reduced.reshape([size for d, size in enumerate(reduced.shape) if d not in dims])


def _forward(call: Call) -> TeSA | None:
    data, dims = call["self"], _reduced_dims(call)
    if call.is_symbolic:
        return None
    known = all_over(data.known, dims)
    if not all(isinstance(data.shape[d], int) for d in dims):
        zero = known & all_over(data.value == 0, dims)
        return call.partial(_drop_dims(zero, call), data.value.new_zeros([1] * call.rank))
    return call.partial(_drop_dims(known, call), call.run(self=expand_dims(data.value, data.shape, dims)))


def _backward(call: Call) -> Needs:
    data, dims = call["self"], _reduced_dims(call)
    need = call.need
    if need.dim() != len(data.shape):
        for dim in sorted(dims):
            need = need.unsqueeze(dim)
    return {"self": need}


reduction("aten.mean", "aten.sum", "aten.amax", "aten.amin")
