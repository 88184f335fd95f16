"""Pooling over windows of the last dimensions."""

from __future__ import annotations

from sparta.propagation.call import Call
from sparta.propagation.registry import Backward, Forward, Needs, Rule, aten, register
from sparta.tesa import TeSA
from sparta.tesa.compressed import all_over, any_over, expand_dims


def pooling(*names: str, dims: int) -> None:
    """Rows of operators that mix the positions of the last `dims` dimensions, never channels.

    A channel known at all positions stays known, with the value the operator gives it (padding included).
    """
    for name in names:
        register(name, Rule(_forward(dims), _backward(dims)))


def _forward(dims: int) -> Forward:
    def forward(call: Call) -> TeSA | None:
        name, data = call.data()
        space = range(call.rank - dims, call.rank)
        known = all_over(data.known, space)
        if not all(isinstance(data.shape[d], int) for d in space):
            zero = known & all_over(data.value == 0, space)
            return call.partial(zero, data.value.new_zeros([1] * call.rank))
        if call.is_symbolic:
            return None
        return call.partial(known, call.run(**{name: expand_dims(data.value, data.shape, space)}))

    return forward


def _backward(dims: int) -> Backward:
    def backward(call: Call) -> Needs:
        name, _ = call.data()
        return {name: any_over(call.need, range(call.rank - dims, call.rank))}

    return backward


pooling(*aten("max_pool1d avg_pool1d adaptive_avg_pool1d"), dims=1)
pooling(*aten("max_pool2d avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d"), dims=2)
pooling(*aten("max_pool3d avg_pool3d adaptive_avg_pool3d"), dims=3)
pooling(*aten("upsample_bilinear2d upsample_bicubic2d upsample_nearest2d"), dims=2)
