"""Sizes of the folded graph: symbolic dimensions are never shrunk, so any value that has one tells its size."""

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
        self._origin: dict[sympy.Expr, tuple[fx.Node, int]] = {}
        self._nodes: dict[sympy.Expr, fx.Node] = {}

    def learn(self, node: fx.Node, shape: Shape) -> None:
        """Record which symbolic sizes can be read off the shape of a node of the folded graph."""
        for dim, size in enumerate(shape):
            if not isinstance(size, int):
                self._origin.setdefault(size, (node, dim))

    def learn_scalar(self, node: fx.Node, size: Size) -> None:
        """Record a node of the folded graph that is itself a symbolic integer."""
        if not isinstance(size, int):
            self._nodes.setdefault(size, node)

    def knows(self, size: Size) -> bool:
        """Whether `size` can be computed from what was learned."""
        if isinstance(size, int) or self._is_read(size):
            return True
        return all(self._is_read(symbol) for symbol in size.free_symbols)

    def _is_read(self, size: sympy.Expr) -> bool:
        return size in self._nodes or size in self._origin

    def emit(self, size: Size) -> SizeArgument:
        """The size as an operator argument: an int, or a node that computes it at run time."""
        if isinstance(size, int | sympy.Integer):
            return int(size)
        if size not in self._nodes:
            self._nodes[size] = self._read(size) if size in self._origin else self._expression(size)
        return self._nodes[size]

    def target(self, shape: Sequence[Size]) -> list[SizeArgument]:
        """A reshape's target sizes: a single symbolic size is left to PyTorch, as -1."""
        symbolic = [dim for dim, size in enumerate(shape) if not isinstance(size, int)]
        if len(symbolic) == 1:
            return [size if isinstance(size, int) else -1 for size in shape]
        return [self.emit(size) for size in shape]

    def _read(self, size: sympy.Expr) -> fx.Node:
        node, dim = self._origin[size]
        return self._graph.call_function(torch.ops.aten.sym_size.int, (node, dim))

    def _expression(self, size: sympy.Expr) -> fx.Node:
        values = {symbol: self._proxy(symbol) for symbol in size.free_symbols}
        result = sympy_interp(PythonReferenceAnalysis, values, size)
        assert isinstance(result, fx.Proxy), f"{size} did not become a node"
        return result.node

    def _proxy(self, symbol: sympy.Symbol) -> fx.Proxy:
        node = self.emit(symbol)
        assert isinstance(node, fx.Node)
        return fx.Proxy(node)
