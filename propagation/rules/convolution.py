"""Convolutions: a contraction over the channels of each group, with zero padding that makes borders special."""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.propagation.rules.contraction import boolean_product
from sparta.tesa import TeSA
from sparta.tesa.compressed import any_over, anywhere, expand_dims


def _space(call: Call) -> range:
    """Dimensions of height, width, ..."""
    return range(2, call.rank)


def _by_group(flags: Tensor, channels: int, groups: int) -> Tensor:
    """``[N, channels, 1, 1]`` flags as ``[N, groups, 1, channels / groups]``; uniform channels stay uniform."""
    if flags.shape[1] == 1:
        return flags.reshape(-1, 1, 1, 1)
    return flags.reshape(-1, groups, 1, channels // groups)


def _by_channel(flags: Tensor, call: Call) -> Tensor:
    """The inverse of `_by_group`, for flags that vary by channel."""
    return flags.reshape(flags.shape[0], -1, *[1] * len(_space(call)))


def _filters(flags: Tensor, weight: TeSA, groups: int) -> Tensor:
    """``[O, I / groups, kernel]`` flags as ``[groups, I / groups, O / groups]``: any over the kernel."""
    per_pair = any_over(expand_dims(flags, weight.shape, [0, 1]), range(2, flags.dim()))
    out, inputs = per_pair.shape[:2]
    return per_pair.reshape(groups, out // groups, inputs).mT


def _reached(call: Call, data_flags: Tensor, weight_flags: Tensor) -> Tensor:
    """Output channels ``[N, O, 1, 1]`` with a term whose data and weight flags are both set somewhere in space."""
    groups = call.args["groups"]
    channels = int(call["input"].shape[1])
    per_image = _by_group(any_over(data_flags, _space(call)), channels, groups)
    return _by_channel(boolean_product(per_image, _filters(weight_flags, call["weight"], groups)), call)


def _conv_backward(call: Call) -> Needs:
    """Per channel: inputs that a needed output reads through a non-zero filter; filters between such channels."""
    data, weight, groups = call["input"], call["weight"], int(call.args["groups"])
    need = any_over(call.need, _space(call))
    filters = _filters(weight.nonzero, weight, groups)
    per_group = _by_group(need, int(call.shape[1]), groups)
    data_need = _by_channel(boolean_product(per_group, filters.mT), call)
    used = _by_group(any_over(data.nonzero, [0, *_space(call)]), int(data.shape[1]), groups)
    rows = any_over(need, [0]).reshape(-1, *[1] * (call.rank - 1))
    columns = used.expand(1, groups, -1, -1).reshape(groups, 1, -1)
    columns = columns.expand(groups, int(weight.shape[0]) // groups, -1).reshape(int(weight.shape[0]), -1)
    needs = {"input": data_need, "weight": rows & columns.reshape(*columns.shape, *[1] * len(_space(call)))}
    return needs if call.optional("bias") is None else {**needs, "bias": rows.flatten()}


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", backward=_conv_backward)
def convolution(call: Call) -> TeSA | None:
    """An output channel is known where no unknown input meets a non-zero filter.

    Its value is what the real convolution gives for the known inputs: where they are not zero, padding makes it
    differ at the borders, so a dead channel of ones through a padded 3x3 filter is a map, not a number.
    """
    data, weight, bias = call["input"], call["weight"], call.optional("bias")
    if len(data.shape) != len(weight.shape) or not weight.is_static or not isinstance(data.shape[1], int):
        return None
    moving = _reached(call, data.unknown_elements, weight.nonzero)
    if not weight.is_constant:
        moving = moving | _reached(call, data.nonzero, weight.unknown_elements)
    filled = anywhere(data.value != 0)
    if filled and not all(isinstance(data.shape[d], int) for d in _space(call)):
        moving, filled = moving | _reached(call, data.value != 0, weight.nonzero), False
    per_channel = [1, -1, *[1] * len(_space(call))]
    known = ~moving if bias is None else ~moving & bias.known.reshape(per_channel)
    if not anywhere(known):
        return call.unknown()
    if filled:
        return call.partial(known, _known_output(call))
    return call.partial(known, torch.zeros([1] * call.rank) if bias is None else bias.value.reshape(per_channel))


def _known_output(call: Call) -> Tensor:
    """The convolution of the known values of the input, with zero for the unknown ones."""
    data, bias = call["input"], call.optional("bias")
    return call.run(
        input=expand_dims(data.value, data.shape, range(1, call.rank)),
        weight=call["weight"].full_value(),
        bias=None if bias is None else bias.full_value(),
    )
