"""Activation functions against PyTorch's in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparta.kernels.codegen.epilogue import ACTIVATIONS, finish
from sparta.kernels.codegen.ir import F32, I64, PTR, Module
from sparta.kernels.codegen.jit import load
from sparta.kernels.codegen.threads import job_entry, run
from sparta.kernels.problem import Activation

_REFERENCE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}


def _apply(activation: Activation, x: Tensor) -> Tensor:
    module = Module()
    f = module.function("apply", {"x": PTR, "y": PTR, "count": I64, "job": I64, "scratch": PTR}, internal=True)
    with f.loop(0, f["count"], 8) as i:
        vector = f.load(F32.vector(8), f["x"], i)
        f.store(finish(f, vector, bias=None, residual=None, activation=activation), f["y"], i)
    y = torch.empty_like(x)
    kernel = load(module, job_entry(module, f))
    run(kernel, (x.data_ptr(), y.data_ptr(), x.numel()), jobs=1, threads=1)
    return y


def test_every_activation_has_a_reference() -> None:
    assert ACTIVATIONS.keys() == _REFERENCE.keys()


@pytest.mark.parametrize("activation", list(_REFERENCE))
def test_activation_is_accurate(activation: Activation) -> None:
    x = torch.cat([torch.linspace(-30, 30, 80_000), torch.randn(80_000) * 0.01])
    error = (_apply(activation, x) - _REFERENCE[activation](x.double())).abs()
    assert bool((error <= 1e-6 + 1e-6 * x.abs()).all())


@pytest.mark.parametrize("activation", list(_REFERENCE))
def test_activation_at_the_extremes(activation: Activation) -> None:
    x = torch.tensor(
        [0.0, 3e38, -3e38, 1e30, -1e30, -1e4, -100.0, -88.5, 88.5, 1e4, 127.0, -127.0, 1e-30, -1e-30, 5.0, -5.0]
    )
    assert torch.allclose(_apply(activation, x), _REFERENCE[activation](x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", list(_REFERENCE))
def test_nan_and_infinity_pass(activation: Activation) -> None:
    x = torch.tensor([float("nan"), float("inf")] * 4)
    y = _apply(activation, x)
    assert bool(y[::2].isnan().all())
    assert bool((y[1::2] == float("inf")).all())
