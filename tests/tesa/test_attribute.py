"""TeSA: facts about the elements of a tensor."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparta.tesa import TeSA


@st.composite
def attributes(draw: st.DrawFn) -> TeSA:
    """A partial attribute of a tensor of up to three dimensions, with zeros among its values."""
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    known = torch.rand([size if draw(st.booleans()) else min(size, 1) for size in shape], generator=generator) < 0.5
    value = torch.randint(0, 2, shape, generator=generator).float()
    return TeSA.partial(shape, torch.float32, known, value)


def full(tesa: TeSA, part: Tensor) -> Tensor:
    return part.expand([int(size) for size in tesa.shape])


@given(attributes())
def test_no_value_leaks_from_unknown_elements(tesa: TeSA) -> None:
    assert bool((full(tesa, tesa.value)[~full(tesa, tesa.known)] == 0).all())


@given(attributes())
def test_zero_and_nonzero_are_what_the_facts_say(tesa: TeSA) -> None:
    known, value = full(tesa, tesa.known), full(tesa, tesa.value)
    assert torch.equal(full(tesa, tesa.zero), known & (value == 0))
    assert torch.equal(full(tesa, tesa.nonzero), ~known | (value != 0))
    assert torch.equal(full(tesa, tesa.unknown_elements), ~known)


@given(attributes())
def test_constant_and_unknown_are_the_extremes(tesa: TeSA) -> None:
    known = full(tesa, tesa.known)
    assert tesa.is_constant or not bool(known.all()) or known.numel() == 0
    assert tesa.is_unknown or bool(tesa.known.any())


@given(attributes(), st.integers(0, 7))
def test_a_uniform_attribute_is_weaker(tesa: TeSA, seed: int) -> None:
    dims = [d for d in range(len(tesa.shape)) if seed >> d & 1]
    weaker = tesa.uniform_over(dims)
    assert all(weaker.known.shape[d] == weaker.value.shape[d] == 1 for d in dims)
    claimed = full(tesa, weaker.known)
    assert bool((full(tesa, tesa.known) | ~claimed).all())
    assert torch.equal(full(tesa, weaker.value)[claimed], full(tesa, tesa.value)[claimed])


def test_uniform_over_keeps_what_is_equal() -> None:
    tesa = TeSA.constant(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
    assert tesa.uniform_over([0]).known.tolist() == [[True, False]]
    assert tesa.uniform_over([]).known.tolist() == tesa.known.tolist()


@given(attributes())
def test_transposing_twice_is_the_identity(tesa: TeSA) -> None:
    if len(tesa.shape) > 1:
        twice = tesa.transposed().transposed()
        assert twice.shape == tesa.shape
        assert torch.equal(twice.value, tesa.value)


def test_live_elements_are_needed_and_not_known() -> None:
    tesa = TeSA.partial((3,), torch.float32, torch.tensor([True, False, False]), torch.zeros(3))
    assert tesa.with_need(torch.tensor([True, True, False])).live.tolist() == [False, True, False]


def test_a_parameter_is_described_without_a_copy() -> None:
    parameter = torch.nn.Parameter(torch.randn(4, 3))
    tesa = TeSA.constant(parameter)
    assert tesa.value.data_ptr() == parameter.data_ptr()
    assert not tesa.value.requires_grad
    assert tesa.known.numel() == tesa.need.numel() == 1


def test_a_symbolic_dimension_is_stored_once() -> None:
    batch = sympy.Symbol("s0")
    tesa = TeSA.unknown((batch, 3), torch.float32)
    assert tesa.known.shape == (1, 1)
    assert not tesa.is_static
    assert TeSA.unknown((2, 3), torch.float32).is_static


@pytest.mark.parametrize("shape", [(2, 3), (3, 2, 1)])
def test_parts_must_fit_the_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="does not compress"):
        TeSA((2, 4), torch.float32, torch.ones(shape, dtype=torch.bool), torch.zeros(1, 1), torch.ones(1, 1))
