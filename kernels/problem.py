"""What a kernel is asked to compute: a linear or a convolution with a constant sparse weight, and its epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to an accumulated output element before it is stored: ``act(acc + bias + residual)``."""

    bias: bool = False
    residual: bool = False
    activation: Activation = "none"


@dataclass(frozen=True, slots=True)
class Linear:
    """``y[T, O] = act(x[T, I] @ W[O, I].T + bias[O] + residual[T, O])``; T is free at run time."""

    out_features: int
    in_features: int
    epilogue: Epilogue = Epilogue()

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape (O, I) of the weight as a matrix."""
        return self.out_features, self.in_features


@dataclass(frozen=True, slots=True)
class Conv:
    """A 2-d convolution of NCHW data; the batch is free at run time, the image size is not.

    The weight is handled as the matrix ``[O, C * KH * KW]`` over *all* input channels: the columns of other groups
    are zero, so that groups are just sparsity (`sparta.kernels.formats.conv_matrix` builds it).
    """

    out_channels: int
    in_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    image: tuple[int, int]
    epilogue: Epilogue = Epilogue()

    @property
    def matrix(self) -> tuple[int, int]:
        """Shape (O, C * KH * KW) of the weight as a matrix."""
        return self.out_channels, self.in_channels * self.kernel[0] * self.kernel[1]

    @property
    def out_image(self) -> tuple[int, int]:
        """Height and width of the result."""
        sizes = zip(self.image, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = (((n + 2 * p - d * (k - 1) - 1) // s) + 1 for n, k, s, p, d in sizes)
        return height, width


Problem = Linear | Conv
