"""One call of an operator as the rules see it: arguments by schema name, tensors replaced by their attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape, Size, align, shape_of

Result = TeSA | tuple[TeSA | None, ...]
"""The attribute of a node's result, or one for each of its results (None for a result that is no tensor)."""

Facts = Mapping[fx.Node, Result]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What a rule may look at.

    Parameters
    ----------
    node
        The graph node, for its target and for messages.
    sources
        Schema argument name -> argument as the graph has it (nodes, lists of nodes, plain values).
    args
        The same with every tensor node replaced by its `TeSA` and every symbolic number by a sympy expression;
        arguments left out have the default of the schema.
    outputs
        The unknown attribute of every tensor result: its shape and dtype.
    needs
        For backward: which elements of each result must be computed (needed and not known).
    """

    node: fx.Node
    sources: Mapping[str, Any]
    args: Mapping[str, Any]
    outputs: tuple[TeSA, ...]
    needs: tuple[Tensor, ...] = ()

    def __getitem__(self, name: str) -> TeSA:
        """The attribute of the tensor argument `name`."""
        tesa = self.args[name]
        assert isinstance(tesa, TeSA), f"{name} of {self.node} is no tensor"
        return tesa

    def optional(self, name: str) -> TeSA | None:
        """The attribute of the tensor argument `name`, or None where the call leaves it out."""
        return self[name] if self.args.get(name) is not None else None

    def operand(self, name: str) -> TeSA:
        """The attribute of an argument that may be a tensor or a number (of rank 0, unknown where symbolic)."""
        number = self.args[name]
        if isinstance(number, sympy.Basic):
            return TeSA.unknown((), torch.get_default_dtype())
        return self[name] if isinstance(number, TeSA) else TeSA.constant(torch.tensor(number))

    def integer(self, name: str) -> int | None:
        """The int argument `name`, or None where it is symbolic or left out."""
        number = self.args[name]
        return number if isinstance(number, int) else None

    def dim(self, name: str = "dim", rank: int | None = None) -> int:
        """The dimension argument `name`, counted from the front of a tensor of `rank` (the first result's)."""
        return int(self.args[name]) % (self.rank if rank is None else rank)

    def tensors(self) -> Iterator[tuple[str, TeSA]]:
        """Name and attribute of every argument that is one tensor."""
        return ((name, arg) for name, arg in self.args.items() if isinstance(arg, TeSA))

    def data(self) -> tuple[str, TeSA]:
        """Name and attribute of the first tensor argument, which operators on one tensor work on."""
        return next(self.tensors())

    def operands(self) -> Iterator[TeSA]:
        """The attribute of every tensor among the arguments, those in lists included."""
        return (leaf for leaf in pytree.tree_leaves(list(self.args.values())) if isinstance(leaf, TeSA))

    def full_values(self, *, without: str | None = None) -> dict[str, Any]:
        """The arguments, one of them left out, with every tensor at its true shape: all must be known and static."""
        kept = {name: arg for name, arg in self.args.items() if name != without}
        return _map_tensors(lambda tesa: tesa.full_value(), kept)

    @property
    def is_symbolic(self) -> bool:
        """Some number among the arguments is not known before the call."""
        return any(isinstance(leaf, sympy.Basic) for leaf in pytree.tree_leaves(list(self.args.values())))

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        return self.outputs[0].shape

    @property
    def rank(self) -> int:
        """Number of dimensions of the first result."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the first result."""
        return self.outputs[0].dtype

    @property
    def need(self) -> Tensor:
        """Which elements of the first result must be computed."""
        return self.needs[0]

    def unknown(self) -> TeSA:
        """Nothing is known about the first result."""
        return self.outputs[0]

    def partial(self, known: Tensor, value: Tensor) -> TeSA:
        """The first result has `known` elements of `value`."""
        return TeSA.partial(self.shape, self.dtype, align(known, self.rank), align(value, self.rank))

    def run(self, /, **replaced: Any) -> Tensor:
        """Result of the operator itself on the values of its arguments, after replacing some by name.

        Values are passed compressed: replace them where the operator looks at sizes.
        """
        values = _map_tensors(lambda tesa: tesa.value, dict(self.args))
        return cast(Tensor, run_operator(self.node, {**values, **replaced}))


def _map_tensors(change: Callable[[TeSA], Tensor], args: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, TeSA) else leaf, args)
    return changed


def run_operator(node: fx.Node, args: Mapping[str, Any]) -> Any:
    """Whatever the operator of `node` returns for the arguments `args`, given by schema name."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    positional = [args[a.name] for a in schema if not a.kwarg_only]
    return node.target(*positional, **{a.name: args[a.name] for a in schema if a.kwarg_only})


def bind(node: fx.Node, facts: Facts) -> Call | None:
    """The call `node` makes, or None where the target has no schema or an argument is no single tensor."""
    if not isinstance(node.target, torch._ops.OpOverload) or any(
        isinstance(facts.get(n), tuple) for n in node.all_input_nodes
    ):
        return None
    schema = node.target._schema.arguments
    positional = dict(zip((a.name for a in schema), node.args, strict=False))
    defaults = {a.name: a.default_value if a.has_default_value() else None for a in schema}
    sources = {**defaults, **positional, **node.kwargs}
    args = {name: _resolve(source, facts) for name, source in sources.items()}
    return Call(node, sources, args, tuple(tesa for tesa in unknown_results(node) if tesa is not None))


def _resolve(source: Any, facts: Facts) -> Any:
    if isinstance(source, fx.Node):
        return facts[source] if source in facts else symbolic_value(source)
    if isinstance(source, list | tuple):
        return [_resolve(item, facts) for item in source]
    return source


def symbolic_value(node: fx.Node) -> Size | Any:
    """The number a node without tensor result computes: plain where the graph fixes it, else a sympy expression."""
    number = node.meta.get("val")
    if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
        expression = number.node.expr
        return int(expression) if expression.is_Integer else expression
    return number


def unknown_results(node: fx.Node) -> tuple[TeSA | None, ...]:
    """The unknown attribute of every result of `node`; None for results that are no tensors."""
    value = node.meta.get("val")
    results = value if isinstance(value, list | tuple) else (value,)
    return tuple(TeSA.unknown(shape_of(r), r.dtype) if isinstance(r, Tensor) else None for r in results)
