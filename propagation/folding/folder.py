"""What fold rules work with: the graph under construction, the layout of every placed value, and relayouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.constants import Constants
from sparta.propagation.folding.layout import Kept, Layout, known_value
from sparta.propagation.folding.relayout import relayout
from sparta.propagation.folding.sizes import Sizes
from sparta.propagation.stages import Propagated
from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape, Size, any_over, anywhere, size_of

aten = torch.ops.aten

SPELL_OUT = 1 << 16
"""Constants up to this many elements are stored at full size; larger ones are expanded at run time."""


class Folder:
    """The graph under construction.

    A *placed* node has a counterpart in the new graph, in some layout. Two facts hold for every placed value, and each
    rule keeps them: an element that is known and physically there has its known value, and an element that is not
    physically there is either known or not needed.
    """

    def __init__(self, propagated: Propagated) -> None:
        self.propagated = propagated
        self.captured = propagated.annotated.captured
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.constants, self.sizes = Constants(self.root, self.graph), Sizes(self.graph)
        self.removed: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.demands: dict[fx.Node, Layout] = {}
        self._placed: dict[fx.Node, fx.Node] = {}
        self._layouts: dict[fx.Node, Layout] = {}
        self._wanted: dict[fx.Node, Layout] = {}
        self._relayouts: dict[Hashable, fx.Node] = {}

    # What is known about the original nodes.

    def tesa(self, node: fx.Node) -> TeSA:
        """The attribute of a node with one tensor result."""
        tesa = self.propagated.tesa[node]
        assert isinstance(tesa, TeSA), f"{node} has several results"
        return tesa

    def is_tensor(self, node: Any) -> bool:
        """Whether the argument is a node with one tensor result."""
        return isinstance(node, fx.Node) and isinstance(self.propagated.tesa.get(node), TeSA)

    def is_constant(self, node: Any) -> bool:
        """Whether the argument is a node whose value never changes."""
        return self.is_tensor(node) and self.tesa(node).is_constant

    def is_live(self, node: fx.Node) -> bool:
        """Whether anything of the node must be computed."""
        return not self.is_tensor(node) or anywhere(self.tesa(node).live)

    def positions(self, node: fx.Node, dim: int) -> int:
        """How many places along the other dimensions a node has in the example that was captured."""
        value = node.meta["val"]
        return math.prod(_example(size) for other, size in enumerate(value.shape) if other != dim)

    def want(self, node: fx.Node) -> Layout:
        """The smallest layout: indices with an element that is both needed and unknown."""
        if node not in self._wanted:
            tesa = self.tesa(node)
            self._wanted[node] = tuple(alive_along(tesa.live, dim, size) for dim, size in enumerate(tesa.shape))
        return self._wanted[node]

    def demand(self, node: fx.Node) -> Layout:
        """The layout that the users of a node will bring it into (at least what is wanted)."""
        return self.demands.get(node, self.want(node))

    def tensor(self, node: fx.Node) -> Tensor:
        """The value of a constant node without symbolic dimensions, at its full shape."""
        if node.op == "placeholder":
            annotated = self.propagated.annotated
            return annotated.weights.get(node.name, self.captured.tensors[node.name]).detach()
        return self.tesa(node).full_value()

    def qualified(self, node: fx.Node) -> str | None:
        """The name of the one parameter that a constant node is or is computed from."""
        leaves = [leaf.name for leaf in _leaves(node) if leaf.name in self.captured.names]
        # A parameter pruned by torch.nn.utils.prune is multiplied by a buffer, its mask: it keeps its own name.
        owners = [name for name in leaves if isinstance(self.captured.tensors[name], torch.nn.Parameter)] or leaves
        return self.captured.names[owners[0]] if len(owners) == 1 else None

    # Placed values.

    def placed(self, node: Any) -> bool:
        """Whether the node has a counterpart that is computed at run time."""
        return node in self._placed

    def layout(self, node: fx.Node) -> Layout:
        """The layout of a placed value; of a constant, which can be had in any, the wanted one."""
        return self._layouts[node] if node in self._layouts else self.want(node)

    def place(self, node: fx.Node, made: fx.Node, layout: Sequence[Kept] | None = None) -> bool:
        """Record the counterpart of a node (whole when no layout is given), for rules to return.

        Declines, with False, a layout that lacks something that is wanted: propagation has no rule for the operator,
        or a coarser one than the operator deserves, and calls unknown what the operands know.
        """
        if layout is not None or self.is_tensor(node):
            shape = self.tesa(node).shape
            kept = layout if layout is not None else lay.whole(len(shape))
            if not all(map(lay.contains, kept, self.want(node), shape)):
                return False
            self._layouts[node] = tuple(map(lay.simplify, kept, shape))
            self.sizes.learn(made, shape)
        elif isinstance(node.meta.get("val"), torch.SymInt):
            self.sizes.learn_scalar(made, size_of(node.meta["val"]))
        self._placed[node] = made
        self.stand_for(made, node)
        return True

    def stand_for(self, made: fx.Node, node: fx.Node) -> fx.Node:
        """`made`, marked as what computes `node` unless it is marked already."""
        if made.op == "call_function":
            made.meta.setdefault("source", node.name)
            made.meta.setdefault("module", module_of(node))
        return made

    def scalar(self, argument: Any) -> Any:
        """The counterpart of an argument that is no tensor: a symbolic size, or whatever was placed for it."""
        if not isinstance(argument, fx.Node) or argument in self._placed:
            return self._placed.get(argument, argument)
        assert self.is_size(argument), f"{argument} was never placed"
        return self.sizes.emit(size_of(argument.meta["val"]))

    def is_size(self, node: fx.Node) -> bool:
        """Whether the node is an integer that is fixed or can be computed from the sizes of the user inputs."""
        value = node.meta.get("val")
        return isinstance(value, int | torch.SymInt) and self.sizes.knows(size_of(value))

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A new node of the folded graph."""
        return self.graph.call_function(target, args, kwargs)

    def again(self, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        """The operator of an original node on other arguments."""
        return self.graph.create_node(node.op, node.target, args, kwargs)

    def operand(self, argument: fx.Node) -> Any:
        """The counterpart of any argument, tensors whole."""
        return self.get(argument) if self.is_tensor(argument) else self.scalar(argument)

    def get(self, node: fx.Node, layout: Layout | None = None) -> fx.Node:
        """A node that holds the value of `node` in `layout` (whole by default)."""
        layout = lay.whole(len(self.tesa(node).shape)) if layout is None else layout
        if node not in self._placed:
            return self.constant(node, layout)
        key = (node, lay.digest(layout))
        if key not in self._relayouts:
            self._relayouts[key] = relayout(self, node, self._placed[node], self._layouts[node], layout)
        return self._relayouts[key]

    def physical(self, node: fx.Node, layout: Layout) -> Shape:
        """The physical shape of a value in `layout`."""
        return lay.physical(layout, self.tesa(node).shape)

    # Constants.

    def constant(self, node: fx.Node, layout: Layout, broadcast: Iterable[int] = ()) -> fx.Node:
        """The known values of a node in `layout`, zero where unknown; `broadcast` dimensions may stay of size 1."""
        if node.op == "placeholder" and node.name in self.captured.tensors:
            return self.weight(lay.take(self.tensor(node), layout), node)
        value = lay.take(known_value(self.tesa(node)), layout)
        shape = [1 if dim in set(broadcast) else size for dim, size in enumerate(self.physical(node, layout))]
        shape = [size if have == 1 else have for size, have in zip(shape, value.shape, strict=True)]
        if all(isinstance(size, int) for size in shape) and math.prod(shape) <= SPELL_OUT:
            return self.emit(value.expand(shape).contiguous(), node.name)
        made = self.emit(value, node.name)
        if list(value.shape) == shape:
            return made
        return self.call(aten.expand.default, made, [self.sizes.emit(size) for size in shape])

    def weight(self, tensor: Tensor, origin: fx.Node) -> fx.Node:
        """A tensor made from the constant node `origin`, named after its parameter and noted when it shrank."""
        name = self.qualified(origin)
        if name is None:
            return self.emit(tensor, origin.name)
        before = tuple(self.original(name).shape)
        if tensor.numel() < math.prod(before):
            self.removed[name] = (before, tuple(tensor.shape))
        return self.constants.emit(tensor, name, qualified=True)

    def emit(self, tensor: Tensor, name: str) -> fx.Node:
        """A constant that is no parameter of the model."""
        return self.constants.emit(tensor, name)

    def original(self, name: str) -> Tensor:
        """The tensor of the model that has a qualified name."""
        captured = self.captured
        return next(captured.tensors[leaf] for leaf, known in captured.names.items() if known == name)


def alive_along(live: Tensor, dim: int, size: Size) -> Kept:
    """The indices of one dimension at which anything is live, None when all are (or none is)."""
    if live.shape[dim] == 1:
        return None
    alive = any_over(live, [other for other in range(live.dim()) if other != dim]).reshape(-1)
    return lay.simplify(alive.nonzero().reshape(-1), size) if bool(alive.any()) else None


def _example(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 1)


def module_of(node: fx.Node) -> str:
    """The qualified name of the innermost module that the node was captured from."""
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else ""


def _leaves(node: fx.Node) -> set[fx.Node]:
    leaves, pending = set(), [node]
    while pending:
        current = pending.pop()
        if current.op == "placeholder":
            leaves.add(current)
        pending.extend(current.all_input_nodes)
    return leaves
