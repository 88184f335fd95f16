"""Whole pruned models through the public API: exactness, barriers, speed and compile time.

    python benchmarks/models.py [--model bert resnet50 ...] [--kind u structured] [--sparsity 0.9] [--threads 1]
                                [--dense compiled] [--json FILE]

Models are transformers' with random weights and random BatchNorm statistics. "u" prunes every weight at random,
"structured" prunes half of the filters (convolutions) or of the heads and neurons (transformers). Compile time is given
with an empty cache and again with a full one. Exit status 1 when a model is not exact.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparta
from sparta.kernels import host_machine
from sparta.runtime.verify import worst_error
from sparta.transformation.measure import measure

EXACT = 1e-4


@dataclass(frozen=True, slots=True)
class Result:
    """What one model showed."""

    model: str
    kind: str
    sparsity: float
    error: float
    eager_ms: float
    optimized_ms: float
    compiled_ms: float | None
    cold_seconds: float
    warm_seconds: float
    barriers: tuple[str, ...]


def mlp() -> tuple[nn.Module, Callable[[], Tensor]]:
    """Three linears with ReLU."""
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return net, lambda: torch.randn(64, 784)


def _vision(name: str, **config: Any) -> tuple[nn.Module, Callable[[], Tensor]]:
    import transformers

    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config))
    return model, lambda: torch.randn(1, 3, 224, 224)


def _language(name: str, **config: Any) -> tuple[nn.Module, Callable[[], Tensor]]:
    import transformers

    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config))
    return model, lambda: torch.randint(0, 30000, (1, 128))


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[], Tensor]]]] = {
    "mlp": mlp,
    "resnet18": lambda: _vision("ResNet", layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]),
    "resnet50": lambda: _vision("ResNet"),
    "mobilenetv2": lambda: _vision("MobileNetV2"),
    "bert": lambda: _language("Bert"),
    "gpt2": lambda: _language("GPT2", use_cache=False),
    "vit": lambda: _vision("ViT"),
}


def randomize(model: nn.Module) -> None:
    """Random BatchNorm statistics and affine parameters, and no layer that is zero by initialization."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    for parameter in model.parameters():
        if not bool(parameter.any()):
            nn.init.normal_(parameter, 0, 0.02)


def unstructured(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Random masks for every matrix but embeddings and first convolutions."""
    skip = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    skip |= {id(m.weight) for m in model.modules() if isinstance(m, nn.Conv2d) and m.in_channels <= 3}
    return {
        name: torch.rand(p.shape) >= sparsity
        for name, p in model.named_parameters()
        if p.dim() > 1 and id(p) not in skip and min(p.shape[:2]) > 1
    }


def structured(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Half of the filters of every convolution that is not grouped; half of the heads and feed-forward neurons."""
    masks = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.in_channels > 3:
            keep = torch.rand(module.out_channels) >= sparsity
            masks[f"{name}.weight"] = keep.reshape(-1, 1, 1, 1).expand_as(module.weight)
        elif name.endswith(("query", "key", "value", "q_proj", "k_proj", "v_proj")) and isinstance(weight, Tensor):
            keep = (torch.arange(weight.shape[0] // 64) % 2 == 0).repeat_interleave(64)
            masks[f"{name}.weight"] = keep.reshape(-1, 1).expand_as(weight)
            masks[f"{name}.bias"] = keep
        elif name.endswith(("intermediate.dense", "fc1", "0", "mlp.c_fc")) and isinstance(weight, Tensor):
            axis = 1 if type(module).__name__ == "Conv1D" else 0
            keep = torch.rand(weight.shape[axis]) >= sparsity
            masks[f"{name}.weight"] = keep.reshape((1, -1) if axis else (-1, 1)).expand_as(weight)
            masks[f"{name}.bias"] = keep
    return masks


def optimize_timed(model: nn.Module, masks: dict[str, Tensor], x: Tensor) -> tuple[sparta.OptimizedModule, float]:
    """The optimized model and the seconds it took."""
    start = time.perf_counter()
    fast = sparta.optimize(model, masks, example_inputs=(x,))
    return fast, time.perf_counter() - start


def run(name: str, kind: str, sparsity: float, dense: str) -> Result:
    """Everything about one model."""
    torch.manual_seed(0)
    model, make = MODELS[name]()
    model.eval()
    randomize(model)
    masks = (unstructured if kind == "u" else structured)(model, sparsity)
    _, cold = optimize_timed(model, masks, make())
    fast, warm = optimize_timed(model, masks, make())
    reference = copy.deepcopy(model)
    for key, mask in masks.items():
        reference.get_parameter(key).mul_(mask)
    x = make()
    error = worst_error(_leaves(reference(x)), _leaves(fast(x)))
    runs = {"eager": lambda: reference(x), "optimized": lambda: fast(x)}
    if dense == "compiled":
        compiled = torch.compile(reference, options={"freezing": True})
        compiled(x)
        runs["compiled"] = lambda: compiled(x)
    times = {key: 1e3 * value for key, value in measure(runs, budget=2.0, rounds=(8, 40)).items()}
    barriers = tuple(sorted({op for op, _ in fast.report().barriers}))
    return Result(
        name, kind, sparsity, error, times["eager"], times["optimized"], times.get("compiled"), cold, warm, barriers
    )


def _leaves(result: Any) -> list[Any]:
    values = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def main() -> int:
    """Print one line per model; 1 if one is not exact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kind", nargs="+", choices=["u", "structured"], default=["structured", "u"])
    parser.add_argument("--sparsity", type=float, help="default: 0.9 for u, 0.5 for structured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dense", choices=["eager", "compiled"], default="eager")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ.setdefault("SPARTA_CACHE_DIR", tempfile.mkdtemp(prefix="sparta-benchmark-"))
    machine = host_machine()
    print(f"# {machine.name}, {machine.isa}, {arguments.threads} thread(s), torch {torch.__version__}")
    wrong = 0
    with torch.no_grad():
        for name in arguments.model:
            for kind in arguments.kind:
                sparsity = arguments.sparsity or (0.9 if kind == "u" else 0.5)
                result = run(name, kind, sparsity, arguments.dense)
                wrong += not result.error < EXACT
                print_result(result)
                if arguments.json:
                    with arguments.json.open("a") as file:
                        file.write(json.dumps({**asdict(result), "machine": machine.describe()}) + "\n")
    return int(wrong > 0)


def print_result(result: Result) -> None:
    """One line."""
    compiled = "" if result.compiled_ms is None else f", {result.compiled_ms / result.optimized_ms:.2f}x compiled"
    print(
        f"{result.model:12} {result.kind:10} {result.sparsity:.2f}  error {result.error:.1e}  "
        f"{result.optimized_ms:8.2f} ms  {result.eager_ms / result.optimized_ms:5.2f}x eager{compiled}  "
        f"optimize {result.cold_seconds:.1f} s cold, {result.warm_seconds:.1f} s warm  "
        f"barriers: {', '.join(result.barriers) or 'none'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
