"""What the tests of capture share: comparing a captured graph with its model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparta.propagation import Captured, capture, interpret, masked


def calls(captured: Captured) -> list[str]:
    """The operators of the graph in order."""
    return [str(node.target) for node in captured.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def grow(tree: Any) -> Any:
    """The same call with one more sample in the batch."""
    return pytree.tree_map(lambda x: torch.cat([x, x[:1]]) if isinstance(x, Tensor) and x.dim() else x, tree)


def assert_same(model: nn.Module, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The graph's result has the structure, the types and the values of the model's."""
    with torch.no_grad():
        expected, got = masked(model)(*args, **kwargs), interpret(captured, captured.tensors, *args, **kwargs)
    assert type(got) is type(expected)
    assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    for want, have in zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=True):
        if isinstance(want, Tensor):
            assert have.dtype is want.dtype
            assert torch.allclose(have, want, atol=1e-5)
        else:
            assert have == want


def check(model: nn.Module, *args: Any, **kwargs: Any) -> Captured:
    """Capture, compare on the example and on a larger batch, and see that the model stayed in training mode."""
    model.train()
    captured = capture(model, args, kwargs)
    assert all(module.training for module in model.modules())
    assert_same(model, captured, *captured.example)
    if any(captured.dynamic):
        assert_same(model, captured, *grow(captured.example))
    return captured
