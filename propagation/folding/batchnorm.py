"""Eval-mode BatchNorm: a known scale and shift per channel, folded into the layer before it where it can be."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.table import arguments, folds, folds_item, operator_name

aten = torch.ops.aten

NATIVE = "aten._native_batch_norm_legit_no_training"
PARAMETERS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """What a layer's own result becomes: `result` is the node to place, after scaling and shifting its channels."""

    result: fx.Node
    scale: Tensor | None = None
    shift: Tensor | None = None


def tail_of(folder: Folder, node: fx.Node, channel: int) -> Tail:
    """The BatchNorm that may be folded into the layer `node` (channels in dimension `channel`), else the node."""
    users = list(node.users)
    if channel != 1 or len(users) != 1 or users[0].args[:1] != (node,):
        return Tail(node)
    norm = users[0]
    result = _result(norm)
    if result is None or not _is_fixed(folder, norm):
        return Tail(node)
    return Tail(result, *scale_and_shift(folder, norm))


def _result(norm: fx.Node) -> fx.Node | None:
    """The node that holds the normalized tensor when `norm` is a BatchNorm; None otherwise."""
    if operator_name(norm) == "aten.batch_norm":
        return norm
    if operator_name(norm) == NATIVE:
        items = [user for user in norm.users if user.target is operator.getitem]
        if len(items) == len(norm.users) == 1 and items[0].args[1] == 0:
            return items[0]
    return None


def _is_fixed(folder: Folder, norm: fx.Node) -> bool:
    bound = arguments(norm)
    parameters = [bound[name] for name in PARAMETERS]
    fixed = all(node is None or folder.is_constant(node) for node in parameters)
    return fixed and None not in parameters[2:] and not bound.get("training", False)


def scale_and_shift(folder: Folder, norm: fx.Node) -> tuple[Tensor, Tensor]:
    """`(scale, shift)` of every channel, in working precision."""
    bound = arguments(norm)
    weight, bias, mean, variance = (
        None if bound[name] is None else _working(folder.tensor(bound[name])) for name in PARAMETERS
    )
    assert mean is not None
    assert variance is not None
    scale = torch.rsqrt(variance + bound["eps"])
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


def _working(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@folds("aten.batch_norm")
def fold_batch_norm(folder: Folder, node: fx.Node) -> bool:
    """`batch_norm(x[:, kept], weight[kept], ...)`."""
    return _sliced(folder, node, node)


@folds_item(NATIVE)
def fold_native_batch_norm(folder: Folder, item: fx.Node, norm: fx.Node, index: int) -> bool:
    """The same for the form with several results, of which only the first is ever used."""
    return index == 0 and _sliced(folder, item, norm)


def _sliced(folder: Folder, result: fx.Node, norm: fx.Node) -> bool:
    bound = arguments(norm)
    x = bound["input"]
    if not folder.placed(x) or not _is_fixed(folder, norm):
        return False
    layout = folder.layout(x)
    parameters = [None if bound[name] is None else folder.get(bound[name], layout[1:2]) for name in PARAMETERS]
    made = folder.call(
        aten.batch_norm.default, folder.get(x, layout), *parameters, False, bound["momentum"], bound["eps"], False
    )
    return folder.place(result, made, layout)
