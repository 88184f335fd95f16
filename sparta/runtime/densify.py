"""The dense twin of an optimized graph: what a saved model, which has no original beside it, is compared with.

Before::

    y = sparta.linear(x, [W__csr.crow_indices, ...], b, skip, plan)

After::

    y = relu(add(linear(x, W, b), skip))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, fx, nn

from sparta.kernels.conv.dense import conv_weight
from sparta.kernels.problem import Activation, Conv
from sparta.runtime import ops  # noqa: F401  (registers the operators)
from sparta.runtime.executor import executor_for
from sparta.runtime.rewrite import OPERATORS
from sparta.runtime.tensors import attribute, place

aten = torch.ops.aten

ACTIVATIONS: Mapping[Activation, Callable[[fx.Graph, fx.Node], fx.Node]] = {
    "none": lambda graph, y: y,
    "relu": lambda graph, y: graph.call_function(aten.relu.default, (y,)),
    "gelu": lambda graph, y: graph.call_function(aten.gelu.default, (y,)),
    "gelu_tanh": lambda graph, y: graph.call_function(aten.gelu.default, (y,), {"approximate": "tanh"}),
    "silu": lambda graph, y: graph.call_function(aten.silu.default, (y,)),
}
"""Activation of an epilogue -> PyTorch's operator."""


def dense_twin(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with every sparse operator replaced by PyTorch's dense one; other tensors are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    root = nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        value = attribute(module, str(node.target))
        assert isinstance(value, Tensor)
        place(root, str(node.target), value)
    for index, node in enumerate(list(graph.nodes)):
        if node.target in OPERATORS.values():
            _replace(graph, node, root, f"dense_{index}")
    graph.eliminate_dead_code()
    return fx.GraphModule(root, graph)


def _replace(graph: fx.Graph, node: fx.Node, root: nn.Module, name: str) -> None:
    x, components, bias, residual, plan = node.args
    assert isinstance(components, (list, tuple))
    assert isinstance(plan, str)
    stored = [attribute(root, str(part.target)) for part in components if isinstance(part, fx.Node)]
    executor = executor_for(stored, plan)
    problem, matrix = executor.plan.problem, executor.weight.to_dense()
    with graph.inserting_before(node):
        if isinstance(problem, Conv):
            place(root, name, conv_weight(matrix, problem))
            shape = (list(problem.stride), list(problem.padding), list(problem.dilation), problem.groups)
            y = graph.call_function(aten.conv2d.default, (x, graph.get_attr(name), bias, *shape))
        else:
            place(root, name, matrix)
            y = graph.call_function(aten.linear.default, (x, graph.get_attr(name), bias))
        if residual is not None:
            y = graph.call_function(aten.add.Tensor, (y, residual))
        y = ACTIVATIONS[problem.epilogue.activation](graph, y)
    node.replace_all_uses_with(y)
