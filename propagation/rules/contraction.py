"""Matrix products: the algebra of attributes in the semiring (OR, AND).

An element of ``lhs @ rhs`` is unknown if and only if some term of its sum is: an unknown factor meets one that may
be different from zero. Everything else is a constant of the masked model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import align, any_over, anywhere, expand_dims, reduce_to


def boolean_product(lhs: Tensor, rhs: Tensor) -> Tensor:
    """OR over k of ``lhs[..., m, k] & rhs[..., k, n]``, on compressed operands.

    Dimensions that are uniform are not expanded; a float product (exact as a zero test, being a sum of
    non-negatives) is only made where both operands vary along all of theirs.
    """
    if lhs.shape[-1] == 1:
        return lhs & any_over(rhs, [-2])
    if rhs.shape[-2] == 1:
        return any_over(lhs, [-1]) & rhs
    if lhs.shape[-2] == 1:
        return any_over(lhs.mT & rhs, [-2])
    if rhs.shape[-1] == 1:
        return any_over(lhs & rhs.mT, [-1])
    return (lhs.float() @ rhs.float()) > 0


def product(call: Call, lhs: TeSA, rhs: TeSA, bias: TeSA | None = None) -> TeSA:
    """Attribute of ``lhs @ rhs + bias`` for operands of two or more dimensions.

    Weight rows 0-3 zero -> result columns 0-3 equal their bias; input column k known zero -> weight column k is idle.
    """
    moving = boolean_product(lhs.unknown_elements, rhs.nonzero)
    if not rhs.is_constant:
        moving = moving | boolean_product(lhs.nonzero, rhs.unknown_elements)
    known = ~moving if bias is None else ~moving & align(bias.known, moving.dim())
    if not anywhere(known):
        return call.unknown()
    sums = bool(lhs.value.any()) and bool(rhs.value.any())
    if sums and not isinstance(lhs.shape[-1], int):
        known, sums = known & ~boolean_product(lhs.value != 0, rhs.value != 0), False
    value = _known_sum(lhs, rhs) if sums else torch.zeros([1] * known.dim())
    value = value if bias is None else value + align(bias.value, known.dim())
    return call.partial(known & value.isfinite(), value)


def _known_sum(lhs: TeSA, rhs: TeSA) -> Tensor:
    """The part of the product that known elements contribute, in float32 at least."""
    dtype = torch.promote_types(lhs.dtype, torch.float32)
    left = expand_dims(lhs.value, lhs.shape, [len(lhs.shape) - 1]).to(dtype)
    return left @ expand_dims(rhs.value, rhs.shape, [len(rhs.shape) - 2]).to(dtype)


def product_needs(call: Call, lhs: TeSA, rhs: TeSA) -> tuple[Tensor, Tensor]:
    """Need of both operands: some needed sum has the element in a term whose other factor may be non-zero."""
    need = align(call.need, max(2, call.rank))
    return (
        reduce_to(boolean_product(need, rhs.nonzero.mT), lhs.shape),
        reduce_to(boolean_product(lhs.nonzero.mT, need), rhs.shape),
    )


def _as_matrix(tesa: TeSA) -> TeSA:
    """The attribute of a vector as a matrix of one row."""
    if len(tesa.shape) > 1:
        return tesa
    parts = (align(part, 2) for part in (tesa.known, tesa.value, tesa.need))
    return TeSA((1, *tesa.shape), tesa.dtype, *parts)


def _linear_backward(call: Call) -> Needs:
    data, weight = call["input"], call["weight"]
    data_need, weight_need = product_needs(call, _as_matrix(data), weight.transposed())
    needs = {"input": align(data_need, len(data.shape)), "weight": weight_need.mT}
    bias = call.optional("bias")
    return needs if bias is None else {**needs, "bias": reduce_to(call.need, bias.shape)}


@rule("aten.linear", backward=_linear_backward)
def linear(call: Call) -> TeSA:
    """``x @ weight.T + bias``."""
    return product(call, _as_matrix(call["input"]), call["weight"].transposed(), call.optional("bias"))


_FACTOR_NAMES = (("batch1", "batch2"), ("mat1", "mat2"), ("self", "mat2"), ("self", "other"))


def _factors(call: Call) -> tuple[str, str]:
    """Names of the two factors: mm, bmm, addmm, baddbmm and matmul all call them differently."""
    return next(names for names in _FACTOR_NAMES if call.args.keys() >= set(names))


def _added_product_backward(call: Call) -> Needs:
    return {**_product_backward(call), "self": reduce_to(call.need, call["self"].shape)}


@rule("aten.addmm", "aten.baddbmm", backward=_added_product_backward)
def added_product(call: Call) -> TeSA | None:
    """``bias + lhs @ rhs``."""
    if call.args["alpha"] != 1 or call.args["beta"] != 1:
        return None
    lhs, rhs = (call[name] for name in _factors(call))
    return product(call, lhs, rhs, call["self"])


def _product_backward(call: Call) -> Needs:
    lhs, rhs = _factors(call)
    return dict(zip((lhs, rhs), product_needs(call, call[lhs], call[rhs]), strict=True))


@rule("aten.mm", "aten.bmm", "aten.matmul", backward=_product_backward)
def matmul(call: Call) -> TeSA | None:
    """``lhs @ rhs``, batch dimensions broadcast."""
    lhs, rhs = (call[name] for name in _factors(call))
    return product(call, lhs, rhs) if len(lhs.shape) > 1 and len(rhs.shape) > 1 else None
