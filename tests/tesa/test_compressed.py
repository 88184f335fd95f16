"""Compressed tensors: what they stand for never changes, only how it is stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sparta.tesa.compressed import (
    align,
    all_over,
    any_over,
    anywhere,
    compress,
    everywhere,
    expand_dims,
    reduce_to,
    shape_of,
    uniform,
)

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4)


@st.composite
def flags(draw: st.DrawFn) -> Tensor:
    """A bool tensor, uniform along some dimensions, sometimes not contiguous."""
    shape = draw(SHAPES)
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    sizes = [size if draw(st.booleans()) else min(size, 1) for size in shape]
    tensor = (torch.rand(sizes, generator=generator) < 0.5).expand(shape)
    return tensor.mT if tensor.dim() > 1 and draw(st.booleans()) else tensor


def some_dims(tensor: Tensor, seed: int) -> list[int]:
    return [d for d in range(tensor.dim()) if seed >> d & 1]


@given(flags())
def test_compressing_keeps_the_meaning_and_is_minimal(tensor: Tensor) -> None:
    small = compress(tensor)
    assert torch.equal(small.expand(tensor.shape), tensor)
    assert torch.equal(compress(small), small)
    for dim in range(tensor.dim()):
        if tensor.numel() and bool((tensor == tensor.narrow(dim, 0, 1)).all()):
            assert small.shape[dim] == 1


@given(flags(), st.integers(0, 15))
def test_reductions_agree_with_torch(tensor: Tensor, seed: int) -> None:
    dims = some_dims(tensor, seed)
    expected_any, expected_all = tensor, tensor
    for dim in dims:
        expected_any, expected_all = expected_any.any(dim, keepdim=True), expected_all.all(dim, keepdim=True)
    assert torch.equal(any_over(tensor, dims), expected_any)
    assert torch.equal(all_over(tensor, dims), expected_all)
    assert anywhere(tensor) == bool(tensor.any())
    assert everywhere(tensor) == bool(tensor.all())


@given(flags(), st.integers(0, 15))
def test_expanding_some_dimensions_undoes_compressing_them(tensor: Tensor, seed: int) -> None:
    dims = some_dims(tensor, seed)
    expanded = expand_dims(compress(tensor, dims), tuple(tensor.shape), dims)
    assert torch.equal(expanded, tensor)


@given(flags(), st.integers(0, 15), st.integers(0, 4))
def test_reducing_is_the_adjoint_of_broadcasting(need: Tensor, seed: int, dropped: int) -> None:
    """An operand element is needed if and only if some element it is broadcast to is."""
    squeezed = some_dims(need, seed)
    shape = [1 if d in squeezed else size for d, size in enumerate(need.shape)][min(dropped, need.dim()) :]
    reduced = reduce_to(need, tuple(shape))
    assert reduced.dim() == len(shape)
    for position in torch.ones(shape).nonzero():
        probe = torch.zeros(shape, dtype=torch.bool)
        probe[tuple(position)] = True
        reached = bool((probe.expand(need.shape) & need).any())
        assert bool(reduced.expand(shape)[tuple(position)]) == reached


@pytest.mark.parametrize(("shape", "rank", "expected"), [([3], 3, [1, 1, 3]), ([1, 1, 3], 1, [3]), ([], 2, [1, 1])])
def test_align_adds_and_drops_leading_dimensions(shape: Sequence[int], rank: int, expected: Sequence[int]) -> None:
    assert list(align(torch.zeros(shape), rank).shape) == expected


def test_uniform_holds_one_element() -> None:
    assert uniform(3, 2.5, torch.float64).tolist() == [[[2.5]]]


def test_symbolic_sizes_become_expressions_and_add_no_guard() -> None:
    program = torch.export.export(nn.Linear(3, 2), (torch.zeros(5, 3),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    fake = next(node for node in program.graph.nodes if node.op == "call_function").meta["val"]
    guards = len(fake.fake_mode.shape_env.guards)
    batch, features = shape_of(fake)
    assert isinstance(batch, sympy.Expr)
    assert features == 2
    assert len(fake.fake_mode.shape_env.guards) == guards
