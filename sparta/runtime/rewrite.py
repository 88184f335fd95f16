"""The specialize stage: rewrite the graph to sparse operators and compile the kernel of every plan.

Before::

    y = relu(linear(x, W, b))

After::

    y = sparta.linear(x, [W__csr.crow_indices, W__csr.col_indices, W__csr.values], b, None, plan)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from sparta.runtime import ops  # noqa: F401  (registers the operators)
from sparta.runtime.executor import executor_for
from sparta.runtime.tensors import attribute, place
from sparta.tesa.errors import KernelCompileError
from sparta.transformation.choose import DENSE
from sparta.transformation.decide import weight_of
from sparta.transformation.plan import Decision, Planned
from sparta.transformation.weight import Weight

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Specialized:
    """The finished graph.

    Parameters
    ----------
    module
        Takes the flattened inputs, returns the flat tuple of outputs; tensors are buffers named as in the model.
    decisions
        The decisions it carries out; those whose kernel did not compile are dense now.
    planned
        What was specialized.
    """

    module: fx.GraphModule
    decisions: tuple[Decision, ...]
    planned: Planned


def specialize(planned: Planned) -> Specialized:
    """The planned model as a graph of sparse operators and plain PyTorch, its kernels compiled and loaded."""
    builder = _Builder(planned)
    decisions = tuple(builder.add(decision) for decision in planned.decisions)
    return Specialized(builder.finish(), decisions, planned)


class _Builder:
    """Rewrites a copy of the folded graph site by site and collects the tensors it needs."""

    def __init__(self, planned: Planned) -> None:
        self.folded = planned.folded
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        output = self.graph.graph_copy(self.folded.module.graph, self.copies)
        self.graph.output(output)
        self.components: dict[fx.Node, Tensor] = {}

    def add(self, decision: Decision) -> Decision:
        """Put one decision into the graph; the decision as carried out."""
        if decision.kernel == DENSE:
            return decision
        site = decision.site
        weight = Weight.of(weight_of(self.folded, site).contiguous(), site.problem)
        components = weight.stored(decision.plan.format).components()
        text = decision.plan.dumps()
        try:
            executor_for(list(components.values()), text).compile(site.tokens)
        except KernelCompileError as error:
            return replace(decision, kernel=DENSE, reason=f"kernel did not compile: {error}", chosen_seconds=None)
        self._replace(decision, components, text)
        return decision

    def _replace(self, decision: Decision, components: Mapping[str, Tensor], plan: str) -> None:
        site = decision.site
        last = self.copies[site.last]
        x = self.copies[site.node].args[0]
        base = f"{self.folded.names.get(site.weight, site.weight)}__{decision.plan.format}"
        with self.graph.inserting_before(last):
            stored = [self._attribute(f"{base}.{name}", tensor) for name, tensor in components.items()]
            bias = self.copies[_attribute_node(site.node, 2)] if site.bias is not None else None
            residual = self.copies[site.residual] if site.residual is not None else None
            conv1d = site.node.target is aten.conv1d.default
            y = self._call(OPERATORS[site.node.target], x, stored, bias, residual, plan, lift=conv1d)
        y.meta.update(last.meta)
        self._operator(y).meta["site"] = site.last.name
        last.replace_all_uses_with(y)
        self.copies[site.last] = y

    @staticmethod
    def _operator(result: fx.Node) -> fx.Node:
        """The sparse operator behind its result (1-d images are squeezed after it)."""
        return result if result.target in OPERATORS.values() else result.all_input_nodes[0]

    def _call(
        self,
        target: torch._ops.OpOverload,
        x: fx.node.Argument,
        stored: Sequence[fx.Node],
        bias: fx.Node | None,
        residual: fx.Node | None,
        plan: str,
        *,
        lift: bool,
    ) -> fx.Node:
        """The operator's call; 1-d images are lifted to height 1 around it."""
        call = self.graph.call_function
        if not lift:
            return call(target, (x, list(stored), bias, residual, plan))
        tall = call(aten.unsqueeze.default, (x, 2))
        tall_residual = call(aten.unsqueeze.default, (residual, 2)) if residual is not None else None
        y = call(target, (tall, list(stored), bias, tall_residual, plan))
        return call(aten.squeeze.dim, (y, 2))

    def _attribute(self, name: str, tensor: Tensor) -> fx.Node:
        node = self.graph.get_attr(name)
        self.components[node] = tensor
        return node

    def finish(self) -> fx.GraphModule:
        """The module over a fresh root that holds exactly the tensors the graph still reads."""
        self.graph.eliminate_dead_code()
        root = nn.Module()
        owned: dict[str, Any] = {}
        for node in self.graph.find_nodes(op="get_attr"):
            name, value = self._owned(node)
            node.target = name = _unused(name, value, owned)
            if name not in owned:
                owned[name] = value
                place(root, name, value)
        self.graph.lint()
        return fx.GraphModule(root, self.graph).eval()

    def _owned(self, node: fx.Node) -> tuple[str, Any]:
        """What a node reads, and under which name the finished module should hold it."""
        name = str(node.target)
        if node in self.components:
            return name, self.components[node]
        return self.folded.names.get(name, name), attribute(self.folded.module, name)


def _unused(name: str, value: Any, owned: Mapping[str, Any]) -> str:
    """`name`, numbered where something else is called so: a layer that is called twice may be folded twice."""
    unique, number = name, 0
    while unique in owned and not _same(value, owned[unique]):
        number += 1
        unique = f"{name}_{number}"
    return unique


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    alike = isinstance(a, Tensor) and isinstance(b, Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
    return alike and torch.equal(a, b)


OPERATORS: Mapping[object, torch._ops.OpOverload] = {
    aten.linear.default: torch.ops.sparta.linear.default,
    aten.conv2d.default: torch.ops.sparta.conv2d.default,
    aten.conv1d.default: torch.ops.sparta.conv2d.default,
}
"""Dense operator -> its sparse operator."""


def _attribute_node(node: fx.Node, position: int) -> fx.Node:
    argument = node.args[position]
    assert isinstance(argument, fx.Node)
    return argument
