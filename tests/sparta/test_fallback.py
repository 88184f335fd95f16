"""Models no tracer can swallow whole are optimized module by module, exactly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import sparta
from sparta.runtime import fallback
from sparta.runtime.verify import relative_error


class Routed(nn.Module):
    """Chooses its path by a Python number read from the data; the parts are plain."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32))
        self.paths = nn.ModuleList([nn.Linear(32, 8), nn.Linear(32, 8)])

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the path the data chose."""
        h = self.encoder(x)
        return self.paths[int(h.sum().item() > 0)](h)


@pytest.fixture(autouse=True)
def _no_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fallback, "compile_by_dynamo", lambda *arguments: None)
    import sparta.api

    monkeypatch.setattr(sparta.api, "compile_by_dynamo", lambda *arguments: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_parts_are_optimized() -> None:
    model = Routed().eval()
    masks = {"encoder.0.weight": torch.rand(48, 32) < 0.2, "encoder.2.weight": torch.rand(32, 48) < 0.2}
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(4, 32),))
    report = fast.report()
    assert report.capture == "modules"
    assert {layer.name for layer in report.layers} & {"0", "2", "encoder.0", "encoder.2"}
    weights = {name: model.get_parameter(name) * mask for name, mask in masks.items()}
    for batch in (1, 4, 9):
        for scale in (1.0, -1.0):
            x = scale * torch.randn(batch, 32)
            want = torch.func.functional_call(model, weights, (x,))
            assert relative_error(want, fast(x)) < 1e-4


def test_the_original_keeps_its_forward() -> None:
    model = Routed()
    sparta.optimize(model, None, example_inputs=(torch.randn(4, 32),))
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert model.training


def test_parts_cannot_be_saved_and_the_message_says_why(tmp_path: object) -> None:
    fast = sparta.optimize(Routed(), None, example_inputs=(torch.randn(4, 32),))
    with pytest.raises(sparta.SpartaError, match="cannot be saved: it runs in parts"):
        fast.save(f"{tmp_path}/m.sparta")


def test_a_model_without_capturable_parts_runs_dense() -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight if x.sum().item() > 0 else x @ self.weight.t()

    model = Opaque()
    mask = torch.eye(4)
    fast = sparta.optimize(model, {"weight": mask}, example_inputs=(torch.ones(2, 4),))
    x = torch.rand(3, 4)
    assert torch.allclose(fast(x), x @ (model.weight * mask))
    assert any("runs dense" in note for note in fast.report().notes)
