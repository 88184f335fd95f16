"""What the demo trains and prunes: a small convolutional net and a small transformer that read handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparta.tesa.errors import SpartaError

Masks = Mapping[str, Tensor]
"""Parameter name -> bool mask, True = keep."""

_BATCH = 64


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """The 8x8 digits that scikit-learn bundles, split for training and testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits, normalized, in a fixed random order; four fifths are for training.

    Raises
    ------
    SpartaError
        If scikit-learn is not installed.
    """
    try:
        datasets = import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        message = 'the demo reads digits from scikit-learn, which is not installed; pip install "sparta[demo]"'
        raise SpartaError(message) from error
    raw = datasets.load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1)[order] / 8 - 1
    labels = torch.tensor(raw.target, dtype=torch.int64)[order]
    cut = len(labels) * 4 // 5
    return Digits(images[:cut], labels[:cut], images[cut:], labels[cut:])


class ConvNet(nn.Module):
    """Four convolutions with batch normalization and ReLU, at 8x8 and then 4x4 pixels, and a linear classifier."""

    def __init__(self, channels: int = 128) -> None:
        super().__init__()
        sizes = (1, channels // 2, channels, channels, channels)
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in zip(sizes, sizes[1:], strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for o in sizes[1:])
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of ``[N, 1, 8, 8]`` images."""
        x = images
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = F.relu(norm(conv(x)))
            if depth == 1:
                x = F.max_pool2d(x, 2)
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


class Block(nn.Module):
    """A transformer block: attention, then a feed-forward net, each on normalized input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` of shape ``[N, T, width]`` after attention and feed-forward."""
        y = self.norm1(x)
        query, key, value = (
            linear(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class PatchTransformer(nn.Module):
    """A transformer over the sixteen 2x2 patches of an 8x8 image."""

    def __init__(self, width: int = 256, heads: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of a batch of ``[N, 1, 8, 8]`` images."""
        x = self.embed(F.pixel_unshuffle(images, 2).flatten(2).transpose(1, 2)) + self.position
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores


def train(model: nn.Module, digits: Digits, *, epochs: int, rate: float, masks: Masks | None = None) -> nn.Module:
    """`model` itself, trained in place and in eval mode; masked weights stay zero all along."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    batches = math.ceil(len(digits.labels) / _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * batches)
    model.train()
    apply_masks(model, masks or {})
    for _ in range(epochs):
        for images, labels in _batches(digits):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            schedule.step()
            apply_masks(model, masks or {})
    return model.eval()


def _batches(digits: Digits) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(digits.labels))
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        yield digits.images[chosen], digits.labels[chosen]


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Masks) -> None:
    """Sets the masked elements of `model`'s parameters to zero."""
    for name, mask in masks.items():
        model.get_parameter(name).mul_(mask)


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    """The fraction of the test digits that `model` reads right."""
    right = model(digits.test_images).argmax(1) == digits.test_labels
    return float(right.float().mean())


def unstructured_masks(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Masks that drop the smallest weights of every hidden layer, the same `sparsity` in each."""
    masks: dict[str, Tensor] = {}
    for name, module in _hidden_layers(model):
        size = module.weight.detach().abs()
        masks[f"{name}.weight"] = size > size.flatten().kthvalue(round(sparsity * size.numel())).values
    return masks


def _hidden_layers(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d | nn.Linear]]:
    """The layers worth pruning: not the first, which sees the pixels, and not the classifier."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and min(module.weight.shape[:2]) > 10:
            yield name, module


def filter_masks(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Masks that drop the weakest filters of every convolution, bias included."""
    masks: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            masks |= _row_masks(name, module.weight, _strongest(module.weight.flatten(1), 1, sparsity))
    return masks


def head_masks(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Masks that drop the weakest attention heads and feed-forward neurons of every block."""
    masks: dict[str, Tensor] = {}
    for name, block in model.named_modules():
        if isinstance(block, Block):
            heads = _strongest(block.value.weight, block.value.out_features // block.heads, sparsity)
            for linear in ("query", "key", "value"):
                masks |= _row_masks(f"{name}.{linear}", block.value.weight, heads)
            masks |= _row_masks(f"{name}.up", block.up.weight, _strongest(block.up.weight, 1, sparsity))
    return masks


def _strongest(rows: Tensor, group: int, sparsity: float) -> Tensor:
    """Bool per row: its group of `group` neighbors is not among the `sparsity` weakest by norm."""
    strength = rows.detach().reshape(-1, group * rows.shape[1]).norm(dim=1)
    keep = torch.ones(len(strength), dtype=torch.bool)
    keep[strength.argsort()[: round(sparsity * len(strength))]] = False
    return keep.repeat_interleave(group)


def _row_masks(layer: str, weight: Tensor, keep: Tensor) -> dict[str, Tensor]:
    rows = keep.reshape(-1, *[1] * (weight.dim() - 1)).expand_as(weight).clone()
    return {f"{layer}.weight": rows, f"{layer}.bias": keep}
