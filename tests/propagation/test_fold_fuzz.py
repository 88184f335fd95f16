"""Random nets x random masks: the folded model computes what the masked model computes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from sparta.propagation import annotate, capture
from sparta.propagation.engine import propagate
from sparta.propagation.folding import fold
from sparta.propagation.stages import Captured
from tests.propagation.folds import Masks, error
from tests.propagation.random_nets import RandomNet, random_cnn, random_masks, random_mlp
from tests.propagation.tracing import trace

GENERATORS = (random_cnn, random_mlp)
Generator = Callable[[int], RandomNet]


def check(captured: Captured, net: RandomNet, masks: Masks, *, batches: tuple[int, ...]) -> None:
    annotated = annotate(captured, masks)
    folded = fold(propagate(annotated))
    for batch in batches:
        assert error(folded, annotated, torch.randn(batch, *net.example.shape[1:]) * 2) < 1e-4


def other_masks(net: RandomNet, seed: int) -> Masks:
    """More masks for a network that is traced already."""
    return random_masks(net.model, random.Random(seed))


@pytest.mark.parametrize("start", range(0, 100, 20))
@pytest.mark.parametrize("generator", GENERATORS)
def test_folded_nets_compute_the_masked_nets(generator: Generator, start: int) -> None:
    for seed in range(start, start + 20):
        net = generator(seed)
        captured = trace(net.model, net.example)
        for masks in (net.masks, other_masks(net, seed)):
            check(captured, net, masks, batches=(len(net.example),))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("generator", GENERATORS)
def test_folded_nets_with_a_symbolic_batch(generator: Generator, seed: int) -> None:
    net = generator(seed)
    captured = capture(net.model, (net.example,))
    for masks in (net.masks, *(other_masks(net, more) for more in range(5))):
        check(captured, net, masks, batches=(1, 2, 17))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 40))
@pytest.mark.parametrize("generator", GENERATORS)
def test_more_folded_nets_with_a_symbolic_batch(generator: Generator, seed: int) -> None:
    test_folded_nets_with_a_symbolic_batch(generator, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(1000, 4000, 100))
@pytest.mark.parametrize("generator", GENERATORS)
def test_thousands_of_folded_nets(generator: Generator, start: int) -> None:
    for part in range(start, start + 100, 20):
        test_folded_nets_compute_the_masked_nets(generator, part)
