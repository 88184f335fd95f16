"""Operators that need some dimensions whole and treat the others index by index: pools, padding, softmax, rolls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.table import arguments, folds, folds_item, operator_name

Whole = Callable[[dict[str, Any], int], Iterable[int]]
"""(arguments, rank) -> the dimensions that the operator needs whole."""


def _last(count: int) -> Whole:
    return lambda bound, rank: range(rank - count, rank)


def _one(bound: dict[str, Any], rank: int) -> Iterable[int]:
    return [bound["dim"] % rank]


def _several(bound: dict[str, Any], rank: int) -> Iterable[int]:
    return [dim % rank for dim in bound["dims"]] or range(rank)


def _padded(bound: dict[str, Any], rank: int) -> Iterable[int]:
    return range(rank - len(bound["pad"]) // 2, rank)


def _repeated(bound: dict[str, Any], rank: int) -> Iterable[int]:
    return [dim for dim, times in enumerate(bound["repeats"]) if times != 1]


WHOLE: dict[str, Whole] = {
    **{f"aten.{kind}{count}d": _last(count) for kind in ("max_pool", "avg_pool") for count in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{count}d": _last(count) for count in (1, 2, 3)},
    **{f"aten._adaptive_avg_pool{count}d": _last(count) for count in (2, 3)},
    **{f"aten.{kind}_pad{count}d": _last(count) for kind in ("reflection", "replication") for count in (1, 2, 3)},
    **{f"aten.upsample_{kind}2d": _last(2) for kind in ("nearest", "bilinear", "bicubic")},
    "aten.upsample_nearest1d": _last(1),
    "aten.upsample_linear1d": _last(1),
    "aten.pixel_shuffle": _last(3),
    "aten.pixel_unshuffle": _last(3),
    "aten.constant_pad_nd": _padded,
    "aten.pad": _padded,
    "aten.roll": _several,
    "aten.flip": _several,
    "aten.repeat": _repeated,
    **{f"aten.{name}": _one for name in ("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "glu")},
}
"""Operator -> the dimensions it needs whole. The others correspond one by one between operand and result."""


@folds(*WHOLE)
def fold_whole_dims(folder: Folder, node: fx.Node) -> bool:
    """The operator on the kept indices of the dimensions that it treats index by index."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    rank = len(folder.tesa(x).shape)
    if not folder.placed(x) or len(folder.tesa(node).shape) != rank:
        return False
    whole = set(WHOLE[operator_name(node)](arguments(node), rank))
    layout = tuple(None if dim in whole else kept for dim, kept in enumerate(folder.layout(x)))
    args, kwargs = fx.map_arg(node.args[1:], folder.operand), fx.map_arg(node.kwargs, folder.operand)
    made = folder.again(node, folder.get(x, layout), *args, **kwargs)
    return folder.place(node, made, layout)


@folds_item("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def fold_pool_with_indices(folder: Folder, item: fx.Node, producer: fx.Node, index: int) -> bool:
    """The maxima on the kept channels, where nobody uses their places."""
    x = producer.args[0]
    assert isinstance(x, fx.Node)
    if index != 0 or len(producer.users) != 1 or not folder.placed(x):
        return False
    spatial = 2 if "2d" in operator_name(producer) else 3
    layout = (*folder.layout(x)[:-spatial], *(None,) * spatial)
    pooled = folder.again(producer, folder.get(x, layout), *producer.args[1:])
    return folder.place(item, folder.call(operator.getitem, pooled, 0), layout)
