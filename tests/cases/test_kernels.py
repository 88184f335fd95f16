"""Sparse kernels inside real models: any strides and batch, every tool of torch, exact masks, honest about gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import sparta
from tests.cases.support import FORCE, MaskedDense, Masks, Net, agree, assert_same, check, fine, sequence


def wide_mlp(activation: nn.Module | None = None) -> nn.Sequential:
    """Two linears wide enough for sparse kernels."""
    return sequence(nn.Linear(64, 96), activation or nn.GELU(), nn.Linear(96, 64))


def forced(model: nn.Module, masks: Masks, *example: Tensor) -> sparta.OptimizedModule:
    """The model with all its layers on sparse kernels."""
    fast = sparta.optimize(model, masks, example_inputs=example, options=FORCE)
    assert sparse_layers(fast) == list(masks)
    return fast


def sparse_layers(fast: sparta.OptimizedModule) -> list[str]:
    """Names of the layers that run on sparse kernels."""
    return [layer.name for layer in fast.report().layers if layer.kernel != "dense"]


def pairs_of_four(shape: tuple[int, int]) -> Tensor:
    """A mask that keeps 2 of every 4 neighbors of a row, at random."""
    scores = torch.rand(shape[0], shape[1] // 4, 4)
    return (scores >= scores.topk(2, -1).values[..., 1:]).float().reshape(shape)


class TestStridesAndShapes:
    """Sparse layers take what dense ones take."""

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x.transpose(1, 2),
            lambda x: x.permute(2, 0, 1),
            lambda x: x.flip(0)[::2].transpose(1, 2),
            lambda x: x[:, :, 3].transpose(0, 1)[:, :, None].expand(-1, -1, 5).transpose(0, 1).transpose(1, 2),
        ],
        ids=["transposed", "permuted", "strided", "expanded"],
    )
    @pytest.mark.parametrize("kind", ["fine", "pairs"])
    def test_d02_batches_that_are_not_contiguous(self, kind: str, view: Callable[[Tensor], Tensor]) -> None:
        model = wide_mlp()
        masks = fine(model, 0.1)
        if kind == "pairs":
            masks = {"0": {"weight": pairs_of_four((96, 64))}, "2": {"weight": pairs_of_four((64, 96))}}
        example = view(torch.randn(8, 64, 16))
        assert not example.is_contiguous()
        fast = sparta.optimize(model, masks, example_inputs=example, options=FORCE)
        assert kind == "pairs" or sparse_layers(fast) == ["0", "2"]
        x = view(torch.randn(8, 64, 16))
        assert_same(MaskedDense(model, masks)(x), fast(x))

    def test_d02_the_layout_changes_inside_the_model(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.tokens(x.transpose(1, 2)).transpose(1, 2)
            return m.out(functional.gelu(m.channels(y.permute(1, 0, 2)[::2])))

        model = Net(run, tokens=nn.Linear(48, 64), channels=nn.Linear(32, 96), out=nn.Linear(96, 32))
        check(model, fine(model, 0.1), torch.randn(4, 48, 32))

    @pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 0, 64), (1, 64), (2, 3, 5, 64)], ids=str)
    def test_d02_every_rank_and_empty_batches(self, shape: tuple[int, ...]) -> None:
        model = wide_mlp()
        masks = fine(model, 0.1)
        fast = sparta.optimize(model, masks, options=FORCE)
        x = torch.randn(shape)
        assert_same(MaskedDense(model, masks)(x), fast(x))


class TestTorchTools:
    """Optimized modules are modules: compiled, exported, converted, faked."""

    @pytest.mark.parametrize("shape", [(1, 32, 64), (3, 96, 64)], ids=str)
    def test_d04_compiled_linear(self, shape: tuple[int, int, int]) -> None:
        tokens, outputs, inputs = shape
        model = sequence(nn.Linear(inputs, outputs))
        masks = fine(model, 0.1)
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(tokens, inputs), options=FORCE)
        compiled = torch.compile(fast, backend="aot_eager", fullgraph=True)
        x = torch.randn(tokens, inputs)
        assert_same(MaskedDense(model, masks)(x), compiled(x))

    @pytest.mark.parametrize("op", ["linear", "conv2d"])
    def test_d04_shapes_are_known_without_running(self, op: str) -> None:
        conv = op == "conv2d"
        model = sequence(nn.Conv2d(32, 48, 3, stride=2) if conv else nn.Linear(64, 96))
        example = torch.randn(2, 32, 20, 22) if conv else torch.randn(8, 64)
        fast = sparta.optimize(model, fine(model, 0.1), example_inputs=example, options=FORCE)
        module = fast.programs[0].module
        assert any(str(node.target).startswith("sparta.") for node in module.graph.nodes)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            (fake,) = module(mode.from_tensor(example))
        (real,) = module(example)
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor imports what torch deprecates
    @pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
    def test_d12_torch_compile_of_an_optimized_model(self, backend: str) -> None:
        model = sequence(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.Flatten(2), nn.Linear(56, 24))
        masks = fine(model, 0.1)
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(2, 3, 11, 12), options=FORCE)
        assert all(tensor.layout is torch.strided for tensor in fast.state_dict().values())
        compiled = torch.compile(fast, backend=backend)
        x = torch.randn(2, 3, 11, 12)
        assert_same(MaskedDense(model, masks)(x), compiled(x))

    @pytest.mark.parametrize("convert", ["half", "bfloat16", "double"])
    @pytest.mark.slow
    def test_d11_conversion_after_optimizing(self, convert: str) -> None:
        model = sequence(nn.Linear(64, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 64))
        masks = fine(model, 0.1)
        fast = forced(model, masks, torch.randn(8, 64))
        assert getattr(fast, convert)() is fast
        getattr(model, convert)()
        agree(MaskedDense(model, masks), fast, getattr(torch.randn(8, 64), convert)())

    def test_d11_conversion_there_and_back(self) -> None:
        model = wide_mlp()
        masks = fine(model, 0.1)
        fast = forced(model, masks, torch.randn(8, 64)).double().float().to("cpu")
        agree(MaskedDense(model, masks), fast, torch.randn(8, 64))


class TestWholeModels:
    """Every linear of a model is masked, whatever else reads its weight."""

    def test_d05_tied_and_transposed_weights(self) -> None:
        def run(m: Any, ids: Tensor) -> Any:
            h = m.embed(ids)
            h = h + m.down(functional.gelu(m.up(h)))
            back = functional.gelu(h @ m.up.weight.T) @ m.down.weight.mT
            return m.head(h), back, functional.linear(h, m.up.weight[:32]), m.up.weight.sum(0) * h

        model = Net(
            run, embed=nn.Embedding(80, 64), up=nn.Linear(64, 96), down=nn.Linear(96, 64), head=nn.Linear(64, 80)
        )
        model.head.weight = model.embed.weight
        check(model, fine(model, 0.1, "up", "down", "head"), torch.randint(0, 80, (2, 16)))

    def test_d05_one_weight_of_two_layers(self) -> None:
        model = Net(lambda m, x: m.b(m.a(x).relu()) + m.a(x).sigmoid(), a=nn.Linear(64, 64), b=nn.Linear(64, 64))
        model.b.weight = model.a.weight
        fast = check(model, fine(model, 0.1, "b"), torch.randn(32, 64))
        assert sorted(sparse_layers(fast)) == ["a", "a", "a"]

    @pytest.mark.parametrize("odd", ["fft", "double", "barrier", "loop"])
    def test_d17_one_odd_node_leaves_the_rest_sparse(self, odd: str) -> None:
        nodes: dict[str, Callable[[Tensor], Tensor]] = {
            "fft": lambda h: torch.fft.ifft(torch.fft.fft(h)).real * 1.5,
            "double": lambda h: h.double().cumsum(-1).float(),
            "barrier": lambda h: torch.special.bessel_j0(h),
            "loop": lambda h: torch.stack([row.flip(-1) for row in h.unbind(1)], 1),
        }
        model = Net(
            lambda m, x: m.d(m.c(nodes[odd](m.b(m.a(x).relu()))).relu()),
            a=nn.Linear(64, 96), b=nn.Linear(96, 64), c=nn.Linear(64, 96), d=nn.Linear(96, 64),
        )  # fmt: skip
        fast = check(model, fine(model, 0.1), torch.randn(4, 8, 64))
        assert sparse_layers(fast) == ["a", "b", "c", "d"]
        report = fast.report()
        assert all(layer.reason for layer in report.layers)
        assert odd != "barrier" or any("bessel_j0" in op for op, _ in report.barriers)


class TestGains:
    """What is reported was measured; without a gain the dense model runs."""

    @pytest.mark.parametrize("batch", [15, 17])
    @pytest.mark.slow
    def test_d16_batches_that_are_no_power_of_two(self, batch: int) -> None:
        def run(m: Any, x: Tensor) -> Any:
            q, k, v = m.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            x = m.n1(x + m.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
            return m.n2(x + m.down(functional.gelu(m.up(x))))

        model = Net(
            run, qkv=nn.Linear(64, 192), out=nn.Linear(64, 64), n1=nn.LayerNorm(64),
            up=nn.Linear(64, 128), down=nn.Linear(128, 64), n2=nn.LayerNorm(64),
        )  # fmt: skip
        masks = fine(model, 0.35)
        fast = check(model, masks, torch.randn(batch, 9, 64), batches=(1, 16), options={})
        report = fast.report()
        assert report.dense_ms
        assert report.optimized_ms
        assert report.optimized_ms <= 1.03 * report.dense_ms + 0.01
        for layer in report.layers:
            assert layer.kernel == "dense" or layer.speedup is None or layer.speedup >= 1.05

    @pytest.mark.parametrize("pruned", [1, 12], ids=["small cuts", "large cuts"])
    def test_a34_a_real_gain_or_dense(self, pruned: int) -> None:
        def block(m: Any, x: Tensor, i: int) -> Any:
            return (x + m.convs[2 * i + 1](m.norms[i](m.convs[2 * i](x)).relu())).relu()

        model = Net(
            lambda m, x: m.fc(block(m, block(m, m.stem(x), 0), 1).mean((2, 3))),
            stem=nn.Conv2d(3, 16, 3, padding=1),
            convs=nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)]),
            norms=nn.ModuleList([nn.BatchNorm2d(16) for _ in range(2)]),
            fc=nn.Linear(16, 5),
        )
        masks: Masks = {f"convs.{i}": {"weight": torch.ones(16, 16, 3, 3)} for i in (0, 2)}
        for targets in masks.values():
            targets["weight"][:pruned] = 0  # type: ignore[index]
        report = check(model, masks, torch.randn(4, 3, 24, 24), options={}).report()
        dense = any("not faster as a whole" in note for note in report.notes)
        assert report.dense_ms
        assert report.optimized_ms
        assert (
            (report.optimized_ms == report.dense_ms)
            if dense
            else (report.optimized_ms <= 1.03 * report.dense_ms + 0.01)
        )
