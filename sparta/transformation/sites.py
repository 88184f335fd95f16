"""Find the weighted operators of a folded graph and what their kernels can absorb.

Before::

    h = linear(x, W, b); r = add(h, skip); y = relu(r)

After: one `Site` for ``y`` with residual ``skip`` and activation "relu".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from sparta.kernels.problem import Activation, Conv, Epilogue, Linear, Problem
from sparta.propagation.stages import Folded
from sparta.transformation.plan import Site

aten = torch.ops.aten

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)
"""Element types whose sparse kernels exist (all compute and accumulate in fp32)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Shape and element type of one value of the graph, seen with the example."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Facts = Mapping[fx.Node, Fact]


class _Observer(fx.Interpreter):
    """Runs a graph and remembers the shape and type of every tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.facts: dict[fx.Node, Fact] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.facts[n] = Fact(tuple(result.shape), result.dtype)
        return result


@torch.no_grad()
def observe(module: fx.GraphModule, inputs: Sequence[Any]) -> Facts:
    """Shape and type of every tensor that the graph computes for `inputs`."""
    observer = _Observer(module)
    observer.run(*inputs)
    return observer.facts


def find_sites(folded: Folded, facts: Facts) -> tuple[Site, ...]:
    """Every linear and convolution with a constant floating-point weight, with its epilogue, in graph order."""
    return tuple(_sites(folded, facts))


def _sites(folded: Folded, facts: Facts) -> Iterator[Site]:
    for node in folded.module.graph.nodes:
        read = READERS.get(node.target) if node.op == "call_function" else None
        operands = read(node, facts) if read and node in facts else None
        if operands is not None and facts[operands.weight].dtype in SUPPORTED:
            yield _fuse(node, operands, facts, folded.names)


@dataclass(frozen=True, slots=True)
class _Operands:
    """One operator read as a kernel problem, without epilogue."""

    weight: fx.Node
    bias: fx.Node | None
    make: Callable[[Epilogue], Problem]
    tokens: int


def _constant(value: object) -> bool:
    return value is None or (isinstance(value, fx.Node) and value.op == "get_attr")


def _read_linear(node: fx.Node, facts: Facts) -> _Operands | None:
    x, weight, bias = (*node.args, None)[:3]
    if not isinstance(weight, fx.Node) or not _constant(weight) or not _constant(bias):
        return None
    out_features, in_features = facts[weight].shape
    return _Operands(
        weight=weight,
        bias=bias if isinstance(bias, fx.Node) else None,
        make=lambda epilogue: Linear(out_features, in_features, epilogue),
        tokens=math.prod(facts[node].shape[:-1]),
    )


def _read_conv(node: fx.Node, facts: Facts) -> _Operands | None:
    defaults: tuple[Any, ...] = (None, None, None, 1, 0, 1, 1)
    arguments: tuple[Any, ...] = (*node.args, *defaults[len(node.args) :])
    x, weight, bias, stride, padding, dilation, groups = arguments
    batched = isinstance(x, fx.Node) and facts[x].shape and len(facts[x].shape) == len(facts[node].shape)
    if not isinstance(weight, fx.Node) or not (batched and _constant(weight) and _constant(bias)):
        return None
    assert isinstance(x, fx.Node)
    spatial = len(facts[weight].shape) - 2
    if isinstance(padding, str) or len(facts[x].shape) != spatial + 2 or spatial not in (1, 2):
        return None
    out_channels, kernel = facts[weight].shape[0], facts[weight].shape[2:]
    image = facts[x].shape[2:]

    def make(epilogue: Epilogue) -> Conv:
        return Conv(
            out_channels=out_channels,
            in_channels=facts[x].shape[1],
            kernel=_pair(kernel, 1, spatial),
            stride=_pair(stride, 1, spatial),
            padding=_pair(padding, 0, spatial),
            dilation=_pair(dilation, 1, spatial),
            groups=int(groups),
            image=_pair(image, 1, spatial),
            epilogue=epilogue,
        )

    shape = facts[node].shape
    bias_node = bias if isinstance(bias, fx.Node) else None
    return _Operands(weight=weight, bias=bias_node, make=make, tokens=shape[0] * math.prod(shape[2:]))


def _pair(value: Any, neutral: int, spatial: int) -> tuple[int, int]:
    """A size per spatial dimension as (height, width); 1-d convolutions are 2-d ones of height 1."""
    sizes = [value] * spatial if isinstance(value, int) else list(value)
    sizes = sizes * spatial if len(sizes) == 1 and spatial == 2 else sizes
    height, width = sizes if len(sizes) == 2 else (neutral, sizes[0])
    return int(height), int(width)


READERS: Mapping[object, Callable[[fx.Node, Facts], _Operands | None]] = {
    aten.linear.default: _read_linear,
    aten.conv1d.default: _read_conv,
    aten.conv2d.default: _read_conv,
}
"""Operator -> how to read it as a kernel problem."""


def _approximation(node: fx.Node) -> Activation:
    approximate = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return "gelu_tanh" if approximate == "tanh" else "gelu"


ACTIVATIONS: Mapping[object, Callable[[fx.Node], Activation]] = {
    aten.relu.default: lambda node: "relu",
    aten.gelu.default: _approximation,
    aten.silu.default: lambda node: "silu",
}
"""Operator -> the activation a kernel epilogue computes for it."""


def _fuse(node: fx.Node, operands: _Operands, facts: Facts, names: Mapping[str, str]) -> Site:
    """The site of `node` with a following residual add and activation absorbed, where nobody else reads between."""
    last, residual = _absorb_residual(node, facts)
    last, activation = _absorb_activation(last)
    epilogue = Epilogue(bias=operands.bias is not None, residual=residual is not None, activation=activation)
    return Site(
        node=node,
        last=last,
        residual=residual,
        weight=str(operands.weight.target),
        bias=str(operands.bias.target) if operands.bias is not None else None,
        problem=operands.make(epilogue),
        tokens=operands.tokens,
        name=names.get(str(operands.weight.target), "").rpartition(".")[0] or str(node.meta.get("module") or node.name),
        op=str(node.target).split(".")[1],
    )


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _absorb_residual(node: fx.Node, facts: Facts) -> tuple[fx.Node, fx.Node | None]:
    user = _only_user(node)
    if user is None or user.target is not aten.add.Tensor or user.kwargs or len(user.args) != 2:
        return node, None
    other = user.args[1] if user.args[0] is node else user.args[0]
    if not isinstance(other, fx.Node) or other is node or facts.get(other) != facts[node]:
        return node, None
    return user, other


def _absorb_activation(node: fx.Node) -> tuple[fx.Node, Activation]:
    user = _only_user(node)
    read = ACTIVATIONS.get(user.target) if user is not None else None
    return (user, read(user)) if user is not None and read is not None else (node, "none")
