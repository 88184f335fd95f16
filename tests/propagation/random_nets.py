"""Random small networks with random masks: the fuzz that every analysis and rewrite of the graph must survive."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Masks = dict[str, dict[str, Tensor]]
Step = tuple[nn.Module, int]
"""A layer and the width (channels or features) of its result."""

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Identity, nn.LeakyReLU, nn.ReLU6)
HEADS, HEAD_DIM = 2, 4


class RandomNet(NamedTuple):
    """A network in eval mode, an input for it, and bool masks `{module: {parameter: mask}}`."""

    model: nn.Module
    example: Tensor
    masks: Masks


class Residual(nn.Module):
    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Concatenate(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Multiply(nn.Module):
    """``left(x) * right(x)``: squeeze-excite, gates."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


class Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class SwapHalves(nn.Module):
    """The halves of the last dimension exchanged, one of them through `body`."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([self.body(second), first], -1)


class Scale(nn.Module):
    def __init__(self, width: int, shift: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift


class RootMeanSquare(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TiedPair(nn.Module):
    """One weight used twice, straight and transposed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.layer(x)), self.layer.weight.t())


class Attention(nn.Module):
    """Self-attention: written out with a causal mask, or fused, or fused with one key/value head for all heads."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        inner = HEADS * HEAD_DIM
        self.kind, self.kv_heads = kind, 1 if kind == "grouped" else HEADS
        self.query, self.out = nn.Linear(width, inner), nn.Linear(inner, width)
        self.key = nn.Linear(width, self.kv_heads * HEAD_DIM)
        self.value = nn.Linear(width, self.kv_heads * HEAD_DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, heads, HEAD_DIM).transpose(1, 2)
            for layer, heads in ((self.query, HEADS), (self.key, self.kv_heads), (self.value, self.kv_heads))
        )
        if self.kind == "written":
            causal = torch.full((tokens, tokens), float("-inf")).triu(1)
            mixed = torch.softmax(q @ k.transpose(-1, -2) / HEAD_DIM**0.5 + causal, -1) @ v
        else:
            causal, grouped = self.kind == "causal", self.kind == "grouped"
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD_DIM))


class Head(nn.Module):
    """Global mean or flatten, then a linear layer."""

    def __init__(self, body: nn.Module, example: Tensor, flat: bool) -> None:
        super().__init__()
        self.body, self.flat = body, flat
        self.linear = nn.Linear(self._features(example).shape[1], 5)

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features.flatten(1) if self.flat else features.mean(tuple(range(2, features.dim())))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self._features(x))
        return logits


def _activation(rng: random.Random) -> nn.Module:
    return rng.choice(ACTIVATIONS)()


def _convolution(rng: random.Random, width: int) -> Step:
    out, size, padding = rng.choice([4, 6, 8]), rng.choice([1, 3]), rng.choice([0, 1, "same"])
    stride = 1 if padding == "same" else rng.choice([1, 1, 2])
    return nn.Conv2d(width, out, size, stride, padding, dilation=rng.choice([1, 1, 2]), bias=rng.random() < 0.6), out


def _depthwise(rng: random.Random, width: int) -> Step:
    return nn.Conv2d(width, width, 3, padding=1, groups=width, bias=rng.random() < 0.5), width


def _grouped(rng: random.Random, width: int) -> Step:
    return nn.Conv2d(width, 8, 3, padding=1, groups=2), 8


def _bottleneck(rng: random.Random, width: int) -> Step:
    inner = nn.Conv2d(width, width, 3, padding=1, bias=rng.random() < 0.5)
    return Residual(inner, nn.BatchNorm2d(width), _activation(rng), nn.Conv2d(width, width, 1)), width


def _branches(rng: random.Random, width: int) -> Step:
    each = rng.choice([2, 4])
    return Concatenate(nn.Conv2d(width, each, 1), nn.Conv2d(width, each, 3, padding=1)), 2 * each


def _pool(rng: random.Random, width: int) -> Step:
    pools = (nn.MaxPool2d(2, 1), nn.AvgPool2d(2, 1), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1))
    return rng.choice(pools), width


def _squeeze_excite(rng: random.Random, width: int) -> Step:
    gate = rng.choice([nn.Sigmoid, nn.Hardsigmoid])()
    squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), gate)
    return Multiply(nn.Identity(), squeeze), width


CNN_STEPS: tuple[Callable[[random.Random, int], Step], ...] = (
    _convolution,
    _convolution,
    _convolution,
    _depthwise,
    _grouped,
    _bottleneck,
    _branches,
    _pool,
    _squeeze_excite,
    lambda rng, width: (nn.BatchNorm2d(width), width),
    lambda rng, width: (_activation(rng), width),
    lambda rng, width: (nn.GroupNorm(2, width), width),
    lambda rng, width: (Shuffle(), width),
    lambda rng, width: (nn.PReLU(width), width),
    lambda rng, width: (Multiply(nn.Identity(), nn.Conv2d(width, width, 1)), width),
)


def _linear(rng: random.Random, width: int) -> Step:
    out = rng.choice([4, 8, 12])
    return nn.Linear(width, out, bias=rng.random() < 0.6), out


MLP_STEPS: tuple[Callable[[random.Random, int], Step], ...] = (
    _linear,
    _linear,
    lambda rng, width: (_activation(rng), width),
    lambda rng, width: (Residual(nn.Linear(width, 2 * width), _activation(rng), nn.Linear(2 * width, width)), width),
    lambda rng, width: (nn.LayerNorm(width), width),
    lambda rng, width: (nn.BatchNorm1d(5), width),
    lambda rng, width: (SwapHalves(nn.Linear(width // 2, width // 2)), width),
    lambda rng, width: (SwapHalves(nn.Identity()), width),
    lambda rng, width: (Attention(width, "written"), width),
    lambda rng, width: (Attention(width, rng.choice(["full", "causal", "grouped"])), width),
    lambda rng, width: (
        Multiply(nn.Sequential(nn.Linear(width, width), nn.SiLU()), nn.Linear(width, width, bias=False)),
        width,
    ),
    lambda rng, width: (nn.Sequential(Scale(width, 0.0), nn.Softmax(-1)), width),
    lambda rng, width: (RootMeanSquare(width, 0.0), width),
    lambda rng, width: (Scale(width, 1.0), width),
    lambda rng, width: (TiedPair(width), width),
)


def random_cnn(seed: int) -> RandomNet:
    """A random convolutional classifier of 3 to 7 layers, with random norm statistics and masks."""
    return _random_net(seed, CNN_STEPS, (3, 7), torch.Size([3, 4, 9, 9]), width=4)


def random_mlp(seed: int) -> RandomNet:
    """A random token mixer of 2 to 7 layers (linear, attention, norms, gates), with random masks."""
    return _random_net(seed, MLP_STEPS, (2, 7), torch.Size([4, 5, 8]), width=8)


def _random_net(
    seed: int,
    steps: tuple[Callable[[random.Random, int], Step], ...],
    depth: tuple[int, int],
    shape: torch.Size,
    width: int,
) -> RandomNet:
    rng = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        example = torch.randn(shape)
        for _ in range(rng.randint(*depth)):
            layer, out = rng.choice(steps)(rng, width)
            if _accepts(nn.Sequential(*layers, layer), example):
                layers.append(layer)
                width = out
        model = Head(nn.Sequential(*layers), example, flat=rng.random() < 0.5).eval()
        randomize_norms(model)
        return RandomNet(model, example, random_masks(model, rng))


def _accepts(body: nn.Module, example: Tensor) -> bool:
    """Whether the image is still large enough for the last layer of `body`."""
    with torch.no_grad():
        try:
            body.eval()(example)
        except RuntimeError:
            return False
    return True


def randomize_norms(model: nn.Module) -> None:
    """Give every norm of `model` random statistics, scale and shift: the defaults hide wrong rules."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
                module.weight.normal_()
                module.bias.normal_()


def _block_mask(shape: torch.Size, _: float) -> Tensor:
    mask = torch.ones(shape, dtype=torch.bool)
    mask[shape[0] // 2 :] = False
    return mask


def _row_mask(shape: torch.Size, ratio: float) -> Tensor:
    return (torch.rand(shape[0], *[1] * (len(shape) - 1)) > ratio).expand(shape).clone()


def _column_mask(shape: torch.Size, ratio: float) -> Tensor:
    return (torch.rand(1, shape[1], *[1] * (len(shape) - 2)) > ratio).expand(shape).clone()


def _element_mask(shape: torch.Size, ratio: float) -> Tensor:
    return torch.rand(shape) > ratio


def _empty_mask(shape: torch.Size, _: float) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


MATRIX_MASKS = (None, _row_mask, _row_mask, _element_mask, _column_mask, _block_mask, _element_mask, _empty_mask)
VECTOR_MASKS = (None, None, _element_mask, _element_mask, _element_mask, _empty_mask)


def random_masks(model: nn.Module, rng: random.Random) -> Masks:
    """Masks of a random pattern for a random choice of the parameters of `model`, biases and norms included."""
    masks: Masks = {}
    for name, parameter in model.named_parameters():
        make = rng.choice(MATRIX_MASKS if parameter.dim() > 1 else VECTOR_MASKS)
        if make is not None:
            module, _, leaf = name.rpartition(".")
            masks.setdefault(module, {})[leaf] = make(parameter.shape, rng.choice([0.3, 0.6, 0.9]))
    return masks
