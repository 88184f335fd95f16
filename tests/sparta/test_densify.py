"""The dense twin computes what the optimized graph computes, without sparse operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sparta
from sparta.runtime.densify import dense_twin
from sparta.runtime.verify import relative_error


class Block(nn.Module):
    """A grouped convolution, a residual convolution and a linear, each with an activation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1, groups=2)
        self.second = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 24)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Features of a batch of images."""
        x = self.activation(self.first(x))
        x = self.activation(self.second(x) + x)
        return self.activation(self.head(x.mean((2, 3))))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh()])
def test_the_twin_is_dense_and_equal(activation: nn.Module) -> None:
    model = Block(activation).eval()
    masks = {name: torch.rand(p.shape) < 0.2 for name, p in model.named_parameters() if p.dim() > 1}
    x = torch.randn(3, 8, 9, 7)
    fast = sparta.optimize(model, masks, example_inputs=(x,), options={"measure": False})
    twin = dense_twin(fast.programs[0].module)
    assert not any("sparta" in str(node.target) for node in twin.graph.nodes)
    assert relative_error(fast(x), twin(x)[0]) < 1e-4
