"""Choosing between two operands by a condition: where, masked_fill."""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import align, reduce_to


def _select(call: Call, condition: TeSA, if_true: TeSA, if_false: TeSA) -> TeSA:
    """Known where the chosen operand is, or where both are the same constant whatever the condition says."""
    chosen = align(condition.value.bool(), call.rank)
    decided = align(condition.known, call.rank)
    true_known, false_known = align(if_true.known, call.rank), align(if_false.known, call.rank)
    true_value, false_value = (align(side.value.to(call.dtype), call.rank) for side in (if_true, if_false))
    agree = true_known & false_known & (true_value == false_value)
    known = agree | (decided & torch.where(chosen, true_known, false_known))
    return call.partial(known, torch.where(chosen, true_value, false_value))


def _side_needs(call: Call, condition: TeSA) -> tuple[Tensor, Tensor]:
    """Where the result is needed and the condition may choose the first side, and the second."""
    chosen = align(condition.value.bool(), call.rank)
    decided = align(condition.known, call.rank)
    return call.need & ~(decided & ~chosen), call.need & ~(decided & chosen)


def _where_backward(call: Call) -> Needs:
    condition = call["condition"]
    needs = {"condition": reduce_to(call.need, condition.shape)}
    for name, need in zip(("self", "other"), _side_needs(call, condition), strict=True):
        if isinstance(call.args[name], TeSA):
            needs[name] = reduce_to(need, call[name].shape)
    return needs


@rule("aten.where", backward=_where_backward)
def where(call: Call) -> TeSA | None:
    """``where(known condition, a, b)`` is the chosen side."""
    if "self" not in call.args or call.is_symbolic:
        return None
    return _select(call, call["condition"], call.operand("self"), call.operand("other"))


def _fill_backward(call: Call) -> Needs:
    mask = call["mask"]
    filled, kept = _side_needs(call, mask)
    needs = {"mask": reduce_to(call.need, mask.shape), "self": reduce_to(kept, call["self"].shape)}
    if isinstance(call.args["value"], TeSA):
        needs["value"] = reduce_to(filled, call["value"].shape)
    return needs


@rule("aten.masked_fill", backward=_fill_backward)
def masked_fill(call: Call) -> TeSA | None:
    """``masked_fill(x, known mask, v)`` is v under the mask and x elsewhere."""
    if call.is_symbolic:
        return None
    return _select(call, call["mask"], call.operand("value"), call["self"])
