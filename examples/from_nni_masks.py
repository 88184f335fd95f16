"""Optimize a transformer layer with a mask file as NNI's pruners write it: {module: {"weight": mask, "bias": mask}}."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import sparta


def feed_forward_masks(model: nn.TransformerEncoderLayer, sparsity: float) -> dict[str, dict[str, Tensor | None]]:
    """Masks that drop the weakest neurons of the feed-forward part; ``None`` masks nothing."""
    strength = model.linear1.weight.detach().norm(dim=1)
    keep = strength > strength.quantile(sparsity)
    return {
        "linear1": {"weight": keep.unsqueeze(1).expand_as(model.linear1.weight).float(), "bias": keep.float()},
        "linear2": {"weight": (torch.rand_like(model.linear2.weight) < 0.2).float(), "bias": None},
    }


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, activation="gelu").eval()
    x = torch.randn(1, 64, 256)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "masks.pth"
        torch.save(feed_forward_masks(model, 0.5), path)
        fast = sparta.optimize(model, path, example_inputs=(x,))
    print(fast.report())
    assert fast(x).shape == (1, 64, 256)


if __name__ == "__main__":
    main()
