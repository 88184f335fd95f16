"""Tiled convolutions against PyTorch's in double precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparta.kernels import Bsr, Compiled, Conv, Csr, Epilogue, Machine, conv_matrix, find, host_machine, machine_for
from sparta.kernels.conv import tile
from sparta.kernels.conv.geometry import Axis

Pair = tuple[int, int]


def _conv(
    channels: Pair,
    kernel: Pair,
    image: Pair,
    *,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Conv:
    """A convolution; `channels` are those of the result and of the input."""
    return Conv(*channels, kernel, stride, padding, dilation, groups, image)


_CONVS = {
    "3x3 padded": _conv((16, 8), (3, 3), (28, 28), padding=(1, 1)),
    "3x3 not padded": _conv((16, 8), (3, 3), (28, 28)),
    "1x1": _conv((20, 8), (1, 1), (7, 7)),
    "1x1 strided": _conv((20, 8), (1, 1), (9, 11), stride=(2, 2)),
    "3x3 strided, grouped": _conv((12, 4), (3, 3), (15, 15), stride=(2, 2), padding=(1, 1), groups=2),
    "uneven": _conv((12, 6), (3, 2), (15, 19), stride=(2, 3), padding=(2, 1), dilation=(2, 1)),
    "stem": _conv((3, 3), (7, 7), (33, 32), stride=(2, 2), padding=(3, 3)),
    "depthwise": _conv((8, 8), (3, 3), (14, 14), padding=(1, 1), groups=8),
    "padding beyond the image": _conv((5, 2), (3, 3), (2, 3), padding=(5, 5)),
    "dilated line": _conv((5, 2), (1, 5), (8, 3), stride=(3, 1), padding=(0, 4), dilation=(1, 2)),
    "one pixel": _conv((4, 3), (1, 1), (1, 1)),
    "whole image": _conv((5, 3), (6, 6), (6, 6)),
    "many channels": _conv((32, 100), (3, 3), (5, 5), padding=(1, 1)),
}
_ALL_CONVS = pytest.mark.parametrize("name", list(_CONVS))


def _weight(conv: Conv, density: float = 0.3) -> Tensor:
    shape = (conv.out_channels, conv.in_channels // conv.groups, *conv.kernel)
    return torch.randn(shape) * (torch.rand(shape) < density)


def _build(conv: Conv, weight: Tensor, stored: str = "csr", machine: Machine | None = None) -> Compiled:
    matrix = conv_matrix(weight, conv.groups)
    packed = Csr.from_dense(matrix) if stored == "csr" else Bsr.from_dense(matrix, block=(4, 2))
    return find(f"{stored}_tile_conv").build(conv, packed, machine or host_machine())


def _expected(x: Tensor, weight: Tensor, conv: Conv) -> Tensor:
    return functional.conv2d(x.double(), weight.double(), None, conv.stride, conv.padding, conv.dilation, conv.groups)


def _assert_close(y: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5 + 2e-6 * expected.abs().amax().item())


@_ALL_CONVS
@pytest.mark.parametrize("stored", ["csr", "bsr"])
def test_geometries(name: str, stored: str) -> None:
    conv = _CONVS[name]
    weight = _weight(conv)
    kernel = _build(conv, weight, stored)
    for images, threads in ((1, 1), (17, 2)):
        x = torch.randn(images, conv.in_channels, *conv.image)
        expected = _expected(x, weight, conv)
        assert expected.shape[2:] == conv.out_image
        _assert_close(kernel(x, None, None, threads), expected)


@pytest.mark.parametrize("name", ["3x3 padded", "3x3 not padded", "3x3 strided, grouped"])
def test_epilogue(name: str) -> None:
    conv = replace(_CONVS[name], epilogue=Epilogue(True, True, "gelu"))
    weight, x, bias = _weight(conv), torch.randn(2, conv.in_channels, *conv.image), torch.randn(conv.out_channels)
    expected = _expected(x, weight, conv)
    residual = torch.randn(expected.shape)
    y = _build(conv, weight)(x, bias, residual, 1)
    _assert_close(y, functional.gelu(expected + bias[:, None, None] + residual))


@pytest.mark.parametrize("features", [("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"), ("neon",), ()])
@pytest.mark.parametrize("name", ["3x3 padded", "stem", "1x1"])
def test_tile_shapes_of_every_machine(name: str, features: tuple[str, ...]) -> None:
    conv = _CONVS[name]
    weight, x = _weight(conv), torch.randn(3, conv.in_channels, *conv.image)
    _assert_close(
        _build(conv, weight, machine=machine_for(frozenset(features)))(x, None, None, 1), _expected(x, weight, conv)
    )


@_ALL_CONVS
def test_neighbors_of_the_image_do_not_leak(name: str) -> None:
    conv = _CONVS[name]
    weight = _weight(conv)
    shape = (2, conv.in_channels, *conv.image)
    count = torch.Size(shape).numel()
    padded = torch.full((count + 200,), float("nan"))
    x = padded[100 : 100 + count].view(shape)
    x.normal_()
    _assert_close(_build(conv, weight)(x, None, None, 1), _expected(x, weight, conv))


def test_batches_larger_than_the_cache_are_copied_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile, "_COPY_FLOATS", 3 * 8 * 30 * 30)
    conv = replace(_CONVS["3x3 padded"], epilogue=Epilogue(residual=True))
    weight, x = _weight(conv), torch.randn(7, conv.in_channels, *conv.image)
    expected = _expected(x, weight, conv)
    residual = torch.randn(expected.shape)
    _assert_close(_build(conv, weight)(x, None, residual, 2), expected + residual)


@pytest.mark.parametrize("name", ["3x3 padded", "1x1"])
def test_no_images_give_no_images(name: str) -> None:
    conv = _CONVS[name]
    y = _build(conv, _weight(conv))(torch.empty(0, conv.in_channels, *conv.image), None, None, 2)
    assert y.shape == (0, conv.out_channels, *conv.out_image)


def test_images_of_another_size_are_refused() -> None:
    conv = _CONVS["1x1"]
    with pytest.raises(AssertionError, match=r"\(8, 7, 6\), not \(8, 7, 7\)"):
        _build(conv, _weight(conv))(torch.empty(1, 8, 7, 6), None, None, 1)


def test_channels_last_images() -> None:
    conv = _CONVS["3x3 padded"]
    weight, x = _weight(conv), torch.randn(2, conv.in_channels, *conv.image)
    y = _build(conv, weight)(x.contiguous(memory_format=torch.channels_last), None, None, 1)
    _assert_close(y, _expected(x, weight, conv))


def test_nan_reaches_only_the_pixels_that_see_it() -> None:
    conv = _CONVS["3x3 padded"]
    weight = _weight(conv, density=1.0)
    x = torch.randn(1, conv.in_channels, *conv.image)
    x[0, 0, 10, 27] = float("nan")
    y = _build(conv, weight)(x, None, None, 1)
    assert torch.equal(y.isnan(), _expected(x, weight, conv).isnan())


def test_pruned_input_channel_is_not_read() -> None:
    conv = _CONVS["3x3 padded"]
    weight = _weight(conv, density=1.0)
    weight[:, 3] = 0
    x = torch.randn(2, conv.in_channels, *conv.image)
    expected = _expected(x, weight, conv)
    x[:, 3] = float("inf")
    _assert_close(_build(conv, weight)(x, None, None, 1), expected)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [(28, 3, 1, 1, 1), (15, 3, 2, 1, 1), (10, 5, 3, 4, 2), (2, 3, 1, 5, 1), (7, 1, 2, 0, 1), (12, 4, 4, 0, 1)],
)
def test_every_tap_of_every_pixel_is_where_the_axis_says(
    size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    axis = Axis(size, out, kernel, stride, padding, dilation)
    for pixel in range(out):
        for tap in range(kernel):
            number, start = axis.tap(tap)
            position = start + pixel
            source = position * stride + axis.phases[number] - padding
            assert source == pixel * stride + tap * dilation - padding
            assert position < axis.extent
            first, last = axis.inside(axis.phases[number])
            assert (first <= position < last) == (0 <= source < size)


def test_cost_counts_images_and_copies() -> None:
    machine, conv = host_machine(), _CONVS["3x3 padded"]
    weight = Csr.from_dense(conv_matrix(_weight(conv), 1))
    kernel = find("csr_tile_conv")
    one, four = (kernel.cost(conv, weight, images * 28 * 28, machine) for images in (1, 4))
    assert 2 * one < four < 4 * one
    unpadded = replace(conv, padding=(0, 0), image=(30, 30))
    assert kernel.cost(unpadded, weight, 28 * 28, machine) < one
