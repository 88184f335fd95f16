"""Patterns are recognized exactly, in any shape."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparta.tesa import NM, Block, Channel, Dense, Unstructured, find_pattern


def random_mask(*shape: int, density: float = 0.3, seed: int = 0) -> Tensor:
    """A random mask that keeps about `density` of its elements."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < density


def tiles(mask: Tensor, height: int, width: int) -> Tensor:
    """`mask` with each element grown to a tile."""
    return mask.repeat_interleave(height, 0).repeat_interleave(width, 1)


@pytest.mark.parametrize(("height", "width"), [(1, 2), (2, 1), (4, 4), (32, 1), (1, 32), (3, 5), (64, 64), (16, 48)])
@pytest.mark.parametrize(("rows", "columns"), [(9, 11), (16, 8)])
def test_blocks_of_any_size(height: int, width: int, rows: int, columns: int) -> None:
    found = find_pattern(tiles(random_mask(rows, columns), height, width))
    assert isinstance(found, Block)
    assert (found.height, found.width, str(found)) == (height, width, f"block {height}x{width}")


@settings(max_examples=50, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), cut=st.integers(0, 8), seed=st.integers(0, 999))
def test_a_block_pattern_is_exact_with_ragged_edges(height: int, width: int, cut: int, seed: int) -> None:
    mask = tiles(random_mask(6, 7, seed=seed), height, width)
    mask = mask[: mask.shape[0] - min(cut, height - 1), : mask.shape[1] - min(cut, width - 1)]
    found = find_pattern(mask)
    if isinstance(found, Block):
        assert found.height % height == 0
        assert found.width % width == 0
        rows = torch.arange(mask.shape[0]) // found.height * found.height
        columns = torch.arange(mask.shape[1]) // found.width * found.width
        assert torch.equal(mask, mask[rows][:, columns])
    else:
        assert (height, width) == (1, 1) or isinstance(found, Channel)


@pytest.mark.parametrize("side", [128, 640])
def test_larger_blocks_are_cut_to_the_largest_side(side: int) -> None:
    found = find_pattern(tiles(random_mask(5, 4), side, 1))
    assert isinstance(found, Block)
    assert found.height == 64


@pytest.mark.parametrize(
    ("mask", "axes"),
    [
        (random_mask(40, 1).expand(40, 30), (0,)),
        (random_mask(1, 30).expand(40, 30), (1,)),
        (random_mask(40, 1) & random_mask(1, 30), (0, 1)),
        (random_mask(8, 1, 1, 1).expand(8, 6, 3, 3), (0,)),
        (random_mask(1, 6, 1, 1).expand(8, 6, 3, 3), (1,)),
        (torch.zeros(8, 6), (0, 1)),
        (random_mask(9), (0,)),
    ],
)
def test_channels(mask: Tensor, axes: tuple[int, ...]) -> None:
    found = find_pattern(mask)
    assert found == Channel(axes, float(mask.double().mean()))
    assert str(found) == "channel"


def test_dropped_kernels_of_a_convolution_are_blocks() -> None:
    found = find_pattern(random_mask(16, 12, 1, 1).expand(16, 12, 3, 3))
    assert isinstance(found, Block)
    assert (found.height, found.width) == (1, 9)


@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 4), (4, 8), (1, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_n_of_m_along_both_axes(n: int, m: int, axis: int) -> None:
    scores = torch.rand(24, 5, m, generator=torch.Generator().manual_seed(1))
    mask = (scores.argsort(-1).argsort(-1) < n).reshape(24, 5 * m)
    found = find_pattern(mask if axis == 1 else mask.t())
    assert found == NM(n, m, axis, n / m)
    assert str(found) == f"{n}:{m}"


def test_sparse_noise_is_no_n_of_m() -> None:
    mask = torch.zeros(16, 16)
    mask[torch.arange(16), torch.arange(16) * 5 % 16] = 1
    assert find_pattern(mask) == Unstructured(1 / 16)


def test_one_element_more_breaks_every_pattern() -> None:
    mask = tiles(random_mask(8, 8), 4, 4)
    mask[1, 2] = ~mask[1, 2]
    assert isinstance(find_pattern(mask), Unstructured)


@pytest.mark.parametrize("weight", [torch.ones(4, 4), torch.zeros(0, 4), torch.zeros(4, 0), torch.ones(())])
def test_no_zeros_are_dense(weight: Tensor) -> None:
    assert find_pattern(weight) == Dense()


def test_weights_count_as_their_masks() -> None:
    mask = tiles(random_mask(8, 8), 4, 4)
    weight = torch.where(mask, torch.full((), float("nan")), torch.zeros(()))
    assert find_pattern(weight) == find_pattern(mask) == find_pattern(weight.t().contiguous().t())


def test_a_large_weight_takes_milliseconds() -> None:
    weight = torch.randn(3072, 768) * random_mask(3072, 768)
    times = []
    for _ in range(5):
        start = time.thread_time()
        found = find_pattern(weight)
        times.append(time.thread_time() - start)
    assert isinstance(found, Unstructured)
    assert sorted(times)[2] < 0.05
