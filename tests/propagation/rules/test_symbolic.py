"""Symbolic sizes: facts and needs stay uniform along them, and rules never look at their value."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch import Tensor

from sparta.propagation.rules.shape import reshape_compressed, reshape_need, reshape_tesa, segments
from sparta.tesa import TeSA
from sparta.tesa.compressed import Shape

S0, S1 = sympy.Symbol("s0", positive=True, integer=True), sympy.Symbol("s1", positive=True, integer=True)
CHANNELS = torch.arange(6) % 2 == 0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((S0, 128, 768), (S0, 128, 12, 64), [([0], [0]), ([1], [1]), ([2], [2, 3])]),
        ((S0, 128, 768), (128 * S0, 768), [([0, 1], [0]), ([2], [1])]),
        ((128 * S0, 768), (S0, 128, 768), [([0], [0, 1]), ([1], [2])]),
        ((S0, S1, 6), (S0 * S1, 6), [([0, 1], [0]), ([2], [1])]),
        ((S0, 1, 6), (S0, 6), [([0], [0]), ([2], [1])]),
        ((4, 6), (6, 4), [([0, 1], [0, 1])]),
        ((2, S0 + 1), (2 * S0 + 2,), [([0, 1], [0])]),
        ((1, 1), (), []),
    ],
)
def test_segments_of_symbolic_shapes(old: Shape, new: Shape, expected: list[tuple[list[int], list[int]]]) -> None:
    assert segments(old, new) == expected


def features(shape: Shape) -> TeSA:
    """Known zeros in every second of the last 6 features."""
    known = CHANNELS.reshape([1] * (len(shape) - 1) + [6])
    return TeSA.partial(shape, torch.float32, known, torch.zeros([1] * len(shape)))


def test_features_survive_the_split_into_heads() -> None:
    result = reshape_tesa(features((S0, 5, 6)), (S0, 5, 2, 3))
    assert result.known.shape == (1, 1, 2, 3)
    assert result.known.flatten().tolist() == CHANNELS.tolist()


def test_features_survive_the_flattening_of_tokens() -> None:
    assert reshape_tesa(features((S0, 5, 6)), (5 * S0, 6)).known.tolist() == [CHANNELS.tolist()]


def test_features_that_mix_with_a_symbolic_size_are_forgotten() -> None:
    assert reshape_tesa(features((S0, 6)), (6 * S0,)).is_unknown
    need = reshape_need(CHANNELS.reshape(1, 6), (S0, 6), (6 * S0,))
    assert need.tolist() == [True]


def test_a_uniform_fact_survives_any_reshape() -> None:
    zeros = TeSA.partial((S0, 6), torch.float32, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1))
    assert reshape_tesa(zeros, (6 * S0,)).is_constant


@pytest.mark.parametrize("shape", [(0, 6), (6, 0)])
def test_an_empty_tensor_can_be_reshaped(shape: tuple[int, int]) -> None:
    full: Tensor = torch.ones(shape, dtype=torch.bool)
    assert reshape_compressed(full, shape, (0,)).shape == (0,)
    assert reshape_compressed(full[:1, :1] | True, shape, (0,)).numel() <= 1
