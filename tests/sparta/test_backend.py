"""The Dynamo backend: several graphs, attached masks, masks by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import sparta
from sparta.backend import sparta_backend
from sparta.runtime.verify import relative_error


class Branching(nn.Module):
    """A data-dependent branch between two linears: two graphs under Dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.second = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        """The logits; twice as large where the hidden sum is positive."""
        h = self.first(x)
        if h.sum() > 0:
            h = h * 2
        return self.second(h)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def masked_output(model: Branching, masks: dict[str, Tensor], x: Tensor) -> Tensor:
    """The masked dense result."""
    weights = {name: model.get_parameter(name) * mask for name, mask in masks.items()}
    return torch.func.functional_call(model, weights, (x,))  # type: ignore[no-any-return]


MASKS = {"first.0.weight": torch.rand(32, 32) < 0.2, "second.weight": torch.rand(8, 32) < 0.3}


@torch.no_grad()
def test_attached_masks() -> None:
    model = Branching().eval()
    sparta.attach_masks(model, MASKS)
    compiled = torch.compile(model, backend="sparta")
    for batch in (4, 9):
        x = torch.randn(batch, 32)
        assert relative_error(masked_output(model, MASKS, x), compiled(x)) < 1e-4


@torch.no_grad()
def test_masks_by_name() -> None:
    model = Branching().eval()
    nested = {
        "first.0": {"weight": MASKS["first.0.weight"], "bias": None},
        "second": {"weight": MASKS["second.weight"]},
    }
    compiled = torch.compile(model, backend=sparta_backend, options={"masks": nested})
    x = torch.randn(4, 32)
    assert relative_error(masked_output(model, MASKS, x), compiled(x)) < 1e-4


@torch.no_grad()
def test_zeros_in_the_weights_need_no_masks() -> None:
    model = Branching().eval()
    model.second.weight.mul_(MASKS["second.weight"])
    compiled = torch.compile(model, backend="sparta")
    x = torch.randn(4, 32)
    assert relative_error(model(x), compiled(x)) < 1e-4


def test_masks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(sparta.MaskError):
        sparta.attach_masks(Branching(), {"first.0.weight": torch.ones(3, 3)})


def test_optimize_falls_back_to_dynamo() -> None:
    model = Branching().eval()
    fast = sparta.optimize(model, MASKS, example_inputs=(torch.randn(4, 32),))
    report = fast.report()
    assert report.capture == "dynamo"
    assert {layer.name for layer in report.layers} >= {"second"}
    for _ in range(3):
        x = torch.randn(4, 32)
        assert relative_error(masked_output(model, MASKS, x), fast(x)) < 1e-4


def test_strict_refuses_the_fallback() -> None:
    with pytest.raises(sparta.CaptureError):
        sparta.optimize(Branching(), None, example_inputs=(torch.randn(4, 32),), strict=True)
