"""`optimize` end to end: exact, dynamic, honest, and never touching the original."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparta
from sparta.runtime.verify import relative_error

SPARSE = ("linear", "conv2d")


def sparse_operators(fast: sparta.OptimizedModule) -> list[str]:
    """Names of the sparse operators in the first program."""
    graph = fast.programs[0].module.graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [name for name in names if name.startswith("sparta.")]


def masked(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A deep copy with the masks multiplied in: the oracle, made without sparta."""
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, mask in masks.items():
            twin.get_parameter(name).mul_(mask)
    return twin


def random_masks(model: nn.Module, density: float) -> dict[str, Tensor]:
    """Unstructured masks for every weight matrix of the model."""
    return {name: (torch.rand(p.shape) < density).float() for name, p in model.named_parameters() if p.dim() > 1}


class ConvNet(nn.Module):
    """Convolution, BatchNorm with random statistics, residual add, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.body = nn.Conv2d(16, 16, 3, padding=1)
        self.down = nn.Conv2d(16, 32, 3, stride=2, dilation=2, padding=2, groups=2)
        self.head = nn.Linear(32, 10)
        for tensor in (self.norm.running_mean, self.norm.weight, self.norm.bias):
            nn.init.normal_(tensor)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = functional.relu(self.norm(self.stem(x)))
        x = functional.relu(self.body(x) + x)
        return self.head(functional.gelu(self.down(x)).mean((2, 3)))


def mlp() -> nn.Sequential:
    """Two linears with a GELU between."""
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 24)).eval()


FORCE: dict[str, Any] = {"measure": False}
"""Sparse kernels whether they pay or not: the tests are about exactness."""


@pytest.mark.parametrize("density", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("make", [mlp, ConvNet])
def test_equals_the_masked_dense_model(make: Any, density: float) -> None:
    model = make().eval()
    masks = random_masks(model, density)
    x = torch.randn(4, 64) if make is mlp else torch.randn(2, 3, 11, 13)
    fast = sparta.optimize(model, masks, example_inputs=(x,), options=FORCE)
    reference = masked(model, masks)
    for batch in (1, 3, 17):
        fresh = torch.randn(batch, *x.shape[1:])
        assert relative_error(reference(fresh), fast(fresh)) < 1e-4


def test_sparse_operators_really_run() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(32, 64),), options=FORCE)
    assert sparse_operators(fast) == ["sparta.linear.default", "sparta.linear.default"]
    assert {layer.kernel for layer in fast.report().layers}.isdisjoint({"dense"})


def test_the_original_is_not_touched() -> None:
    model = ConvNet().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sparta.optimize(model, random_masks(model, 0.2), example_inputs=(torch.randn(2, 3, 11, 13),))
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_compiles_lazily_on_the_first_call() -> None:
    fast = sparta.optimize(mlp(), None)
    assert fast.programs == ()
    with pytest.raises(sparta.SpartaError, match="call the model once"):
        fast.report()
    fast(torch.randn(2, 64))
    assert len(fast.programs) == 1
    assert fast.report().error is not None


def test_one_program_serves_every_batch() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(8, 64),), options=FORCE)
    for batch in (1, 2, 8, 33, 100):
        fast(torch.randn(batch, 64))
    assert len(fast.programs) == 1


def test_shapes_beyond_the_limit_are_dropped_and_come_back() -> None:
    model = mlp()
    fast = sparta.optimize(model, None, dynamic_batch=False, options={"max_shapes": 2})
    for batch in (2, 3, 4, 2):
        x = torch.randn(batch, 64)
        assert relative_error(model(x), fast(x)) < 1e-4
        assert len(fast.programs) <= 2
        assert fast._buffers is fast.programs[0].module._buffers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_element_types(dtype: torch.dtype) -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    exact = masked(model, masks).double()
    model = model.to(dtype)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64, dtype=dtype),), options=FORCE)
    x = torch.randn(8, 64, dtype=dtype)
    y = fast(x)
    assert y.dtype == dtype
    torchs = relative_error(exact(x.double()), masked(model, masks)(x).double())
    ours = relative_error(exact(x.double()), y.double())
    assert ours <= max(1.5 * torchs, 1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.cat([torch.zeros(x.shape[0], 1), x], 1)[:, 1:],
        lambda x: x[::2],
        lambda x: x.flip(0)[:0],
    ],
    ids=["transposed", "offset", "strided", "empty"],
)
def test_any_strides_alignment_and_batch(make: Any) -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(8, 64),), options=FORCE)
    x = make(torch.randn(10, 64))
    want = masked(model, masks)(x)
    got = fast(x)
    assert got.shape == want.shape
    assert relative_error(want, got) < 1e-4


def test_training_mode_is_refused() -> None:
    fast = sparta.optimize(mlp())
    with pytest.raises(sparta.SpartaError, match="cannot be trained"):
        fast.train()
    assert fast.eval() is fast
    assert not fast.training


def test_works_in_inference_mode_and_keeps_no_graph() -> None:
    fast = sparta.optimize(mlp(), None, example_inputs=(torch.randn(2, 64),))
    with torch.inference_mode():
        assert fast(torch.randn(2, 64)).is_inference()
    assert not fast(torch.randn(2, 64, requires_grad=True)).requires_grad


def test_deepcopy_is_independent() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(2, 64),), options=FORCE)
    x = torch.randn(2, 64)
    want = fast(x)
    twin = copy.deepcopy(fast)
    for tensor in twin.state_dict().values():
        if tensor.dtype.is_floating_point:
            tensor.zero_()
    assert torch.equal(fast(x), want)
    assert not torch.equal(twin(x), want)


def test_state_loaded_in_place_is_used() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(2, 64),), options=FORCE)
    x = torch.randn(2, 64)
    fast(x)
    doubled = {name: t * 2 if t.dtype.is_floating_point else t for name, t in fast.state_dict().items()}
    before = fast(x)
    fast.load_state_dict(doubled)
    assert not torch.allclose(fast(x), before)


def test_foreign_state_is_refused() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(2, 64),), options=FORCE)
    with pytest.raises(sparta.SpartaError, match="same masks"):
        fast.load_state_dict(model.state_dict())


def test_dense_survivors_keep_their_names() -> None:
    model = ConvNet().eval()
    masks = {"body.weight": torch.rand(16, 16, 3, 3) < 0.1}
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(2, 3, 11, 13),), options=FORCE)
    names = fast.state_dict().keys()
    assert {"head.weight", "head.bias", "down.weight"} <= names
    assert any(name.startswith("body.weight__") for name in names)


def test_conversion_compiles_again() -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(2, 64),), options=FORCE)
    fast.double()
    x = torch.randn(2, 64, dtype=torch.float64)
    assert relative_error(masked(model, masks).double()(x), fast(x)) < 1e-9
    assert model[0].weight.dtype == torch.float32


def test_export_and_compile_of_an_optimized_module() -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(4, 64),), options=FORCE)
    x = torch.randn(4, 64)
    exported = torch.export.export(fast, (x,)).module()
    assert relative_error(fast(x), exported(x)) < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(fast, backend="aot_eager")
        assert relative_error(fast(x), compiled(x)) < 1e-6


def test_many_threads_may_call() -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, options=FORCE)
    inputs = [torch.randn(40, 64) for _ in range(4)]
    results: dict[int, Tensor] = {}

    def work(index: int) -> None:
        results[index] = fast(inputs[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reference = masked(model, masks)
    assert all(relative_error(reference(inputs[i]), results[i]) < 1e-4 for i in range(4))


def test_quantization_is_refused_not_ignored() -> None:
    with pytest.raises(sparta.QuantizationError, match="not supported by this version"):
        sparta.optimize(mlp(), quantization={"0": {}})


def test_progress_names_the_stages() -> None:
    seen: list[str] = []
    sparta.optimize(mlp(), None, example_inputs=(torch.randn(2, 64),), progress=seen.append)
    assert seen == ["capture", "annotate", "propagate", "fold", "transform", "specialize", "verify", "measure"]


@pytest.mark.parametrize("form", [lambda x: (x,), lambda x: [x], lambda x: x, lambda x: {"input": x}])
def test_forms_of_the_example(form: Any) -> None:
    fast = sparta.optimize(mlp(), None, example_inputs=form(torch.randn(2, 64)))
    assert fast(torch.randn(2, 64)).shape == (2, 24)


def test_threads_are_honored() -> None:
    model = mlp()
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, example_inputs=(torch.randn(70, 64),), threads=2, options=FORCE)
    x = torch.randn(70, 64)
    assert relative_error(masked(model, masks)(x), fast(x)) < 1e-4


def test_full_verification_certifies_the_propagation() -> None:
    model = mlp()
    fast = sparta.optimize(model, random_masks(model, 0.1), example_inputs=(torch.randn(4, 64),), verify="full")
    assert any("garbage injection" in note for note in fast.report().notes)


def test_an_example_that_forward_changes_in_place_is_left_alone() -> None:
    class InPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(2))

    x = torch.randn(3, 16)
    before = x.clone()
    sparta.optimize(InPlace(16, 16), {"weight": torch.eye(16)}, example_inputs=x)
    assert torch.equal(x, before)


class Scaled(nn.Linear):
    """Takes a number beside its input."""

    def forward(self, x: Tensor, scale: float) -> Tensor:
        """The scaled result."""
        return super().forward(x) * scale


def test_a_value_that_is_not_equal_to_itself_is_taken() -> None:
    fast = sparta.optimize(Scaled(16, 16), {"weight": torch.eye(16)})
    assert fast(torch.randn(3, 16), float("nan")).isnan().all()


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrapped_models_take_masks_by_the_names_inside(wrap: Any) -> None:
    model, x = mlp(), torch.randn(3, 64)
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(wrap(model), masks, example_inputs=x, options=FORCE)
    with torch.no_grad():
        assert relative_error(masked(model, masks)(x), fast(x)) < 1e-5
    sparta.attach_masks(wrap(model), masks)


@pytest.mark.parametrize("options", [FORCE, None])
def test_autocast_counts_at_the_call_not_at_compile_time(options: dict[str, Any] | None) -> None:
    model, x = mlp(), torch.randn(3, 64)
    masks = random_masks(model, 0.1)
    oracle = masked(model, masks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast = sparta.optimize(model, masks, example_inputs=x, options=options)
    with torch.no_grad():
        assert relative_error(oracle(x), fast(x)) < 1e-5
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert relative_error(oracle(x), fast(x)) < 2e-2, "in bf16, as the original"
        assert relative_error(oracle(x), fast(x)) < 1e-5


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_one_dimensional_convolutions_have_sparse_kernels(padding_mode: str) -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 3, stride=2, padding=2, padding_mode=padding_mode), nn.ReLU())
    masks = random_masks(model, 0.1)
    fast = sparta.optimize(model, masks, example_inputs=torch.randn(2, 8, 9), options=FORCE)
    assert sparse_operators(fast) == ["sparta.conv2d.default"]
    x = torch.randn(5, 8, 9)
    with torch.no_grad():
        assert relative_error(masked(model, masks)(x), fast(x)) < 1e-5


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("make", [nn.Conv1d, nn.Conv2d])
def test_padding_given_by_name_keeps_no_layer_from_its_kernel(make: Any, padding: str) -> None:
    model = nn.Sequential(make(8, 16, 3, padding=padding, dilation=2), nn.ReLU())
    masks = random_masks(model, 0.1)
    image = (9, 7)[: model[0].weight.dim() - 2]
    fast = sparta.optimize(model, masks, example_inputs=torch.randn(2, 8, *image), options=FORCE)
    assert sparse_operators(fast) == ["sparta.conv2d.default"]
    x = torch.randn(5, 8, *image)
    with torch.no_grad():
        assert relative_error(masked(model, masks)(x), fast(x)) < 1e-5
