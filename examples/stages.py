"""Run the six stages one by one, and look at what each of them knows."""

from __future__ import annotations

import torch
from torch import nn

import sparta
from sparta.tesa import TeSA


def main() -> None:
    """Run the example."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    dead_rows = torch.arange(128) % 4 == 0
    masks = {"0.weight": ~dead_rows.unsqueeze(1).expand(128, 64), "2.weight": torch.rand(64, 128) < 0.1}
    x = torch.randn(16, 64)

    captured = sparta.capture(model, (x,))
    print(f"captured {len(captured.graph.nodes)} nodes; symbolic dimensions of the input: {captured.dynamic}")

    propagated = sparta.propagate(sparta.annotate(captured, masks))
    for node, tesa in propagated.tesa.items():
        if isinstance(tesa, TeSA) and node.op == "call_function":
            print(f"  {node.name}: {float(tesa.known.float().mean()):.0%} of its elements are known constants")

    folded = sparta.fold(propagated)
    for name, (before, after) in folded.removed.items():
        print(f"  {name}: {before} -> {after}")

    planned = sparta.transform(folded)
    specialized = sparta.specialize(planned)
    (result,) = specialized.module(x)

    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    print("the specialized graph computes the masked model")


if __name__ == "__main__":
    main()
