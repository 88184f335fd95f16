"""The gate: wrong kernels are found and put back, slow programs are not used, and the report says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparta
from sparta.propagation.folding import fold
from sparta.runtime import executor, gate
from sparta.runtime.verify import relative_error
from sparta.transformation.measure import measure

FORCE: dict[str, Any] = {"measure": False}


def model_and_masks() -> tuple[nn.Sequential, dict[str, Tensor]]:
    """Two linears of different shapes, both sparse."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24)).eval()
    return model, {"0.weight": torch.rand(96, 64) < 0.2, "2.weight": torch.rand(24, 96) < 0.2}


@torch.no_grad()
def reference(model: nn.Sequential, masks: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The masked dense result."""
    weights = {name: model.get_parameter(name) * mask for name, mask in masks.items()}
    return torch.func.functional_call(model, weights, (x,))  # type: ignore[no-any-return]


@pytest.fixture
def wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the 24 x 96 linear returns results that are off by a tenth of a percent."""
    right = executor.Executor.__call__

    def wrong(self: executor.Executor, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        y = right(self, x, bias, residual)
        return y * 1.001 if self.plan.problem.matrix == (24, 96) else y

    monkeypatch.setattr(executor.Executor, "__call__", wrong)


@pytest.mark.usefixtures("wrong_kernel")
def test_the_wrong_kernel_is_found_and_put_back_to_dense() -> None:
    model, masks = model_and_masks()
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),), options=FORCE)
    report = fast.report()
    assert [note for note in report.notes if note.startswith("2: kernel ")]
    assert {layer.name: layer.kernel == "dense" for layer in report.layers} == {"0": False, "2": True}
    x = torch.randn(8, 64)
    assert relative_error(reference(model, masks, x), fast(x)) < 1e-4


@pytest.mark.usefixtures("wrong_kernel")
def test_strict_raises_instead() -> None:
    model, masks = model_and_masks()
    with pytest.raises(sparta.VerificationError, match="differs from the masked dense model"):
        sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),), strict=True, options=FORCE)


def test_wrong_folding_is_noticed_and_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model, masks = model_and_masks()
    masks["0.weight"][::2] = False
    calls = []

    def damaged(propagated: Any) -> Any:
        folded = fold(propagated)
        if not calls:
            name = next(name for name in folded.names if "bias" in name)
            getattr(folded.module, name).data = getattr(folded.module, name) + 1.0
        calls.append(1)
        return folded

    import sparta.api

    monkeypatch.setattr(sparta.api, "fold", damaged)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),), options=FORCE)
    assert any("folding was wrong" in note for note in fast.report().notes)
    x = torch.randn(8, 64)
    assert relative_error(reference(model, masks, x), fast(x)) < 1e-4


def test_a_fault_of_ours_leaves_the_model_running_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(propagated: Any) -> Any:
        raise ZeroDivisionError

    import sparta.api

    monkeypatch.setattr(sparta.api, "fold", broken)
    model, masks = model_and_masks()
    x = torch.randn(8, 64)
    with pytest.warns(RuntimeWarning, match="fold failed with ZeroDivisionError"):
        fast = sparta.optimize(model, masks, example_inputs=(x,))
    assert torch.equal(reference(model, masks, x), fast(x))
    assert any("fold failed" in note for note in fast.report().notes)
    with pytest.raises(ZeroDivisionError):
        sparta.optimize(model, masks, example_inputs=(x,), strict=True)


def slow_optimized(runs: Mapping[str, Any], **arguments: Any) -> dict[str, float]:
    """A measurement in which everything but dense takes twice as long."""
    return {name: 1e-3 if name == "dense" else 2e-3 for name in runs}


def test_a_slower_program_is_replaced_by_the_masked_dense_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gate, "measure", slow_optimized)
    model, masks = model_and_masks()
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),))
    report = fast.report()
    assert any("not faster as a whole" in note for note in report.notes)
    assert report.speedup == 1.0
    x = torch.randn(8, 64)
    assert torch.equal(reference(model, masks, x), fast(x))
    fast.save(tmp_path / "m.sparta")
    assert relative_error(fast(x), sparta.load(tmp_path / "m.sparta")(x)) < 1e-4


def test_verification_sees_fresh_inputs() -> None:
    seen = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if type(x) is Tensor and not torch.compiler.is_exporting():
                seen.append(x.clone())
            return self.fc(x)

    example = torch.randn(3, 4)
    sparta.optimize(Spy(), None, example_inputs=(example,))
    assert any(not torch.equal(x, example) for x in seen if x.shape == example.shape)


def test_sample_inputs_are_used() -> None:
    calls = []

    def sample() -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        calls.append(1)
        return (torch.randn(8, 64),), {}

    model, masks = model_and_masks()
    sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),), options={"sample_inputs": sample})
    assert calls


def test_inputs_that_cannot_be_redrawn_are_reported() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).sqrt() if x.dim() == 1 else torch.log(self.fc(x) * 0 + x)

    x = torch.rand(3, 4) + 0.5
    x[0, 0] = 100.0
    fast = sparta.optimize(Picky(), None, example_inputs=(x,))
    assert any("verified on the example itself" in note for note in fast.report().notes)


def test_random_models_are_reported_not_rejected() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + torch.randn_like(x)

    fast = sparta.optimize(Noisy(), None, example_inputs=(torch.randn(3, 4),))
    assert any("random" in note for note in fast.report().notes)


def test_measurements_are_part_of_the_report() -> None:
    model, masks = model_and_masks()
    report = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),)).report()
    assert report.dense_ms and report.optimized_ms
    assert report.machine["isa"]
    assert set(report.stages) >= {"capture", "propagate", "fold", "transform", "specialize", "verify", "measure"}
    for layer in report.layers:
        assert layer.reason


@pytest.mark.parametrize(
    ("a", "b", "error"),
    [
        (torch.ones(3), torch.ones(3), 0.0),
        (torch.ones(3), torch.ones(4), float("inf")),
        (torch.ones(3), torch.ones(3).double(), float("inf")),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), float("inf")),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), 0.0),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0]), float("inf")),
        (torch.tensor([float("inf"), 1.0]), torch.tensor([-float("inf"), 1.0]), float("inf")),
        (torch.tensor([2.0, 0.0]), torch.tensor([2.0, 1.0]), 0.5),
        (None, None, 0.0),
        (torch.empty(0), torch.empty(0), 0.0),
    ],
)
def test_relative_error(a: Any, b: Any, error: float) -> None:
    assert relative_error(a, b) == error


def test_gate_uses_the_interleaved_measure() -> None:
    assert gate.measure is measure


class Growing(nn.Module):
    """Appends to the list it is given, as a cache of keys and values does, and cannot take more than four entries."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The sum over the cache, and the cache."""
        cache.append(self.linear(x))
        assert len(cache) < 5
        return torch.stack(cache).sum(0), cache


@pytest.mark.parametrize("measure", [True, False])
def test_a_list_that_forward_grows_stays_as_the_user_made_it(measure: bool) -> None:
    model, x = Growing().eval(), torch.randn(3, 32)
    cache = [torch.randn(3, 32)]
    masks = {"linear.weight": torch.rand(32, 32) > 0.9}
    fast = sparta.optimize(model, masks, example_inputs=(x, cache), options={"measure": measure})
    assert len(cache) == 1
    assert any("forward changes a container" in note for note in fast.report().notes)
    with torch.no_grad():
        model.linear.weight.mul_(masks["linear.weight"])
        expected, grown = model(x, list(cache))
    result, returned = fast(x, cache)
    assert relative_error(expected, result) < 1e-5
    assert len(returned) == len(grown) == 2


def test_a_call_the_model_cannot_take_raises_the_error_of_the_model() -> None:
    fast = sparta.optimize(nn.Linear(16, 16), {"weight": torch.eye(16)})
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        fast(torch.randn(3, 16, dtype=torch.float64))
