"""Data movement: every element of the result is a copy of one element of the input, or a fill value."""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call, run_operator
from sparta.propagation.registry import Needs, Rule, aten, register, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import anywhere, static_sizes, uniform

LARGEST_MAP = 1 << 25
"""Elements of an index map that is still worth building."""


def _slice_backward(call: Call) -> Needs:
    """The need scattered into zeros, or everything along a dimension that is cut at symbolic places."""
    data, dim = call["self"], call.dim()
    if not anywhere(call.need):
        return {"self": uniform(call.rank, False)}
    if not _is_fixed_cut(call):
        return {"self": uniform(call.rank, True)}
    size = int(data.shape[dim])
    scattered = torch.zeros([size if d == dim else n for d, n in enumerate(call.need.shape)], dtype=torch.bool)
    target = call.run(self=scattered)
    target.copy_(call.need.expand_as(target))
    return {"self": scattered}


def _is_fixed_cut(call: Call) -> bool:
    return not call.is_symbolic and isinstance(call["self"].shape[call.dim()], int)


@rule("aten.slice", backward=_slice_backward)
def slice_(call: Call) -> TeSA:
    """A run of one dimension; what is uniform along it stays so, wherever it is cut."""
    data, dim = call["self"], call.dim()
    if not _is_fixed_cut(call):
        data = data.uniform_over([dim])
        return call.partial(data.known, data.value)
    parts = (part if part.shape[dim] == 1 else call.run(self=part) for part in (data.known, data.value))
    return call.unknown() if call.shape[dim] == 0 else call.partial(*parts)


def _select_backward(call: Call) -> Needs:
    data = call["self"]
    dim, index = call.dim(rank=len(data.shape)), call.integer("index")
    size, need = data.shape[dim], call.need.unsqueeze(dim)
    if index is None or not isinstance(size, int):
        return {"self": need}
    scattered = torch.zeros([size if d == dim else n for d, n in enumerate(need.shape)], dtype=torch.bool)
    scattered.narrow(dim, index % size, 1).copy_(need)
    return {"self": scattered}


@rule("aten.select", backward=_select_backward)
def select(call: Call) -> TeSA:
    """One index of a dimension, which disappears."""
    data, index = call["self"], call.integer("index")
    dim = call.dim(rank=len(data.shape))
    if index is None:
        data, index = data.uniform_over([dim]), 0
    parts = (part.select(dim, 0 if part.shape[dim] == 1 else index) for part in (data.known, data.value))
    return call.partial(*parts)


def moving(*names: str) -> None:
    """Rows of operators that copy elements, or fill with zeros or with their argument `value`.

    The operator itself, run on the positions of the elements, tells where each element of its result comes from.
    """
    for name in names:
        register(name, Rule(_move, _move_backward))


def _origins(call: Call) -> Tensor | None:
    """For every element of the result, 1 + the flat position in the input it is a copy of; 0 where it is filled.

    None where the map depends on data or on a symbolic size, or is too large.
    """
    name, data = call.data()
    if call.is_symbolic or not _indices_are_known(call):
        return None
    sizes = static_sizes(data.shape)
    elements = torch.Size(sizes).numel()
    if max(elements, torch.Size(static_sizes(call.shape)).numel()) > LARGEST_MAP:
        return None
    positions = torch.arange(1, elements + 1, dtype=torch.float64).reshape(sizes)
    fill = {"value": 0} if "value" in call.args else {}
    origins = run_operator(call.node, {**call.full_values(without=name), name: positions, **fill}).long()
    return origins if list(origins.shape) == static_sizes(call.shape) else None


def _indices_are_known(call: Call) -> bool:
    _, data = call.data()
    return all(index.is_constant and index.is_static for index in call.operands() if index is not data)


def _move(call: Call) -> TeSA | None:
    origins = _origins(call)
    if origins is None:
        return None
    _, data = call.data()
    fill = call.args.get("value") or 0
    sizes = static_sizes(data.shape)
    known = torch.cat([torch.ones(1, dtype=torch.bool), data.known.expand(sizes).flatten()])
    value = torch.cat([torch.full((1,), fill, dtype=data.dtype), data.value.expand(sizes).flatten()])
    return call.partial(known[origins], value[origins])


def _move_backward(call: Call) -> Needs | None:
    origins = _origins(call)
    if origins is None:
        return None
    name, data = call.data()
    sizes = static_sizes(data.shape)
    needed = torch.zeros(1 + torch.Size(sizes).numel(), dtype=torch.bool)
    needed[origins[call.need.expand_as(origins)]] = True
    return {name: needed[1:].reshape(sizes)}


moving(*aten("roll flip rot90 pixel_shuffle pixel_unshuffle channel_shuffle repeat tile repeat_interleave"))
moving(*aten("index index_select gather take_along_dim diagonal unfold im2col"))
moving(*aten("pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d"))
moving(*aten("replication_pad1d replication_pad2d replication_pad3d"))
