"""Runners: the fast form of a program, with its tensors and kernels bound, for calls outside of tracing.

The portable form of a program is a graph of custom operators over named buffers: it can be exported, compiled and
saved, but every call looks up dozens of attributes and goes through PyTorch's dispatcher. A runner is the same graph
with the tensors as plain attributes and the executors called directly, which small models need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.runtime import ops
from sparta.runtime.executor import executor_for
from sparta.runtime.inputs import Leaf, accepts_all
from sparta.runtime.program import Program
from sparta.runtime.tensors import attribute

DIRECT: Mapping[object, Callable[..., Tensor]] = {
    torch.ops.sparta.linear.default: ops.run_linear,
    torch.ops.sparta.conv2d.default: ops.run_conv2d,
}
"""Custom operator -> the function behind it, which takes an executor instead of components and a plan."""


class Runner:
    """Calls one program as directly as possible.

    Parameters
    ----------
    program
        What to run; its tensors are bound now, so make a new runner when they are replaced.
    """

    __slots__ = ("_execute", "_finish", "_plain", "program")

    def __init__(self, program: Program) -> None:
        self.program = program
        whole = program.out_spec is not None and program.direct is None and isinstance(program.module, fx.GraphModule)
        self._execute: Callable[..., Any] | None = bound(program.module) if whole else None  # type: ignore[arg-type]
        self._finish = _finisher(program.out_spec) if program.out_spec is not None else None
        self._plain = _plain_leaves(program) if whole else None

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether positional tensors alone, as given, are a call this program accepts."""
        plain = self._plain
        return plain is not None and all(type(arg) is Tensor for arg in args) and accepts_all(plain, args)

    def run(self, call: Call, leaves: Sequence[Any]) -> Any:
        """The result of the model for a call, given with its leaves."""
        if self._execute is None or self._finish is None or torch.compiler.is_compiling():
            return self.program.run(call, leaves)
        return self._finish(self._execute(*leaves))


def _plain_leaves(program: Program) -> tuple[Leaf, ...] | None:
    """The expectations of a program whose call is nothing but positional tensors, else None."""
    leaves = program.leaves
    if leaves is None or any(leaf.dtype is None for leaf in leaves):
        return None
    call: Call = (tuple(range(len(leaves))), {})
    return leaves if pytree.tree_structure(call) == program.in_spec else None


def _finisher(spec: pytree.TreeSpec) -> Callable[[Sequence[Any]], Any]:
    """What makes the model's result of the flat one."""
    if spec == pytree.tree_structure(0):
        return lambda results: results[0]
    return lambda results: pytree.tree_unflatten(list(results), spec)


def bound(module: fx.GraphModule) -> Callable[..., Any]:
    """The graph of `module` as one function over bound tensors and executors."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    constants: dict[str, Any] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            name = f"constant_{len(constants)}"
            constants[name] = attribute(module, str(node.target))
            node.target = name
        elif node.target in DIRECT:
            _call_directly(graph, node, constants)
    graph.eliminate_dead_code()
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    flat = fx.GraphModule({name: value for name, value in constants.items() if name in used}, graph)
    for name in used:
        # Registered tensors are found by a slow fallback of nn.Module; plain attributes are not.
        for registry in (flat._parameters, flat._buffers):
            registry.pop(name, None)
        flat.__dict__[name] = constants[name]
    return flat.forward


def _call_directly(graph: fx.Graph, node: fx.Node, constants: dict[str, Any]) -> None:
    """Replace one sparse operator by a call of its executor."""
    x, components, bias, residual, plan = node.args
    assert isinstance(components, (list, tuple))
    assert isinstance(plan, str)
    stored = [constants[str(part.target)] for part in components if isinstance(part, fx.Node)]
    name = f"constant_{len(constants)}"
    constants[name] = executor_for(stored, plan)
    with graph.inserting_before(node):
        executor = graph.create_node("get_attr", name)
        direct = graph.call_function(DIRECT[node.target], (executor, x, bias, residual))
    node.replace_all_uses_with(direct)
