"""Sizes of the folded graph: symbolic dimensions are read from the user inputs, where they are never shrunk."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch import fx
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from sparta.tesa.compressed import Shape, Size

SizeArgument = int | fx.Node


class Sizes:
    """Emits nodes that compute symbolic sizes, once each."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._origin: dict[sympy.Symbol, tuple[fx.Node, int]] = {}
        self._nodes: dict[sympy.Expr, fx.Node] = {}

    def learn(self, placeholder: fx.Node, shape: Shape) -> None:
        """Record which symbols can be read off the shape of a user input."""
        for dim, size in enumerate(shape):
            if isinstance(size, sympy.Symbol):
                self._origin.setdefault(size, (placeholder, dim))

    def learn_scalar(self, placeholder: fx.Node, value: sympy.Expr) -> None:
        """Record a user input that is itself a symbolic integer."""
        self._nodes.setdefault(value, placeholder)

    def knows(self, size: Size) -> bool:
        """Whether `size` can be computed from the user inputs."""
        if isinstance(size, int) or size in self._nodes:
            return True
        return all(symbol in self._origin or symbol in self._nodes for symbol in size.free_symbols)

    def emit(self, size: Size) -> SizeArgument:
        """The size as an operator argument: an int, or a node that computes it at run time."""
        if isinstance(size, int | sympy.Integer):
            return int(size)
        if size not in self._nodes:
            self._nodes[size] = self._symbol(size) if isinstance(size, sympy.Symbol) else self._expression(size)
        return self._nodes[size]

    def target(self, shape: Sequence[Size]) -> list[SizeArgument]:
        """A reshape's target sizes: a single symbolic size is left to PyTorch, as -1."""
        symbolic = [dim for dim, size in enumerate(shape) if not isinstance(size, int)]
        if len(symbolic) == 1:
            return [size if isinstance(size, int) else -1 for size in shape]
        return [self.emit(size) for size in shape]

    def _symbol(self, symbol: sympy.Symbol) -> fx.Node:
        placeholder, dim = self._origin[symbol]
        return self._graph.call_function(torch.ops.aten.sym_size.int, (placeholder, dim))

    def _expression(self, size: sympy.Expr) -> fx.Node:
        values = {symbol: self._proxy(symbol) for symbol in size.free_symbols}
        result = sympy_interp(PythonReferenceAnalysis, values, size)
        assert isinstance(result, fx.Proxy), f"{size} did not become a node"
        return result.node

    def _proxy(self, symbol: sympy.Symbol) -> fx.Proxy:
        node = self.emit(symbol)
        assert isinstance(node, fx.Node)
        return fx.Proxy(node)
