"""What the tests of `fold` share: masks of rows, and folds that are checked against the masked model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparta.propagation import annotate, capture
from sparta.propagation.capture import flatten_call, interpret
from sparta.propagation.engine import propagate
from sparta.propagation.folding import fold
from sparta.propagation.stages import Annotated, Folded
from tests.propagation.random_nets import randomize_norms
from tests.propagation.tracing import trace

IMAGE = (2, 3, 9, 9)
TOKENS = (2, 5, 8)
HALF = (0, 2, 5, 6)
"""Half of the rows of a layer of eight."""

Masks = Mapping[str, Mapping[str, Tensor]]


def dead_rows(layer: nn.Module, rows: Iterable[int], *, bias: bool = True) -> dict[str, Tensor]:
    """A mask that prunes the given output rows of a layer, of its bias as well unless said."""
    pruned = list(rows)
    masks = {}
    for name, parameter in layer.named_parameters(recurse=False):
        if name == "weight" or bias:
            masks[name] = torch.ones(parameter.shape, dtype=torch.bool)
            masks[name][pruned] = False
    return masks


def error(folded: Folded, annotated: Annotated, *inputs: Tensor) -> float:
    """Relative error of the folded model against the masked one for one call; shapes and dtypes must agree."""
    captured = annotated.captured
    with torch.no_grad():
        expected = pytree.tree_leaves(interpret(captured, annotated.weights, *inputs))
        got = folded.module(*flatten_call(captured, inputs, {}))
    assert isinstance(got, tuple)
    worst = 0.0
    for want, have in zip(expected, got, strict=True):
        if not isinstance(want, Tensor):
            assert have == want
            continue
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        scale = max(1e-3, float(want.abs().max())) if want.numel() else 1.0
        difference = float((want.double() - have.double()).abs().max()) if want.numel() else 0.0
        assert torch.isfinite(have).all() == torch.isfinite(want).all()
        worst = max(worst, difference / scale)
    return worst


def fold_traced(model: nn.Module, masks: Masks, *example: Tensor) -> Folded:
    """The fold of a model with static shapes, checked on fresh inputs."""
    annotated = annotate(trace(model.eval(), *example), masks)
    folded = fold(propagate(annotated))
    assert error(folded, annotated, *(torch.randn_like(x) * 2 for x in example)) < 1e-4
    return folded


def fold_captured(model: nn.Module, masks: Masks, *example: Tensor) -> Folded:
    """The fold of a model with a symbolic batch, checked for batches 1, 2 and 17."""
    annotated = annotate(capture(model.eval(), example), masks)
    assert any(annotated.captured.dynamic)
    folded = fold(propagate(annotated))
    for batch in (1, 2, 17):
        assert error(folded, annotated, *(torch.randn(batch, *x.shape[1:]) for x in example)) < 1e-4
    return folded


def operators(folded: Folded) -> list[str]:
    """The operators of a folded graph in order, such as "conv2d"."""
    targets = (node.target for node in folded.module.graph.nodes if node.op == "call_function")
    return [target._schema.name.split("::")[1] for target in targets if isinstance(target, torch._ops.OpOverload)]


def shapes(folded: Folded) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter that is left, by its qualified name."""
    return {name: tuple(folded.module.get_buffer(attribute).shape) for attribute, name in folded.names.items()}


def conv(width: int, out: int, size: int = 3, **options: Any) -> nn.Conv2d:
    """A convolution that keeps the size of the image."""
    return nn.Conv2d(width, out, size, padding=size // 2, **options)


def norm(width: int) -> nn.BatchNorm2d:
    """A BatchNorm with random statistics."""
    layer = nn.BatchNorm2d(width)
    randomize_norms(layer)
    return layer


class Chain(nn.Sequential):
    """`nn.Sequential` whose first layer loses half of its rows."""

    @property
    def masks(self) -> dict[str, dict[str, Tensor]]:
        """The masks that prune them."""
        return {"0": dead_rows(self[0], HALF)}
