"""Calls: expectations and fresh inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparta.runtime.inputs import Leaf, accepts_all, expected, first_of_batch, fresh


@pytest.mark.parametrize("leaf", [torch.ones(2, 3), 3, None, "text", True, 2.5])
def test_an_expectation_accepts_its_own_example(leaf: object) -> None:
    assert accepts_all([expected(leaf)], [leaf])


def test_expectations_refuse_other_types_and_values() -> None:
    assert not accepts_all([expected(1)], [True])
    assert not accepts_all([expected(torch.ones(2))], [torch.ones(2, dtype=torch.float64)])
    assert not accepts_all([expected(torch.ones(2))], [torch.ones(3)])
    assert not accepts_all([expected(None)], [torch.ones(1)])


def test_symbolic_dimensions_accept_any_size() -> None:
    want = expected(torch.ones(2, 3), {0: "s0"})
    assert accepts_all([want], [torch.ones(17, 3)])
    assert not accepts_all([want], [torch.ones(2, 4)])


def test_one_symbol_has_one_value() -> None:
    want = [expected(torch.ones(2, 3), {0: "s0"}), expected(torch.ones(2), {0: "s0"})]
    assert accepts_all(want, [torch.ones(17, 3), torch.ones(17)])
    assert not accepts_all(want, [torch.ones(17, 3), torch.ones(1)])


@given(st.integers(-5, 5), st.integers(0, 9))
def test_fresh_integers_stay_in_the_range_seen(low: int, span: int) -> None:
    example = torch.tensor([low, low + span])
    (drawn,), _ = fresh(((example,), {}))
    assert drawn.dtype == example.dtype
    assert low <= int(drawn.min()) <= int(drawn.max()) <= low + span


def test_fresh_floats_differ_and_keep_mean_and_deviation() -> None:
    example = torch.randn(4000) * 3 + 7
    (drawn,), _ = fresh(((example,), {}))
    assert not torch.equal(drawn, example)
    assert abs(float(drawn.mean()) - 7) < 0.3
    assert abs(float(drawn.std()) - 3) < 0.3


def test_fresh_masks_keep_their_minus_infinity() -> None:
    example = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    (drawn,), _ = fresh(((example,), {}))
    assert torch.equal(drawn, example)


def test_batch_one_is_cut_only_where_the_batch_is_symbolic() -> None:
    (x, y), _ = first_of_batch(((torch.ones(4, 2), torch.ones(4, 2)), {}), [(0,), ()])
    assert x.shape == (1, 2)
    assert y.shape == (4, 2)


def test_arrays_are_never_the_same_for_sure() -> None:
    assert not Leaf(None, (), np.ones(2)).accepts(np.ones(2), {})
