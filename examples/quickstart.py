"""Optimize a pruned model, check it, read the report, save it and load it again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import sparta


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).eval()
    masks = {name: torch.rand_like(weight) < 0.1 for name, weight in model.named_parameters() if weight.dim() == 2}
    x = torch.randn(64, 512)

    fast = sparta.optimize(model, masks, example_inputs=(x,))
    print(fast.report())

    with torch.no_grad():  # the meaning of the masks: a pruned weight is zero
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sparta"
        fast.save(path)
        torch.testing.assert_close(sparta.load(path)(x), fast(x))
        print(f"saved, loaded, same results: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
