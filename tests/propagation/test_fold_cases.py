"""Structures that broke earlier tools, each folded and compared with the masked model for batches 1, 2 and 17."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.propagation.folds import dead_rows, fold_captured
from tests.propagation.random_nets import Concatenate, Residual, Shuffle, randomize_norms

IMAGE, TOKENS = (2, 3, 8, 8), (2, 6, 8)


class Lambda(nn.Module):
    """Layers by name, and a function of them and the input."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers.values())


class Case(NamedTuple):
    """A model, the rows that are pruned, and the input's shape."""

    model: nn.Module
    rows: dict[str, tuple[int, ...]]
    shape: tuple[int, ...] = IMAGE


def conv(width: int, out: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(width, out, size, padding=size // 2, **options)


def shared_stage() -> Case:
    body = [conv(8, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 8), nn.BatchNorm2d(8)]
    stage = nn.Sequential(conv(3, 8), Residual(*body), nn.ReLU(), conv(8, 4))
    return Case(stage, {"0": (1, 2), "1.body.0": (0, 3, 4), "1.body.3": (1, 2, 5)})


def squeeze_excite() -> Case:
    def forward(x: Tensor, a: nn.Module, f1: nn.Module, f2: nn.Module, c: nn.Module) -> Tensor:
        y = F.relu(a(x))
        return c(y * torch.sigmoid(f2(F.relu(f1(y.mean((2, 3), keepdim=True))))))

    model = Lambda(forward, a=conv(3, 8), f1=conv(8, 4, 1), f2=conv(4, 8, 1), c=conv(8, 4))
    return Case(model, {"layers.a": (0, 1), "layers.f1": (2,), "layers.f2": (1, 5, 6)})


def inverted_residuals() -> Case:
    def block(width: int) -> nn.Module:
        wide = 4 * width
        depthwise = conv(wide, wide, groups=wide)
        norms = [nn.BatchNorm2d(wide), nn.BatchNorm2d(wide), nn.BatchNorm2d(width)]
        return Residual(
            conv(width, wide, 1), norms[0], nn.ReLU6(), depthwise, norms[1], nn.ReLU6(), conv(wide, width, 1), norms[2]
        )

    rows = {"1.body.0": (0, 5, 9), "1.body.3": (0, 1, 20), "1.body.6": (3,), "2.body.0": (7,), "2.body.6": (0, 1, 2)}
    return Case(nn.Sequential(conv(3, 8), block(8), block(8), conv(8, 4)), rows)


def ragged_heads() -> Case:
    def forward(x: Tensor, q: nn.Module, k: nn.Module, v: nn.Module, out: nn.Module) -> Tensor:
        heads = (layer(x).view(x.shape[0], 6, 4, -1).transpose(1, 2) for layer in (q, k, v))
        return out(F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape[0], 6, 16))

    layers = {name: nn.Linear(8, 16) for name in "qkv"}
    model = Lambda(forward, **layers, out=nn.Linear(16, 8))
    return Case(model, {"layers.q": (0, 1, 7), "layers.k": (4, 5, 6, 7), "layers.v": (3, 8, 9, 10, 11)}, TOKENS)


def two_layer_encoder() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = Lambda(lambda x, enc, out: out(enc(x)[:, 0]), encoder=encoder, out=nn.Linear(8, 3))
    rows = {"layers.encoder.layers.0.linear1": tuple(range(8)), "layers.encoder.layers.1.linear1": (3, 4)}
    return Case(model, rows, TOKENS)


def sequence(*layers: nn.Module, shape: tuple[int, ...] = IMAGE, **rows: tuple[int, ...]) -> Case:
    return Case(nn.Sequential(*layers), {name.removeprefix("m"): dead for name, dead in rows.items()}, shape)


def through(forward: Callable[..., Tensor], layers: dict[str, nn.Module], **rows: tuple[int, ...]) -> Case:
    return Case(Lambda(forward, **layers), {f"layers.{name}": dead for name, dead in rows.items()})


def three(**options: int) -> dict[str, nn.Module]:
    return {"a": conv(3, 8), "b": conv(3, 8), "c": conv(8, 4, **options)}


def scaled() -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gamma, self.shift = nn.Parameter(torch.randn(1, 8, 1, 1)), nn.Parameter(torch.randn(8, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gamma + self.shift

    return Scaled()


ALL = tuple(range(8))
CASES: dict[str, Callable[[], Case]] = {
    "shift of batch norm": lambda: sequence(
        conv(3, 8, bias=False), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 4), m0=(0, 3)
    ),
    "residual stage with unequal masks": shared_stage,
    "addition of different rows": lambda: through(lambda x, a, b, c: c(a(x) + b(x)), three(), a=(0, 1), b=(1, 2)),
    "product across branches": lambda: through(lambda x, a, b, c: c(a(x) * b(x)), three(), a=(0, 1), b=(1, 2)),
    "squeeze and excite": squeeze_excite,
    "concatenation": lambda: sequence(
        Concatenate(conv(3, 8), conv(3, 8)), nn.ReLU(), conv(16, 4), **{"0.branches.0": (0, 5)}
    ),
    "concatenation with itself": lambda: through(
        lambda x, a, c: c(torch.cat([F.relu(a(x))] * 2, 1)), {"a": conv(3, 8), "c": conv(16, 4)}, a=(1, 2)
    ),
    "chunks": lambda: through(
        lambda x, a, b, c: b(a(x).chunk(2, 1)[0]) + c(a(x).chunk(2, 1)[1]),
        {"a": conv(3, 8), "b": conv(4, 4), "c": conv(4, 4)},
        a=(0, 1, 2),
    ),
    "split by sizes": lambda: through(
        lambda x, a, b, c: b(a(x).split([3, 5], 1)[0]) + c(a(x).split([3, 5], 1)[1]),
        {"a": conv(3, 8), "b": conv(3, 4), "c": conv(5, 4)},
        a=(0, 1, 2, 7),
    ),
    "constant sizes in view": lambda: through(
        lambda x, a, c: c(F.relu(a(x)).view(-1, 512)), {"a": conv(3, 8), "c": nn.Linear(512, 5)}, a=(0, 4)
    ),
    "unbalanced groups": lambda: sequence(conv(3, 8), conv(8, 8, groups=2), conv(8, 4), m0=(0, 1, 2), m1=(4, 5, 6, 7)),
    "inverted residuals": inverted_residuals,
    "an empty layer": lambda: sequence(conv(3, 8), nn.ReLU(), conv(8, 4), m0=ALL),
    "rows of the output": lambda: sequence(conv(3, 8), nn.ReLU(), conv(8, 8), nn.AdaptiveAvgPool2d(1), m2=(0, 2, 7)),
    "ragged heads": ragged_heads,
    "a free parameter": lambda: sequence(conv(3, 8), scaled(), conv(8, 4), m0=(0, 1, 6)),
    "channel shuffle": lambda: sequence(conv(3, 8), Shuffle(), conv(8, 4), m0=(0, 5)),
    "one channel is not depthwise": lambda: sequence(conv(1, 8), conv(8, 1), conv(1, 4), shape=(2, 1, 8, 8), m0=(0, 5)),
    "a recurrent layer": lambda: through(
        lambda x, a, rnn, c: c(rnn(a(x))[0]),
        {"a": nn.Linear(8, 8), "rnn": nn.GRU(8, 8, batch_first=True), "c": nn.Linear(8, 3)},
        a=(0, 3),
    )._replace(shape=TOKENS),
    "sigmoid of zero": lambda: sequence(conv(3, 8), nn.Sigmoid(), conv(8, 4), m0=(0, 1, 2)),
    "layer norm": lambda: sequence(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3), shape=TOKENS, m0=(0, 1, 2)),
    "softmax": lambda: sequence(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 3), shape=TOKENS, m0=(0, 1, 2)),
    "group norm": lambda: sequence(conv(3, 8), nn.GroupNorm(2, 8), conv(8, 4), m0=(0, 1, 2, 3)),
    "instance norm": lambda: sequence(conv(3, 8), nn.InstanceNorm2d(8, affine=True), conv(8, 4), m0=(0, 1)),
    "transposed convolution": lambda: sequence(
        conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1), m0=(0, 1)
    ),
    "reflection and pixel shuffle": lambda: sequence(
        conv(3, 8), nn.ReflectionPad2d(1), nn.PixelShuffle(2), conv(2, 4), m0=(0, 1, 2, 3)
    ),
    "upsampling": lambda: sequence(conv(3, 8), nn.Upsample(scale_factor=2), nn.Sigmoid(), conv(8, 4), m0=(0, 7)),
    "one-dimensional": lambda: sequence(
        nn.Conv1d(3, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3), shape=(2, 3, 12), m0=(0, 1)
    ),
    "one embedding column": lambda: sequence(nn.Linear(8, 8), nn.Hardswish(), nn.Linear(8, 1), shape=(4, 8), m0=(2,)),
    "an encoder read at its first token": two_layer_encoder,
}


@pytest.mark.parametrize("name", CASES)
def test_structures_that_broke_earlier_tools(name: str) -> None:
    model, rows, shape = CASES[name]()
    randomize_norms(model)
    masks = {
        layer: dead_rows(model.get_submodule(layer), dead, bias=len(dead) % 2 == 0) for layer, dead in rows.items()
    }
    fold_captured(model, {layer: mask for layer, mask in masks.items() if rows[layer]}, torch.randn(shape))
