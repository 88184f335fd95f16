"""What torch leaves around pruned modules: hooks, norms of weights, modes, element types, files."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import sparta
from tests.cases.support import FORCE, MaskedDense, Net, assert_same, check, fine, rows, sequence


def small_cnn() -> nn.Sequential:
    """Two convolutions with BatchNorm and a linear."""
    return sequence(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(336, 5)
    )


def image(dtype: torch.dtype = torch.float32) -> Tensor:
    """Two random images."""
    return torch.randn(2, 3, 8, 9, dtype=dtype)


class TestTorchPrune:
    """Modules that `torch.nn.utils.prune` still computes: original times mask, in every call."""

    @pytest.mark.parametrize("masks", [None, {}], ids=["no masks", "empty masks"])
    def test_c01_what_prune_left_is_read(self, masks: dict[str, Any] | None) -> None:
        model = small_cnn()
        prune.ln_structured(model[0], "weight", 0.4, n=2, dim=0)
        prune.l1_unstructured(model[3], "weight", 0.8)
        prune.random_unstructured(model[3], "bias", 0.5)
        prune.l1_unstructured(model[5], "weight", 0.9)
        model(image())
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(model)
        fast = check(model, masks, image())
        assert {layer.name for layer in fast.report().layers} == {"0", "3", "5"}

    def test_c01_global_pruning_of_a_wide_model(self) -> None:
        model = sequence(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
        prune.global_unstructured([(model[0], "weight"), (model[2], "weight")], prune.L1Unstructured, amount=0.9)
        fast = check(model, None, torch.randn(32, 64))
        assert {layer.kernel for layer in fast.report().layers}.isdisjoint({"dense"})

    def test_c01_masks_add_to_what_prune_left(self) -> None:
        model, plain = sequence(nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 4)), nn.Linear(16, 8)
        plain.load_state_dict(model[0].state_dict())
        prune.l1_unstructured(model[0], "weight", 0.5)
        mask = (torch.rand(8, 16) < 0.5).float()
        left = model[0].weight_mask.clone()
        fast = sparta.optimize(model, {"0": {"weight": mask}}, example_inputs=torch.randn(3, 16), options=FORCE)
        expected = MaskedDense(nn.Sequential(plain, model[1], model[2]), {"0": {"weight": mask * left}})
        x = torch.randn(5, 16)
        assert_same(expected(x), fast(x))

    def test_c06_pruned_again_between_two_trainings(self) -> None:
        model = small_cnn()
        for amount in (0.3, 0.5):
            prune.l1_unstructured(model[0], "weight", amount)
            prune.ln_structured(model[5], "weight", amount, n=1, dim=1)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(2):
                optimizer.zero_grad()
                model(image()).square().mean().backward()
                optimizer.step()
        check(model, None, image())

    def test_c01_prune_made_permanent(self) -> None:
        model = small_cnn()
        prune.ln_structured(model[0], "weight", 0.4, n=2, dim=0)
        prune.remove(model[0], "weight")
        fast = check(model, None, image())
        assert fast.report().layers


class TestComputedWeights:
    """Weights that are computed from others are evaluated, whatever hooks compute them."""

    def test_c02_old_weight_norm(self) -> None:
        model = sequence(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(model[0])
        model(torch.randn(2, 6))
        with pytest.raises(RuntimeError, match="graph leaves"):
            copy.deepcopy(model)
        check(model, rows(model, **{"2": (0,)}), torch.randn(5, 6))

    @pytest.mark.parametrize(
        "norm",
        [
            parametrizations.weight_norm,
            parametrizations.spectral_norm,
            parametrizations.orthogonal,
            nn.utils.spectral_norm,
        ],
        ids=["weight_norm", "spectral_norm", "orthogonal", "old spectral_norm"],
    )
    def test_c02_parametrizations(self, norm: Callable[[nn.Module], nn.Module]) -> None:
        model = sequence(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        norm(model[2])
        model(torch.randn(2, 6))
        check(model, rows(model, **{"0": (0, 3)}), torch.randn(5, 6))


class TestModesAndTypes:
    """The result is in eval mode and of the model's own element type, memory layout and strides."""

    @pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
    def test_f08_modes(self, training: bool) -> None:
        model = sequence(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Conv2d(8, 8, 3))
        model.train(training)
        model[1].train(not training)
        fast = check(model, rows(model, **{"0": (0, 3)}), image())
        assert torch.equal(fast(x := image()), fast(x))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
    def test_f09_element_types(self, dtype: torch.dtype) -> None:
        model = small_cnn().to(dtype)
        masks = {**rows(model, **{"0": (0, 3)}), **fine(model, 0.2, "5")}
        fast = check(model, masks, image(dtype))
        assert fast(image(dtype)).dtype == dtype

    def test_f09_one_layer_of_another_type(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            return m.c(m.wide(m.a(x).double()).sigmoid().float())

        model = Net(run, a=nn.Linear(6, 8), wide=nn.Linear(8, 8).double(), c=nn.Linear(8, 4))
        check(model, rows(model, a=(0, 1), wide=(2, 3)), torch.randn(5, 6))

    def test_f12_weights_that_are_not_contiguous(self) -> None:
        model = sequence(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 32))
        model[0].weight = nn.Parameter(torch.randn(64, 64).t() / 8)
        model[2].weight = nn.Parameter(torch.randn(64, 128)[:, ::2] / 8)
        model[3].weight = nn.Parameter(torch.randn(1, 64).expand(32, 64) / 8)
        masks = fine(model, 0.1)
        masks["0"]["weight"] = (torch.rand(64, 64) < 0.1).float().t()
        check(model, masks, torch.randn(32, 64))

    def test_f12_channels_last(self) -> None:
        model = small_cnn().to(memory_format=torch.channels_last)
        masks = rows(model, **{"0": (0, 3)})
        masks["0"]["weight"] = masks["0"]["weight"].to(memory_format=torch.channels_last)  # type: ignore[union-attr]
        fast = check(model, masks, image().to(memory_format=torch.channels_last))
        x = image().to(memory_format=torch.channels_last)
        assert_same(MaskedDense(model, masks)(x), fast(x))


FRESH_PROCESS = """
import sys, torch, sparta
fast = sparta.load(sys.argv[1])
assert not any(module.training for module in fast.modules())
x, want = torch.load(sys.argv[2])
got = fast(x)
assert got.shape == want.shape and float((got - want).abs().max()) <= 1e-4 * float(want.abs().max())
"""


class TestFiles:
    """What is saved is what was optimized, wherever it is read."""

    @pytest.mark.slow
    def test_c07_a_fresh_process_loads_what_was_saved(self, tmp_path: Path) -> None:
        model = sequence(nn.Linear(64, 96, bias=False), nn.ReLU(), nn.Linear(96, 24))
        prune.l1_unstructured(model[0], "weight", 0.9)
        masks = {"2": {"weight": (torch.rand(24, 96) < 0.1).float(), "bias": None}}
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(32, 64), options=FORCE)
        fast.save(tmp_path / "model.sparta")
        x = torch.randn(17, 64)
        torch.save((x, MaskedDense(model, masks)(x)), tmp_path / "call.pt")
        arguments = [sys.executable, "-c", FRESH_PROCESS, str(tmp_path / "model.sparta"), str(tmp_path / "call.pt")]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_a33_fine_grained_masks_survive_saving(self, tmp_path: Path) -> None:
        model = small_cnn()
        masks = fine(model, 0.3)
        fast = check(model, masks, image())
        fast.save(tmp_path / "model.sparta")
        loaded = sparta.load(tmp_path / "model.sparta")
        assert not any(module.training for module in loaded.modules())
        x = image()
        assert_same(MaskedDense(model, masks)(x), loaded(x))

    def test_a33_the_state_holds_the_masked_numbers(self) -> None:
        model = small_cnn()
        masks = fine(model, 0.3, "0", "3")
        model[1] = nn.Identity()
        state = check(model, masks, image()).state_dict()
        for name in ("0", "3"):
            kept = (model.get_submodule(name).get_parameter("weight") * masks[name]["weight"]).count_nonzero()
            stored = [tensor for key, tensor in state.items() if key.startswith(f"{name}.weight")]
            assert sum(int(t.count_nonzero()) for t in stored if t.is_floating_point()) == kept

    @pytest.mark.parametrize("form", ["nested", "default", "flat"])
    def test_c08_mask_files_as_pruners_write_them(self, form: str, tmp_path: Path) -> None:
        model = sequence(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        masks = rows(model, **{"0": (0, 3)})
        written: Any = dict(masks)
        if form == "default":
            written = defaultdict(dict)
            written.update(masks)
        if form == "flat":
            written = {f"{module}.{name}": mask for module, targets in masks.items() for name, mask in targets.items()}
        torch.save(written, tmp_path / "masks.pth")
        fast = sparta.optimize(model, tmp_path / "masks.pth", example_inputs=torch.randn(5, 6), options=FORCE)
        x = torch.randn(3, 6)
        assert_same(MaskedDense(model, masks)(x), fast(x))
        assert fast.report().removed["0.weight"] == ((8, 6), (6, 6))
