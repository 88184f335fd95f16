"""Elementwise operators with broadcasting: an element of the result depends on the same element of each operand."""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, Rule, aten, register, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import align, any_over, anywhere, expand_dims, reduce_to, uniform


def elementwise(*names: str) -> None:
    """Rows of elementwise operators: known where all operands are, with the value the operator itself gives.

    So zero-preserving functions keep zeros by themselves, and ``sigmoid(0) = 0.5`` is not forgotten.
    """
    for name in names:
        register(name, Rule(elementwise_forward, elementwise_backward))


def elementwise_forward(call: Call) -> TeSA:
    """Known where every operand is known."""
    known = uniform(call.rank, True)
    for _, operand in call.tensors():
        known = known & align(operand.known, call.rank)
    return evaluate(call, known)


def evaluate(call: Call, known: Tensor) -> TeSA:
    """The result is `known` there, and the operator itself says with what value."""
    if call.is_symbolic or not anywhere(known):
        return call.unknown()
    return call.partial(known, call.run(**{name: _safe_value(operand) for name, operand in call.tensors()}))


def _safe_value(operand: TeSA) -> Tensor:
    """Values of `operand`, with 1 where an integer is unknown: dividing integers by a placeholder 0 would raise."""
    if operand.dtype.is_floating_point or operand.dtype == torch.bool:
        return operand.value
    return torch.where(operand.known, operand.value, torch.ones((), dtype=operand.dtype))


def elementwise_backward(call: Call) -> Needs:
    """Every operand is needed where the result is, summed over broadcasting."""
    return {name: reduce_to(call.need, operand.shape) for name, operand in call.tensors()}


elementwise(*aten("relu relu6 gelu silu mish tanh hardswish leaky_relu elu celu selu hardshrink softshrink"))
elementwise(*aten("hardtanh sigmoid hardsigmoid softplus log_sigmoid threshold logit erf erfc"))
elementwise(*aten("neg abs sign square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p"))
elementwise(*aten("sin cos tan asin acos atan sinh cosh asinh floor ceil round trunc frac nan_to_num"))
elementwise(*aten("clamp clamp_min clamp_max clip logical_not bitwise_not isnan isinf isfinite"))
elementwise(*aten("clone contiguous alias detach lift_fresh_copy lift_fresh _to_copy to"))
elementwise(*aten("pow maximum minimum fmod remainder floor_divide rsub atan2 lerp addcmul addcdiv"))
elementwise(*aten("eq ne lt le gt ge logical_xor bitwise_xor __xor__"))


@rule("aten.mul", "aten.multiply", backward=elementwise_backward)
def multiply(call: Call) -> TeSA:
    """A known zero absorbs: ``0 * x -> 0``."""
    factors = [call.operand("self"), call.operand("other")]
    left, right = (align(factor.known, call.rank) for factor in factors)
    absorbed = align(factors[0].zero, call.rank) | align(factors[1].zero, call.rank)
    return evaluate(call, (left & right) | absorbed)


@rule("aten.div", "aten.divide", "aten.true_divide", backward=elementwise_backward)
def divide(call: Call) -> TeSA:
    """A known zero stays zero: ``0 / x -> 0`` unless x is known to be zero."""
    over, under = call.operand("self"), call.operand("other")
    both = align(over.known, call.rank) & align(under.known, call.rank)
    absorbed = align(over.zero, call.rank) & ~align(under.known, call.rank)
    quotient = evaluate(call, both | absorbed)
    if not anywhere(absorbed):
        return quotient
    return call.partial(quotient.known, torch.where(absorbed, torch.zeros((), dtype=call.dtype), quotient.value))


@rule("aten.add", "aten.sub", backward=elementwise_backward)
def add(call: Call) -> TeSA:
    """A known infinity absorbs: ``-inf + x -> -inf``, as in attention masks."""
    terms = [call.operand("self"), call.operand("other")]
    left, right = (align(term.known, call.rank) for term in terms)
    known = left & right
    for term in terms:
        if term.dtype.is_floating_point:
            known = known | align(term.known & term.value.isinf(), call.rank)
    return evaluate(call, known)


@rule("aten.logical_and", "aten.bitwise_and", "aten.__and__", backward=elementwise_backward)
def conjunction(call: Call) -> TeSA:
    """False, or integer 0, absorbs."""
    return _absorbing(call, absorber=False)


@rule("aten.logical_or", "aten.bitwise_or", "aten.__or__", backward=elementwise_backward)
def disjunction(call: Call) -> TeSA:
    """True absorbs."""
    return _absorbing(call, absorber=True)


def _absorbing(call: Call, *, absorber: bool) -> TeSA:
    operands = [call.operand("self"), call.operand("other")]
    if any(operand.dtype != torch.bool for operand in operands):
        return elementwise_forward(call)
    known = [align(operand.known, call.rank) for operand in operands]
    absorbed = [align(operand.known & (operand.value == absorber), call.rank) for operand in operands]
    return evaluate(call, (known[0] & known[1]) | absorbed[0] | absorbed[1])


def _channel_need(call: Call) -> Needs:
    per_channel = any_over(call.need, [d for d in range(call.rank) if d != 1])
    weight = per_channel.flatten() if call["weight"].shape[0] != 1 else uniform(1, anywhere(call.need))
    return {"self": call.need, "weight": weight}


@rule("aten.prelu", "aten._prelu_kernel", backward=_channel_need)
def prelu(call: Call) -> TeSA | None:
    """Zero-preserving; its weight runs along dimension 1, not along the last as broadcasting would have it."""
    data, weight = call["self"], call["weight"]
    if not weight.is_constant or call.rank < 2 or len(weight.shape) != 1:
        return None
    return call.partial(data.known, call.run(self=expand_dims(data.value, data.shape, [1]), weight=weight.full_value()))


@rule("aten.dropout", backward=elementwise_backward)
def dropout(call: Call) -> TeSA | None:
    """The identity in eval mode; in training nothing is known."""
    return None if call.args["train"] else elementwise_forward(call)
