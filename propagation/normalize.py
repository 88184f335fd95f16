"""A captured graph in the one form that rules and folds expect: functional, no views, no no-ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

aten = torch.ops.aten

VIEWS = (aten.view.default, aten._unsafe_view.default)
"""Reshapes that were legal for the strides seen at capture; folding changes strides, so all become `reshape`."""

NO_OPS = frozenset(
    (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default)
)
"""In a functional graph these return their input; they only differ in aliasing and strides."""

CONCATENATIONS = (aten.cat.default,)

NAMED_PADDING: Mapping[object, torch._ops.OpOverload] = {
    aten.conv1d.padding: aten.conv1d.default,
    aten.conv2d.padding: aten.conv2d.default,
    aten.conv3d.padding: aten.conv3d.default,
}
"""Convolution with ``padding="same"`` or ``"valid"`` -> the one with sizes, which has rules and kernels."""

ASSERTIONS = frozenset((aten._assert_tensor_metadata.default,))
"""Checks of dtype, device and layout that were settled at capture."""

STRIDE_SENSITIVE = frozenset(
    (
        aten.as_strided.default,
        aten.as_strided_scatter.default,
        aten.view.dtype,
        aten.view_as_complex.default,
        aten.view_as_real.default,
        aten.stride.int,
        aten.sym_stride.int,
        aten.is_contiguous.default,
    )
)
"""Operators that see strides: a graph with one of them keeps its copies."""


def normalize(graph: fx.Graph, root: nn.Module) -> None:
    """Rewrite `graph`, and the bodies of its higher-order operators in `root`, to normal form, in place.

    Before: ``clone(transpose(x)); view(clone, [-1])``. After: ``reshape(transpose(x), [-1])``.
    """
    for module in root.modules():
        if isinstance(module, fx.GraphModule):
            _normalize_one(module.graph)
            module.recompile()
    _normalize_one(graph)


def _normalize_one(graph: fx.Graph) -> None:
    steps: Sequence[tuple[Iterable[object], Callable[[fx.Node], None]]] = (
        (VIEWS, _to_reshape),
        (ASSERTIONS, graph.erase_node),
        (CONCATENATIONS, _drop_empty),
        (NAMED_PADDING, _to_padding_sizes),
        (NO_OPS, _drop_no_op),
    )
    for targets, step in steps:
        _apply(graph, targets, step)
    graph.eliminate_dead_code()
    graph.lint()


def _apply(graph: fx.Graph, targets: Iterable[object], step: Callable[[fx.Node], None]) -> None:
    if step is _drop_no_op and any(node.target in STRIDE_SENSITIVE for node in graph.nodes):
        return
    for target in targets:
        for node in graph.find_nodes(op="call_function", target=target):  # type: ignore[arg-type]
            step(node)


def _to_reshape(node: fx.Node) -> None:
    node.target = aten.reshape.default


def _to_padding_sizes(node: fx.Node) -> None:
    """Spell out the padding, unless it is larger on one side, as for ``"same"`` with an even kernel."""
    defaults: tuple[Any, ...] = (None, None, None, [1], "valid", [1], 1)
    arguments: tuple[Any, ...] = (*node.args, *defaults[len(node.args) :])
    x, weight, bias, stride, padding, dilation, groups = arguments
    kernel = weight.meta["val"].shape[2:]
    steps = dilation * (len(kernel) // len(dilation))
    total = [step * (size - 1) if padding == "same" else 0 for step, size in zip(steps, kernel, strict=True)]
    if not any(size % 2 for size in total):
        node.target = NAMED_PADDING[node.target]
        node.args = (x, weight, bias, stride, [size // 2 for size in total], steps, groups)


def _drop_no_op(node: fx.Node) -> None:
    """Take `node` out, unless it is a result: those must not alias inputs or weights, and may have to be contiguous."""
    source = node.args[0]
    if isinstance(source, fx.Node) and not any(user.op == "output" for user in node.users):
        node.replace_all_uses_with(source)
        node.graph.erase_node(node)


def _drop_empty(node: fx.Node) -> None:
    """Take 1-d tensors without elements out of a concatenation: a relic that empty caches start from."""
    parts = [part for part in node.args[0] if part.meta["val"].shape != (0,)]  # type: ignore[union-attr]
    if len(parts) == len(node.args[0]) or not parts:  # type: ignore[arg-type]
        return
    if len(parts) > 1:
        node.update_arg(0, parts)
    else:  # a copy, which is a no-op unless it is a result
        node.target, node.args, node.kwargs = aten.clone.default, (parts[0],), {}
