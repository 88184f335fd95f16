"""Elementwise operators: run on the kept elements; constants are sliced, neutral constants disappear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.layout import Kept, Layout
from sparta.propagation.folding.table import RULES, folds, operator_name
from sparta.tesa.compressed import Size

EXTRA_POINTWISE = frozenset(
    f"aten.{name}"
    for name in ("_to_copy", "hardswish", "masked_fill", "__and__", "__or__", "__xor__", "log_sigmoid", "fill", "to")
)
"""Operators that work element by element although PyTorch does not tag them so."""

IDENTITIES = frozenset(
    f"aten.{name}" for name in ("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "dropout")
)
"""Operators whose result is their operand in eval mode."""

NEUTRAL = {"aten.add": 0, "aten.sub": 0, "aten.mul": 1, "aten.div": 1}
"""Binary operator -> right operand that changes nothing."""

COMMUTATIVE = frozenset({"aten.add", "aten.mul"})


def is_elementwise(node: fx.Node) -> bool:
    """Whether every element of the result depends on the elements at its place only."""
    if not isinstance(node.target, torch._ops.OpOverload) or operator_name(node) in RULES:
        return False
    tags = node.target.tags
    pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return pointwise or operator_name(node) in EXTRA_POINTWISE


def aligned(operand_rank: int, rank: int) -> range:
    """The dimensions of a result that the dimensions of a broadcast operand line up with."""
    return range(rank - operand_rank, rank)


def operand_layout(folder: Folder, operand: fx.Node, layout: Layout) -> Layout:
    """The part of a result's layout that falls on an operand; broadcast dimensions stay whole."""
    shape = folder.tesa(operand).shape
    return tuple(
        None if size == 1 else layout[dim] for size, dim in zip(shape, aligned(len(shape), len(layout)), strict=True)
    )


def pull_elementwise(folder: Folder, operand: fx.Node, user: fx.Node, layout: Layout) -> Layout:
    """Elementwise operators take their operands in the layout of their result."""
    return operand_layout(folder, operand, layout)


def result_layout(folder: Folder, node: fx.Node) -> Layout:
    """The cheapest layout: the wanted indices, or more where that spares an operand its relayout."""
    shape = folder.tesa(node).shape
    operands = [n for n in node.all_input_nodes if folder.placed(n) and folder.is_tensor(n)]
    return tuple(_cheapest(folder, node, operands, dim, size) for dim, size in enumerate(shape))


def _cheapest(folder: Folder, node: fx.Node, operands: list[fx.Node], dim: int, size: Size) -> Kept:
    rank = len(folder.tesa(node).shape)
    wanted = folder.want(node)[dim]
    present = []
    for operand in operands:
        own = dim - rank + len(folder.tesa(operand).shape)
        if own >= 0 and folder.tesa(operand).shape[own] != 1:
            present.append(folder.layout(operand)[own])
    candidates = [wanted, *(kept for kept in present if lay.contains(kept, wanted, size))]
    if all(kept is None for kept in candidates):
        return None
    return min(candidates, key=lambda kept: _moves(kept, present, int(size)))


def _moves(kept: Kept, present: list[Kept], size: int) -> float:
    """Elements computed and moved when the result is laid out as `kept`; scattering costs about twice."""
    computed = moved = lay.count(kept, size)
    factors = (0 if lay.same(kept, have) else 1 if lay.contains(have, kept, size) else 2 for have in present)
    return int(computed) + int(moved) * sum(factors)


def fold_elementwise(folder: Folder, node: fx.Node) -> bool:
    """`relu(x[:, kept])` for `relu(x)`; `x` for `x + 0`."""
    layout = result_layout(folder, node)
    survivor = _unchanged_operand(folder, node, layout)
    if survivor is not None:
        return folder.place(node, folder.get(survivor, layout), layout)

    broadcast = _supplied(folder, node)

    def operand(argument: fx.Node) -> Any:
        if not folder.is_tensor(argument):
            return folder.scalar(argument)
        own = operand_layout(folder, argument, layout)
        if folder.placed(argument):
            return folder.get(argument, own)
        first = len(layout) - len(own)
        return folder.constant(argument, own, [dim - first for dim in broadcast if dim >= first])

    args, kwargs = fx.map_arg(node.args, operand), fx.map_arg(node.kwargs, operand)
    return folder.place(node, folder.again(node, *args, **kwargs), layout)


def _supplied(folder: Folder, node: fx.Node) -> list[int]:
    """Dimensions of the result that some placed operand has at full size, so that constants may broadcast."""
    rank, supplied = len(folder.tesa(node).shape), set()
    for operand in node.all_input_nodes:
        if folder.placed(operand) and folder.is_tensor(operand):
            shape = folder.tesa(operand).shape
            supplied |= {dim for size, dim in zip(shape, aligned(len(shape), rank), strict=True) if size != 1}
    return sorted(supplied)


def _unchanged_operand(folder: Folder, node: fx.Node, layout: Layout) -> fx.Node | None:
    """The operand that the result equals because the other one is neutral; None when there is none."""
    name = operator_name(node)
    if name not in NEUTRAL or len(node.args) != 2 or node.kwargs.get("rounding_mode") is not None:
        return None
    left, right = node.args
    # `add` scales its right operand by the keyword `alpha`.
    options = [(left, right)] + ([(right, left)] if name in COMMUTATIVE and not node.kwargs else [])
    for kept, other in options:
        if _same_kind(folder, kept, node) and _equals(folder, other, layout, NEUTRAL[name]):
            assert isinstance(kept, fx.Node)
            return kept
    return None


def _same_kind(folder: Folder, operand: Any, node: fx.Node) -> bool:
    if not (folder.is_tensor(operand) and folder.placed(operand)):
        return False
    tesa, result = folder.tesa(operand), folder.tesa(node)
    return tesa.shape == result.shape and tesa.dtype == result.dtype


def _equals(folder: Folder, operand: Any, layout: Layout, neutral: int) -> bool:
    """Whether an operand has the neutral value at every element of `layout` (an exact -0.0 + x is x as well)."""
    if isinstance(operand, int | float):
        return operand == neutral
    if not folder.is_constant(operand):
        return False
    value: Tensor = lay.take(folder.tesa(operand).value, operand_layout(folder, operand, layout))
    return bool((value == neutral).all())


@folds(*IDENTITIES)
def fold_identity(folder: Folder, node: fx.Node) -> bool:
    """`x` for `clone(x)`."""
    operand = node.args[0]
    assert isinstance(operand, fx.Node)
    if not folder.placed(operand):
        return False
    layout = folder.layout(operand)
    return folder.place(node, folder.get(operand, layout), layout)


@folds("aten.prelu")
def fold_prelu(folder: Folder, node: fx.Node) -> bool:
    """`prelu(x[:, kept], weight[kept])`: the weight belongs to dimension 1."""
    operand, slope = node.args
    assert isinstance(operand, fx.Node)
    assert isinstance(slope, fx.Node)
    if not folder.placed(operand):
        return False
    layout = folder.layout(operand)
    per_channel = len(layout) > 1 and folder.tesa(slope).shape == (folder.tesa(operand).shape[1],)
    channels = layout[1] if per_channel else None
    made = folder.again(node, folder.get(operand, layout), folder.get(slope, (channels,)))
    return folder.place(node, made, layout)
