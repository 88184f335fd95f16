"""Index sets of layouts, and how reshapes carry them."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparta.propagation.folding import layout as lay
from sparta.propagation.folding.shape import reshaped

SIZE = 12


@st.composite
def index_sets(draw: st.DrawFn, size: int = SIZE) -> Tensor | None:
    chosen = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return lay.simplify(torch.tensor(sorted(chosen)), size)


def as_set(kept: Tensor | None) -> set[int]:
    return set(lay.indices(kept, SIZE).tolist())


@given(index_sets(), index_sets())
def test_index_sets_are_sets(left: Tensor | None, right: Tensor | None) -> None:
    assert as_set(lay.union(left, right, SIZE)) == as_set(left) | as_set(right)
    assert lay.contains(left, right, SIZE) == (as_set(left) >= as_set(right))
    assert lay.same(left, right) == (as_set(left) == as_set(right))


@given(index_sets(), index_sets())
def test_positions_find_what_is_there(wanted: Tensor | None, source: Tensor | None) -> None:
    where = lay.positions(lay.indices(wanted, SIZE), source, SIZE)
    for index, position in zip(lay.indices(wanted, SIZE).tolist(), where.tolist(), strict=True):
        assert (position >= 0) == (index in as_set(source))
        assert position < 0 or lay.indices(source, SIZE)[position] == index


@pytest.mark.parametrize(
    ("positions", "span"), [([2, 3, 4], (2, 5)), ([5], (5, 6)), ([1, 3], None), ([3, 2], None), ([], None)]
)
def test_consecutive_positions_are_a_slice(positions: list[int], span: tuple[int, int] | None) -> None:
    assert lay.run(torch.tensor(positions, dtype=torch.long)) == span


s0 = sympy.Symbol("s0", positive=True, integer=True)


@pytest.mark.parametrize(
    ("source", "target", "pieces"),
    [
        ((s0, 16, 8), (s0, 16, 2, 4), [((0, 1), (0, 1)), ((1, 2), (1, 2)), ((2, 3), (2, 4))]),
        ((s0, 16, 8), (16 * s0, 8), [((0, 2), (0, 1)), ((2, 3), (1, 2))]),
        ((2 * (s0 + 1), 4), (2 * s0 + 2, 4), [((0, 1), (0, 1)), ((1, 2), (1, 2))]),
        ((5,), (5, 1), [((0, 1), (0, 1)), ((1, 1), (1, 2))]),
        ((), (), []),
    ],
)
def test_segments_are_minimal(source: tuple[object, ...], target: tuple[object, ...], pieces: list[object]) -> None:
    found = lay.segments(source, target)  # type: ignore[arg-type]
    assert [((a.start, a.stop), (b.start, b.stop)) for a, b in found] == pieces


@pytest.mark.parametrize(
    ("source", "target"), [((12,), (3, 4)), ((2, 6), (12,)), ((2, 6), (3, 4)), ((2, 3, 2), (6, 2))]
)
@given(data=st.data())
def test_reshaped_layouts_hold_the_same_elements(
    source: tuple[int, ...], target: tuple[int, ...], data: st.DataObject
) -> None:
    layout = tuple(data.draw(index_sets(size)) for size in source)
    before, after = reshaped(layout, source, target)
    numbers = torch.arange(math.prod(source))
    physical = [lay.count(kept, size) for kept, size in zip(after, target, strict=True)]
    got = lay.take(numbers.reshape(source), before).reshape([int(size) for size in physical])
    assert torch.equal(got, lay.take(numbers.reshape(target), after))
    assert all(map(lay.contains, before, layout, source))
