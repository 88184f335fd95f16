"""Joining tensors along a dimension, and taking them apart: cat, stack, split, chunk, unbind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import expand_dims, uniform


def _concatenate(parts: Sequence[Tensor], dim: int) -> Tensor:
    """`parts`, at their true size along `dim`, joined; elsewhere compressed ones broadcast to the others."""
    sizes = torch.broadcast_shapes(*([1 if d == dim else n for d, n in enumerate(part.shape)] for part in parts))
    return torch.cat(
        [part.expand([part.shape[dim] if d == dim else n for d, n in enumerate(sizes)]) for part in parts], dim
    )


def _true_pieces(call: Call) -> list[tuple[int, TeSA]]:
    """Position and attribute of the pieces that have elements: an empty vector may be joined with anything."""
    return [(i, piece) for i, piece in enumerate(call.args["tensors"]) if piece.shape != (0,) or call.rank == 1]


def _cat_backward(call: Call) -> Needs:
    dim = call.dim()
    needs = [uniform(len(piece.shape), False) for piece in call.args["tensors"]]
    start = 0
    for position, piece in _true_pieces(call):
        size = piece.shape[dim]
        if call.need.shape[dim] == 1:
            needs[position] = call.need
        else:
            assert isinstance(size, int), "a need that varies has a static size"
            needs[position] = call.need.narrow(dim, start, size)
            start += size
    return {"tensors": needs}


@rule("aten.cat", "aten.concat", "aten.concatenate", backward=_cat_backward)
def concatenate(call: Call) -> TeSA:
    """``cat([a, b])``: the attributes one after the other; the same tensor twice is needed where either copy is."""
    dim = call.dim()
    pieces = [piece for _, piece in _true_pieces(call)]
    if not isinstance(call.shape[dim], int):
        return _same_everywhere(call, [piece.uniform_over([dim]) for piece in pieces])
    known, value = (
        _concatenate([expand_dims(part, piece.shape, [dim]) for piece, part in zip(pieces, parts, strict=True)], dim)
        for parts in ([p.known for p in pieces], [p.value.to(call.dtype) for p in pieces])
    )
    return call.partial(known, value)


def _same_everywhere(call: Call, pieces: Sequence[TeSA]) -> TeSA:
    """The attribute of joined pieces that are uniform along the dimension: known where all are, and agree."""
    known, value = pieces[0].known, pieces[0].value
    for piece in pieces[1:]:
        known = known & piece.known & (piece.value == value)
    return call.partial(known, value)


def _stack_backward(call: Call) -> Needs:
    dim = call.dim()
    count = len(call.args["tensors"])
    return {"tensors": [call.need.select(dim, 0 if call.need.shape[dim] == 1 else i) for i in range(count)]}


@rule("aten.stack", backward=_stack_backward)
def stack(call: Call) -> TeSA:
    """The attributes along a new dimension."""
    dim, pieces = call.dim(), call.args["tensors"]
    known, value = (
        _concatenate([part.unsqueeze(dim) for part in parts], dim)
        for parts in ([p.known for p in pieces], [p.value.to(call.dtype) for p in pieces])
    )
    return call.partial(known, value)


def _split_backward(call: Call) -> Needs:
    dim = call.dim()
    needs = [expand_dims(need, piece.shape, [dim]) for need, piece in zip(call.needs, call.outputs, strict=True)]
    return {"self": _concatenate(needs, dim)}


@rule("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", backward=_split_backward)
def split(call: Call) -> tuple[TeSA, ...] | None:
    """The pieces of one dimension, whatever their sizes."""
    data, dim = call["self"], call.dim()
    sizes = [piece.shape[dim] for piece in call.outputs]
    if not all(isinstance(size, int) for size in sizes):
        return None
    starts = [sum(int(size) for size in sizes[:i]) for i in range(len(sizes))]
    return tuple(_piece(data, piece, dim, start) for piece, start in zip(call.outputs, starts, strict=True))


def _piece(data: TeSA, piece: TeSA, dim: int, start: int) -> TeSA:
    size = int(piece.shape[dim])
    parts = (part if part.shape[dim] == 1 else part.narrow(dim, start, size) for part in (data.known, data.value))
    return TeSA.partial(piece.shape, piece.dtype, *parts)


def _unbind_backward(call: Call) -> Needs:
    dim = call.dim(rank=call.rank + 1)
    return {"self": _concatenate([need.unsqueeze(dim) for need in call.needs], dim)}


@rule("aten.unbind", backward=_unbind_backward)
def unbind(call: Call) -> tuple[TeSA, ...]:
    """Every index of a dimension, which disappears."""
    data, dim = call["self"], call.dim(rank=call.rank + 1)
    return tuple(
        TeSA.partial(
            piece.shape,
            piece.dtype,
            *(part.select(dim, 0 if part.shape[dim] == 1 else i) for part in (data.known, data.value)),
        )
        for i, piece in enumerate(call.outputs)
    )
