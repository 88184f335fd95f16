"""Random nets x random masks: overwriting what a propagation calls constant or unused must not move the outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sparta.propagation import annotate, capture
from sparta.propagation.engine import propagate
from sparta.propagation.verify import garbage_injection
from tests.propagation.random_nets import RandomNet, random_cnn, random_mlp
from tests.propagation.tracing import propagate_net

GENERATORS = (random_cnn, random_mlp)
Generator = Callable[[int], RandomNet]


def injected_error(net: RandomNet) -> float:
    return garbage_injection(propagate_net(net), (torch.randn_like(net.example) * 2,), {})


@pytest.mark.parametrize("start", [0, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in (40, 60, 80))])
@pytest.mark.parametrize("generator", GENERATORS)
def test_outputs_survive_garbage(generator: Generator, start: int) -> None:
    for seed in range(start, start + 20):
        assert injected_error(generator(seed)) < 1e-4, f"{generator.__name__}({seed})"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("generator", GENERATORS)
def test_outputs_survive_garbage_after_a_real_capture(generator: Generator, dynamic: bool) -> None:
    net = generator(1)
    captured = capture(net.model, (net.example,), dynamic_batch=dynamic)
    propagated = propagate(annotate(captured, net.masks))
    assert bool(captured.dynamic[0]) == dynamic
    assert garbage_injection(propagated, (torch.randn_like(net.example),), {}) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 40))
@pytest.mark.parametrize("generator", GENERATORS)
def test_outputs_survive_garbage_with_a_symbolic_batch(generator: Generator, seed: int) -> None:
    net = generator(seed)
    propagated = propagate(annotate(capture(net.model, (net.example,)), net.masks))
    for batch in (1, 2, 17):
        example = torch.randn(batch, *net.example.shape[1:])
        assert garbage_injection(propagated, (example,), {}) < 1e-4
    assert propagated.barriers == ()
