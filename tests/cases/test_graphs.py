"""Graphs that mislead dependency trackers: reuse, reshuffles, recurrence, stray tensors, odd operators."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparta
from tests.cases.support import FORCE, MaskedDense, Masks, Net, assert_same, check, fine, rows, sequence


def conv(inputs: int, outputs: int, **settings: Any) -> nn.Conv2d:
    """A 3x3 convolution that keeps height and width."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, **settings)


def image(channels: int = 3) -> Tensor:
    """Two random images."""
    return torch.randn(2, channels, 8, 9)


class TestReuse:
    """One tensor, or one layer, in several places."""

    def test_b01_a_tensor_concatenated_with_itself(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x).relu()
            return m.c(torch.cat([y, y], 1)), m.d(torch.cat([y, m.b(x), y.sigmoid(), y], 1))

        model = Net(run, a=conv(3, 8), b=conv(3, 4), c=conv(16, 4), d=conv(28, 4))
        fast = check(model, rows(model, a=(1, 6), b=(0,)), image())
        assert fast.report().removed["c.weight"] == ((4, 16, 3, 3), (4, 12, 3, 3))

    def test_b02_branches_of_a_concatenation_are_pruned_apart(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            return m.head(torch.cat([m.wide(x), m.mlp(x)], -1))

        mlp = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        model = Net(run, wide=nn.Linear(6, 3), mlp=mlp, head=nn.Linear(4, 1))
        fast = check(model, rows(model, wide=(1,), mlp__0=(0, 1, 2)), torch.randn(5, 6))
        assert fast.report().removed["mlp.0.weight"] == ((8, 6), (5, 6))
        check(model, rows(model, mlp__2=(0,)), torch.randn(5, 6))

    def test_b01_a_layer_called_twice(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            return m.shared(m.shared(y).relu()) + m.shared(m.b(x).sigmoid())

        model = Net(run, a=conv(3, 8), b=conv(3, 8), shared=conv(8, 8))
        check(model, rows(model, a=(0, 1), b=(1, 2), shared=(3, 4)), image())

    def test_b01_sparse_kernels_of_a_layer_called_twice(self) -> None:
        model = Net(lambda m, x: m.shared(m.shared(x).relu()), shared=nn.Linear(64, 64))
        check(model, fine(model, 0.1), torch.randn(32, 64))


class TestReorderedChannels:
    """Channels that change places keep their masks."""

    @pytest.mark.parametrize("pruned", [(0, 5), (0, 4), range(4), (0, 1, 2, 4, 5, 6, 7)], ids=str)
    def test_b04_channel_shuffle(self, pruned: Iterable[int]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            batch, _, height, width = y.shape
            return m.c(y.view(batch, 2, 4, height, width).transpose(1, 2).reshape(batch, -1, height, width).sigmoid())

        model = Net(run, a=conv(3, 8), c=conv(8, 4))
        check(model, rows(model, a=pruned), image())

    def test_b04_every_way_to_reorder(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            low, high = y.chunk(2, 1)
            orders = [
                functional.channel_shuffle(y, 4),
                torch.stack([low, high], 2).flatten(1, 2),
                torch.cat([high, low], 1),
                y.flip(1),
                y.roll(3, 1),
                y[:, m.order],
                y.movedim(1, -1).movedim(-1, 1),
            ]
            return [m.c(order) for order in orders]

        model = Net(run, a=conv(3, 8), c=conv(8, 4))
        model.register_buffer("order", torch.tensor([2, 0, 7, 7, 1, 3, 6, 4]))
        check(model, rows(model, a=(0, 1, 5)), image())

    def test_b04_pixels_and_channels_exchanged(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            return m.c(functional.pixel_shuffle(y, 2)), m.d(functional.pixel_unshuffle(y, 2))

        model = Net(run, a=conv(3, 16), c=conv(4, 2), d=conv(64, 2))
        check(model, rows(model, a=(*range(4), 9)), torch.randn(2, 3, 8, 10))


class TestSmallConvolutions:
    """Only `groups` makes a convolution depthwise, whatever the number of channels."""

    @pytest.mark.parametrize("pruned", [(0, 3), range(8)], ids=["two", "all"])
    def test_b08_one_channel(self, pruned: Iterable[int]) -> None:
        model = sequence(
            conv(1, 8), nn.ReLU(), conv(8, 1), nn.BatchNorm2d(1), nn.Sigmoid(), conv(1, 4), conv(4, 4, groups=4)
        )
        check(model, rows(model, **{"0": pruned, "6": (1,)}), image(1))

    def test_b08_the_only_channel_is_pruned(self) -> None:
        model = sequence(conv(1, 8), nn.ReLU(), conv(8, 1), nn.BatchNorm2d(1), nn.Sigmoid(), conv(1, 4))
        check(model, rows(model, "kept", **{"2": (0,)}), image(1))

    @pytest.mark.parametrize("seed", range(2))
    def test_b18_masks_over_masked_weights(self, seed: int) -> None:
        torch.manual_seed(seed)
        model = sequence(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 2))
        with torch.no_grad():
            for name, targets in fine(model, 0.1).items():
                model.get_submodule(name).get_parameter("weight").mul_(targets["weight"])  # type: ignore[arg-type]
        check(model, fine(model, 0.1), image())


class TestRecurrence:
    """Recurrent layers take whole inputs; their own weights may be scattered."""

    @pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN], ids=lambda t: t.__name__)
    @pytest.mark.slow
    def test_b09_recurrent_layers(self, layer: type[nn.Module]) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y, state = m.recurrent(m.a(x).sigmoid())
            return m.c(y), state

        model = Net(run, a=nn.Linear(6, 8), recurrent=layer(8, 8, num_layers=2, batch_first=True), c=nn.Linear(8, 4))
        masks: Masks = rows(model, a=(0, 3), c=(1,))
        masks["recurrent"] = {
            name: (torch.rand(tensor.shape) < 0.3).float()
            for name, tensor in model.recurrent.named_parameters()
            if name.startswith("weight")
        }
        check(model, masks, torch.randn(2, 5, 6))

    def test_b09_a_loop_over_a_cell(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            h = m.a(x[:, 0])
            for step in range(1, 4):
                h = m.cell(m.a(x[:, step]), h)
            return m.c(h)

        model = Net(run, a=nn.Linear(6, 8), cell=nn.GRUCell(8, 8), c=nn.Linear(8, 4))
        check(model, rows(model, a=(0, 3), c=(1,)), torch.randn(2, 4, 6))


class TestStrayTensors:
    """Tensors that belong to no layer, and state that models carry around."""

    def test_b15_position_embeddings_and_scales(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = (m.a(x) + m.height) * m.scale
            tokens = torch.cat([m.token.expand(x.shape[0], -1, -1), y.flatten(2).transpose(1, 2)], 1) + m.position
            return m.c(tokens[:, 0] + tokens[:, 1:].mean(1))

        model = Net(
            run, a=conv(3, 8), c=nn.Linear(8, 4), height=nn.Parameter(torch.randn(8, 8, 1)),
            scale=nn.Parameter(torch.randn(1, 8, 1, 1)), token=nn.Parameter(torch.randn(1, 1, 8)),
            position=nn.Parameter(torch.randn(1, 73, 8)),
        )  # fmt: skip
        check(model, rows(model, a=(0, 1, 2)), image())

    @pytest.mark.parametrize("target", ["scale", "matrix"])
    def test_b15_masks_on_free_parameters(self, target: str) -> None:
        class Free(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Module()
                self.inner.scale = nn.Parameter(torch.randn(8))
                self.inner.matrix = nn.Parameter(torch.randn(8, 6))
                self.out = nn.Linear(6, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.out(functional.gelu((x * self.inner.scale) @ self.inner.matrix))

        model = Free()
        mask = (torch.rand(model.inner.get_parameter(target).shape) < 0.5).float()
        check(model, {"inner": {target: mask}}, torch.randn(5, 8))

    def test_b16_an_attribute_with_a_gradient(self) -> None:
        class Remembers(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.c = nn.Linear(6, 8), nn.Linear(8, 4)
                self.last: Tensor | None = None

            def forward(self, x: Tensor) -> Tensor:
                y = self.a(x).relu()
                if not torch.compiler.is_exporting():
                    self.last = y
                return self.c(y)

        model = Remembers()
        model(torch.randn(5, 6))
        assert model.last is not None
        assert model.last.grad_fn is not None
        check(model, rows(model, a=(0, 1)), torch.randn(5, 6))

    @pytest.mark.filterwarnings("ignore")  # of Dynamo, about the graph break
    @pytest.mark.parametrize("kind", [torch.float32, torch.int64], ids=str)
    def test_b16_a_buffer_that_counts_calls(self, kind: torch.dtype) -> None:
        def run(m: Any, x: Tensor) -> Tensor:
            m.calls.add_(1)
            return m.c(m.a(x).relu()) * m.calls  # type: ignore[no-any-return]

        model = Net(run, a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        model.register_buffer("calls", torch.zeros((), dtype=kind))
        masks = rows(model, "kept", a=(0, 1))
        fast = sparta.optimize(model, masks, example_inputs=torch.randn(5, 6), options=FORCE)
        assert int(model.calls) == 0
        expected = MaskedDense(copy.deepcopy(model), masks)
        for _ in range(3):
            x = torch.randn(5, 6)
            assert_same(expected(x), fast(x))

    def test_b16_hooks(self) -> None:
        model = sequence(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        model[0].register_forward_hook(lambda module, args, output: output * 2 + 1)
        model[2].register_forward_pre_hook(lambda module, args: (args[0] - 1,))
        check(model, rows(model, **{"0": (0, 1)}), torch.randn(5, 6))


class TestOddOperators:
    """Operators nobody expects between two layers; what is unknown runs unchanged."""

    def test_b17_fake_quantization_by_channel(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            weight = torch.fake_quantize_per_channel_affine(m.a.weight, m.scales, m.zeros, 0, -128, 127)
            y = functional.conv2d(x, weight, m.a.bias, padding=1)
            y = torch.fake_quantize_per_channel_affine(y, m.scales, m.zeros, 1, -128, 127)
            return m.c(torch.fake_quantize_per_tensor_affine(y, 0.05, 3, 0, 255))

        model = Net(run, a=conv(3, 8), c=conv(8, 4))
        model.register_buffer("scales", torch.rand(8) / 16 + 0.02)
        model.register_buffer("zeros", torch.zeros(8, dtype=torch.int32))
        check(model, rows(model, a=(0, 1)), image())

    def test_b14_einsum_bilinear_and_outer_products(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            return [
                torch.einsum("bi,ij->bj", y, m.table),
                torch.einsum("bi,bj->bij", y, y) @ m.table,
                m.bilinear(y, x),
                torch.bmm(y[:, None, :], m.table.expand(x.shape[0], -1, -1)),
                torch.addmm(m.offset, y, m.table),
                torch.cdist(y, m.table.t().contiguous()),
            ]

        model = Net(
            run, a=nn.Linear(6, 8), bilinear=nn.Bilinear(8, 6, 4),
            table=nn.Parameter(torch.randn(8, 5)), offset=nn.Parameter(torch.randn(5)),
        )  # fmt: skip
        check(model, rows(model, a=(0, 1, 7)), torch.randn(5, 6))

    def test_b14_operators_without_rules(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y = m.a(x)
            results = [
                torch.fft.rfft(y, dim=1).abs(),
                functional.unfold(y, 3),
                functional.lp_pool2d(y, 2.0, 2),
                functional.local_response_norm(y, 3),
                functional.grid_sample(y, m.grid.expand(x.shape[0], -1, -1, -1), align_corners=False),
                torch.linalg.vector_norm(y, dim=1),
                y.median(1).values,
                torch.where(y > 0, y, y.exp()),
            ]
            return [*results, m.c(y.logcumsumexp(1))]

        model = Net(run, a=conv(3, 8), c=conv(8, 4))
        model.register_buffer("grid", torch.rand(1, 4, 4, 2) * 2 - 1)
        check(model, rows(model, a=(0, 1, 7)), image())

    def test_d17_numbers_that_come_from_sizes(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            y, batch = m.a(x), x.shape[0]
            return m.c(y * batch), m.c(y + batch) - batch, batch / (1 + m.c(y).square()), m.c(y).clamp(max=batch), batch

        model = Net(run, a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        check(model, rows(model, "kept", a=(0, 1, 3), c=(2,)), torch.randn(4, 6), batches=(7,))

    @pytest.mark.filterwarnings("ignore")  # of Dynamo, about the graph break
    @pytest.mark.slow
    def test_d17_numbers_that_come_from_data(self) -> None:
        def run(m: Any, x: Tensor) -> Any:
            largest = int(x.abs().max().item())
            return m.c(m.a(x)) * largest, largest

        model = Net(run, a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        fast = check(model, rows(model, "kept", a=(0, 1, 3), c=(2,)), torch.randn(4, 6))
        assert fast.report().capture == "dynamo"

    def test_d17_complex_results(self) -> None:
        model = Net(lambda m, x: (torch.fft.fft(m.c(m.a(x))), m.c(m.a(x)) * 1j), a=nn.Linear(6, 8), c=nn.Linear(8, 4))
        check(model, rows(model, "kept", a=(0, 1, 3), c=(2,)), torch.randn(4, 6))
