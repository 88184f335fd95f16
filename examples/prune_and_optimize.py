"""Prune a convolutional net with PyTorch's own pruning, and optimize what that leaves: no masks to pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import prune

import sparta


def conv_net() -> nn.Sequential:
    """Three convolutions with batch normalization, whose statistics are not the trivial ones of a new layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 64), (64, 128)):
        norm = nn.BatchNorm2d(outputs)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).eval()


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    model = conv_net()
    for module in model:
        if isinstance(module, nn.Conv2d):
            prune.ln_structured(module, "weight", amount=0.5, n=2, dim=0)  # half of the filters
    images = torch.randn(4, 3, 32, 32)

    fast = sparta.optimize(model, example_inputs=(images,))

    with torch.no_grad():
        torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    report = fast.report()
    print(report)
    for name, (before, after) in report.removed.items():
        print(f"{name}: {before} -> {after}")
    report.to_html(Path("report.html"))


if __name__ == "__main__":
    main()
