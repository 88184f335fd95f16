"""Every kind of layer around a pruned one keeps its attributes and its result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.cases.support import Masks, Net, check, randomize, rows, sequence


def conv(inputs: int, outputs: int, kernel: int = 3, **settings: Any) -> nn.Conv2d:
    """A convolution that keeps height and width unless told otherwise."""
    return nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **settings})


def image(channels: int = 3, height: int = 8, width: int = 10) -> Tensor:
    """Two random images."""
    return torch.randn(2, channels, height, width)


class Between(nn.Module):
    """``c(layer(a(x)))`` for each of many layers between two convolutions."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.a, self.c = conv(3, 8), conv(8, 4)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> list[Tensor]:
        """One result for each layer."""
        y = self.a(x)
        return [self.c(layer(y)) for layer in self.layers]


def check_between(*layers: nn.Module) -> None:
    """The layers between two convolutions, some and then most channels of the first pruned."""
    for bias, pruned in (("masked", (0, 3, 5)), ("kept", range(1, 8))):
        model = randomize(Between(*layers))
        check(model, rows(model, bias, a=pruned), image())


@pytest.mark.slow
def test_a21_norms() -> None:
    check_between(
        nn.GroupNorm(2, 8), nn.GroupNorm(8, 8), nn.GroupNorm(1, 8), nn.InstanceNorm2d(8, affine=True),
        nn.InstanceNorm2d(8), nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.BatchNorm2d(8),
        nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, track_running_stats=False), nn.LayerNorm((8, 8, 10)),
        nn.LocalResponseNorm(3),
    )  # fmt: skip


@pytest.mark.slow
def test_a21_activations() -> None:
    activations = (
        nn.Hardswish, nn.Hardsigmoid, nn.Mish, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.LogSigmoid, nn.Softsign,
        nn.Tanhshrink, nn.Hardtanh, nn.Softshrink, nn.LeakyReLU, nn.RReLU, nn.PReLU, nn.Dropout2d, nn.ReLU6,
    )  # fmt: skip
    check_between(*(make() for make in activations), nn.Threshold(-0.1, 0.7), nn.Softmax2d())


def test_a21_prelu_with_one_or_all_slopes() -> None:
    prelu = nn.PReLU(8)
    nn.init.normal_(prelu.weight)
    check_between(nn.PReLU(), prelu)


def test_a22_resampling() -> None:
    check_between(
        nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Upsample(size=(5, 7), mode="bicubic"),
        nn.MaxPool2d(2), nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3),
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), nn.AdaptiveMaxPool2d((2, 3)), nn.Identity(),
    )  # fmt: skip


def test_a22_padding_layers() -> None:
    check_between(
        nn.ReflectionPad2d(2),
        nn.ReplicationPad2d((1, 0, 2, 1)),
        nn.ZeroPad2d(1),
        nn.ConstantPad2d(1, 0.7),
        nn.CircularPad2d(1),
    )


@pytest.mark.parametrize("bias", ["masked", "kept"])
@pytest.mark.slow
def test_a22_attributes_of_convolutions(bias: str) -> None:
    consumers = (
        conv(8, 4, dilation=2), conv(8, 4, padding="same", dilation=2), conv(8, 4, padding="valid"),
        conv(8, 4, padding_mode="reflect"), conv(8, 4, padding_mode="replicate"), conv(8, 4, padding_mode="circular"),
        conv(8, 4, stride=(2, 1), padding=(0, 2)), conv(8, 4, groups=4), nn.Conv2d(8, 4, (1, 5), bias=False),
    )  # fmt: skip
    model = Net(
        lambda m, x: [consumer(m.a(x).relu() + 0.5) for consumer in m.consumers],
        a=conv(3, 8),
        consumers=nn.ModuleList(consumers),
    )
    check(model, rows(model, bias, a=(0, 3, 5), consumers__0=(1,), consumers__3=(2, 3), consumers__7=(0,)), image())


@pytest.mark.parametrize("bias", ["masked", "kept"])
def test_a22_transposed_convolutions(bias: str) -> None:
    consumers = (
        nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
        nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False),
        nn.ConvTranspose2d(8, 4, 3, groups=2, dilation=2),
        nn.ConvTranspose2d(8, 8, 3, groups=8, stride=(1, 2), output_padding=(0, 1)),
    )
    model = Net(
        lambda m, x: [consumer(m.a(x).sigmoid()) for consumer in m.consumers],
        a=conv(3, 8),
        consumers=nn.ModuleList(consumers),
    )
    masks = rows(model, bias, a=(0, 3, 5))
    outputs = torch.ones(8, 4, 3, 3)
    outputs[:, 1] = 0
    masks["consumers.0"] = {"weight": outputs, "bias": torch.tensor([1.0, 0, 1, 1]) if bias == "masked" else None}
    check(model, masks, image())


def test_a22_a_transposed_convolution_feeds_a_convolution() -> None:
    model = sequence(conv(3, 8), nn.ConvTranspose2d(8, 6, 2, stride=2), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 4))
    mask = torch.ones(8, 6, 2, 2)
    mask[:, [0, 4]] = 0
    check(model, rows(model, **{"0": (1,)}) | {"1": {"weight": mask, "bias": mask[0, :, 0, 0]}}, image())


@pytest.mark.parametrize(
    ("make", "norm", "shape"),
    [
        (nn.Conv1d, nn.BatchNorm1d, (2, 3, 20)),
        (nn.Conv3d, nn.BatchNorm3d, (2, 3, 4, 5, 6)),
    ],
    ids=["1d", "3d"],
)
def test_a21_other_dimensions(make: Any, norm: Any, shape: tuple[int, ...]) -> None:
    model = sequence(make(3, 8, 3, padding=1), norm(8), nn.SiLU(), make(8, 6, 3, stride=2), nn.ReLU(), make(6, 4, 1))
    check(model, rows(model, **{"0": (0, 3), "3": (5,)}), torch.randn(shape))
    check(model, rows(model, "kept", **{"0": range(8)}), torch.randn(shape))


def test_a21_transposed_one_dimension() -> None:
    model = sequence(
        nn.Conv1d(3, 8, 3), nn.Sigmoid(), nn.ConvTranspose1d(8, 4, 4, stride=2, output_padding=1), nn.Conv1d(4, 2, 3)
    )
    check(model, rows(model, **{"0": (0, 3)}), torch.randn(2, 3, 20))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8], ids=str)
def test_a22_masks_of_other_types(dtype: torch.dtype) -> None:
    model = sequence(conv(3, 8), nn.ReLU(), conv(8, 4))
    masks: Masks = {
        name: {target: None if mask is None else mask.to(dtype) for target, mask in targets.items()}
        for name, targets in rows(model, **{"0": (0, 3)}).items()
    }
    check(model, masks, image())


def test_a22_masks_on_input_channels_only() -> None:
    model = sequence(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4), nn.Flatten(), nn.Linear(320, 5))
    columns: Masks = {"3": {"weight": torch.ones(4, 8, 3, 3)}, "5": {"weight": torch.ones(5, 320)}, "0": {}}
    columns["3"]["weight"][:, [1, 6]] = 0  # type: ignore[index]
    columns["5"]["weight"][:, :80] = 0  # type: ignore[index]
    columns["0"] = {"weight": torch.ones(8, 3, 3, 3).index_fill(1, torch.tensor([2]), 0), "bias": None}
    fast = check(model, columns, image())
    assert fast.report().removed["0.weight"] == ((8, 3, 3, 3), (6, 3, 3, 3))


def test_a22_interpolation_to_a_computed_size() -> None:
    def run(m: Any, x: Tensor) -> Any:
        y = m.a(x).sigmoid()
        small = functional.avg_pool2d(y, 2)
        return m.c(functional.interpolate(small, size=y.shape[2:], mode="nearest") + y)

    model = Net(run, a=conv(3, 8), c=conv(8, 4))
    check(model, rows(model, a=(0, 3)), image())


def test_a22_embeddings_and_lookups() -> None:
    def run(m: Any, x: Tensor) -> Any:
        return m.c(m.table(x).mean(1) + m.bag(x))

    model = Net(run, table=nn.Embedding(12, 8, padding_idx=0), bag=nn.EmbeddingBag(12, 8), c=nn.Linear(8, 4))
    columns = torch.ones(12, 8)
    columns[:, [0, 3]] = 0
    lines = torch.ones(12, 8)
    lines[[4, 5]] = 0
    check(model, {"table": {"weight": columns}, "bag": {"weight": columns * lines}}, torch.randint(0, 12, (2, 5)))
