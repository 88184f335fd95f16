"""Normalization: batch norm acts per channel; layer, RMS and group norm couple all elements of a row or group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import all_over, any_over, expand_dims, reduce_to, uniform


def _parameters(call: Call, names: Iterable[str]) -> dict[str, TeSA]:
    """The tensor arguments among `names` that the call has."""
    return {name: call[name] for name in names if call.args.get(name) is not None}


def _all_constant(parameters: dict[str, TeSA]) -> bool:
    return all(parameter.is_constant for parameter in parameters.values())


def _known_where_scaled_away(call: Call, shape: list[int]) -> Tensor:
    """Where the scale is zero, so that the result is the shift whatever the data."""
    weight = call.optional("weight")
    return uniform(call.rank, False) if weight is None else weight.zero.reshape(shape)


_STATISTICS = ("weight", "bias", "running_mean", "running_var")


def _batch_norm_backward(call: Call) -> Needs:
    channel = any_over(call.need, [d for d in range(call.rank) if d != 1]).flatten()
    return {"input": call.need, **dict.fromkeys(_parameters(call, _STATISTICS), channel)}


def _batch_norm_value(call: Call) -> TeSA | None:
    parameters = _parameters(call, _STATISTICS)
    if "running_mean" not in parameters or not _all_constant(parameters):
        return None
    data, per_channel = call["input"], [1, -1, *[1] * (call.rank - 2)]
    full = {name: parameter.full_value() for name, parameter in parameters.items()}
    mean, scale = full["running_mean"], torch.rsqrt(full["running_var"] + call.args["eps"])
    scale = scale * full["weight"] if "weight" in full else scale
    shift = full.get("bias", torch.zeros(())) - mean * scale
    value = data.value * scale.reshape(per_channel) + shift.reshape(per_channel)
    return call.partial(data.known | _known_where_scaled_away(call, per_channel), value)


@rule("aten._native_batch_norm_legit_no_training", backward=_batch_norm_backward)
def native_batch_norm(call: Call) -> tuple[TeSA, ...] | None:
    """A dead channel becomes ``beta - mean * gamma / sigma``; a channel with gamma 0 becomes beta."""
    result = _batch_norm_value(call)
    return None if result is None else (result, *call.outputs[1:])


@rule("aten.batch_norm", backward=_batch_norm_backward)
def batch_norm(call: Call) -> TeSA | None:
    """As `native_batch_norm`; with batch statistics nothing is known."""
    return None if call.args["training"] else _batch_norm_value(call)


def _row_dims(call: Call) -> list[int]:
    return list(range(call.rank - len(call.args["normalized_shape"]), call.rank))


def _row_norm_backward(call: Call) -> Needs:
    """Statistics couple a row: one needed element needs it whole."""
    affine = {name: reduce_to(call.need, p.shape) for name, p in _parameters(call, ("weight", "bias")).items()}
    return {"input": any_over(call.need, _row_dims(call)), **affine}


@rule("aten.layer_norm", "aten.rms_norm", backward=_row_norm_backward)
def row_norm(call: Call) -> TeSA | None:
    """A row is known when all of it is; where the scale is zero the result is the shift.

    A row of 8 with 3 dead elements stays unknown everywhere: their zeros shift with the mean of the others.
    """
    data, dims = call["input"], _row_dims(call)
    affine = _parameters(call, ("weight", "bias"))
    if call.is_symbolic or not _all_constant(affine):
        return None
    whole = all_over(data.known, dims)
    full = {name: parameter.full_value() for name, parameter in affine.items()}
    value = call.run(input=expand_dims(data.value, data.shape, dims), **full)
    scaled_away = _known_where_scaled_away(call, [1] * (call.rank - len(dims)) + [int(data.shape[d]) for d in dims])
    return call.partial(whole | scaled_away, value)


def _group_norm_backward(call: Call) -> Needs:
    """Statistics couple the channels of a group over all positions."""
    need = call.need
    if need.shape[1] != 1:
        grouped = need.reshape(need.shape[0], int(call.args["num_groups"]), -1)
        per_channel = int(call.shape[1]) // int(call.args["num_groups"])
        coupled = any_over(grouped, [2]).expand(-1, -1, per_channel).reshape(need.shape[0], -1)
        need = coupled.reshape(*coupled.shape, *[1] * (call.rank - 2))
    channel = any_over(call.need, [d for d in range(call.rank) if d != 1]).flatten()
    affine = dict.fromkeys(_parameters(call, ("weight", "bias")), channel)
    return {"input": any_over(need, range(2, call.rank)), **affine}


@rule("aten.group_norm", backward=_group_norm_backward)
def group_norm(call: Call) -> TeSA | None:
    """A group is known when all its channels are, everywhere; where the scale is zero the result is the shift."""
    data = call["input"]
    affine = _parameters(call, ("weight", "bias"))
    if not all(isinstance(size, int) for size in data.shape[1:]) or not _all_constant(affine):
        return None
    channels = expand_dims(all_over(data.known, range(2, call.rank)), data.shape, [1])
    groups = channels.reshape(channels.shape[0], int(call.args["num_groups"]), -1)
    whole = all_over(groups, [2]).expand_as(groups).reshape(channels.shape)
    full = {name: parameter.full_value() for name, parameter in affine.items()}
    value = call.run(input=expand_dims(data.value, data.shape, range(1, call.rank)), **full)
    return call.partial(whole | _known_where_scaled_away(call, [1, -1, *[1] * (call.rank - 2)]), value)


def _softmax_backward(call: Call) -> Needs:
    """The denominator couples a row."""
    return {"self": any_over(call.need, [call.dim()])}


@rule("aten.softmax", "aten._softmax", backward=_softmax_backward)
def softmax(call: Call) -> TeSA | None:
    """A row is known when all of it is; a known -inf beside anything else gives 0 (causal masks).

    ``[x, -inf, y] -> [?, 0, ?]``
    """
    data, dim = call["self"], call.dim()
    excluded = data.known & (data.value == -torch.inf)
    zero = excluded & any_over(expand_dims(~excluded, data.shape, [dim]), [dim])
    if not isinstance(data.shape[dim], int):
        return call.unknown()
    whole = all_over(data.known, [dim])
    value = call.run(self=expand_dims(data.value, data.shape, [dim]))
    return call.partial(whole | zero, torch.where(zero, torch.zeros((), dtype=value.dtype), value))


@rule("aten.log_softmax", "aten._log_softmax", backward=_softmax_backward)
def log_softmax(call: Call) -> TeSA | None:
    """A row is known when all of it is."""
    data, dim = call["self"], call.dim()
    if not isinstance(data.shape[dim], int):
        return call.unknown()
    return call.partial(all_over(data.known, [dim]), call.run(self=expand_dims(data.value, data.shape, [dim])))
