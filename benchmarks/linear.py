"""Single pruned linears through the public API, against dense eager, dense prepacked and torch CSR.

    python benchmarks/linear.py [--shape 768x768 ...] [--tokens 1 8 128] [--pattern u 32x1] [--sparsity 0.8 0.9 0.95]
                                [--threads 1] [--json FILE]

Ratios above 1: sparta is faster. Exit status 1 when a floor is missed on a machine that has AVX-512.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import sparta
from sparta.kernels import host_machine
from sparta.runtime.verify import relative_error
from sparta.transformation.measure import measure

CONTENDERS = ("eager", "prepacked", "csr")

FLOORS = {
    # (pattern, sparsity, tokens, shape or None for all, contender): floor
    ("32x1", 0.9, 128, None, "eager"): 8.0,
    ("u", 0.9, 128, None, "eager"): 4.0,
    ("u", 0.9, 128, None, "csr"): 1.3,
    ("u", 0.9, 8, "768x768", "eager"): 3.0,
    ("u", 0.9, 1, "768x768", "eager"): 3.0,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case with its medians in microseconds."""

    shape: str
    tokens: int
    pattern: str
    sparsity: float
    temperature: str
    kernel: str
    error: float
    microseconds: dict[str, float]

    def ratio(self, contender: str) -> float:
        """Latency of a contender divided by sparta's."""
        return self.microseconds[contender] / self.microseconds["sparta"]

    def floor(self, contender: str) -> float:
        """What the ratio must reach; 0 where nothing is promised."""
        found = [
            floor
            for (pattern, sparsity, tokens, shape, name), floor in FLOORS.items()
            if (pattern, sparsity, tokens, name) == (self.pattern, self.sparsity, self.tokens, contender)
            and shape in (None, self.shape)
        ]
        return max(found, default=0.0)


def random_mask(out_features: int, in_features: int, pattern: str, sparsity: float) -> Tensor:
    """A random mask: "u" unstructured, else blocks such as "32x1" (out x in)."""
    height, width = (1, 1) if pattern == "u" else map(int, pattern.split("x"))
    blocks = torch.rand(out_features // height, in_features // width) >= sparsity
    return blocks.repeat_interleave(height, 0).repeat_interleave(width, 1)


def prepacked(layer: nn.Linear, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The dense layer as `torch.compile` with freezing runs it: weights packed once for this shape."""
    if torch.backends.mkl.is_available():
        packed = torch.ops.mkl._mkl_reorder_linear_weight(layer.weight.detach(), x.shape[0])
        return lambda x: torch.ops.mkl._mkl_linear(x, packed, layer.weight, layer.bias, x.shape[0])
    compiled = torch.compile(layer, options={"freezing": True})
    return lambda x: compiled(x)


def torch_csr(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """torch's CSR product in its fast orientation, sparse on the left."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = layer.weight.detach().to_sparse_csr()
    bias = layer.bias
    return lambda x: (weight @ x.t()).t() + bias


def contenders(layer: nn.Linear, mask: Tensor, x: Tensor) -> tuple[dict[str, Callable[[Tensor], Tensor]], str]:
    """Everything that computes the masked layer, and the kernel sparta chose."""
    fast = sparta.optimize(nn.Sequential(layer), {"0.weight": mask}, example_inputs=(x,))
    masked = nn.Linear(layer.in_features, layer.out_features)
    masked.load_state_dict({"weight": layer.weight * mask, "bias": layer.bias})
    layers = fast.report().layers
    runs = {"eager": masked, "prepacked": prepacked(masked, x), "csr": torch_csr(masked), "sparta": fast}
    return runs, layers[0].kernel if layers else "none"


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Every case, hot and cold."""
    for shape, tokens, pattern, sparsity in itertools.product(
        arguments.shape, arguments.tokens, arguments.pattern, arguments.sparsity
    ):
        out_features, in_features = map(int, shape.split("x"))
        torch.manual_seed(0)
        x = torch.randn(tokens, in_features)
        copies = max(2, min(12, int(4e7 / (4 * out_features * in_features))))
        sets = []
        for _ in range(copies):
            layer = nn.Linear(in_features, out_features).eval()
            sets.append(contenders(layer, random_mask(out_features, in_features, pattern, sparsity), x))
        error = relative_error(sets[0][0]["eager"](x), sets[0][0]["sparta"](x))
        for temperature, count in (("hot", 1), ("cold", copies)):
            seconds = timed([runs for runs, _ in sets[:count]], x)
            micro = {name: 1e6 * value / count for name, value in seconds.items()}
            yield Row(shape, tokens, pattern, sparsity, temperature, sets[0][1], error, micro)


def timed(sets: list[dict[str, Callable[[Tensor], Tensor]]], x: Tensor) -> dict[str, float]:
    """Median seconds of each contender for one pass over the given layers."""

    def walk(name: str) -> Callable[[], None]:
        def run() -> None:
            for runs in sets:
                runs[name](x)

        return run

    return measure({name: walk(name) for name in sets[0]}, budget=0.15)


def main() -> int:
    """Print the table; 1 if a floor is missed where it is meant to hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["768x768", "3072x768", "768x3072"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 8, 128])
    parser.add_argument("--pattern", nargs="+", default=["32x1", "u"])
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.8, 0.9, 0.95])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    machine = host_machine()
    print(f"# {machine.name}, {machine.isa}, {arguments.threads} thread(s), torch {torch.__version__}")
    print(
        f"{'shape':9} {'T':>4} {'pattern':7} {'sparsity':>8} {'':4} {'us':>8}  "
        + "".join(f"x {c:11}" for c in CONTENDERS)
    )
    missed = 0
    with torch.inference_mode():
        for row in rows(arguments):
            verdicts = [(row.ratio(name), row.floor(name)) for name in CONTENDERS]
            missed += any(ratio < floor for ratio, floor in verdicts) and row.temperature == "hot"
            print_row(row, verdicts)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps({**asdict(row), "machine": machine.describe()}) + "\n")
    if machine.isa != "avx512":
        print(f"# the floors were set on AVX-512 machines; this one has {machine.isa}: {missed} rows below them here")
        return 0
    print(f"# {missed} rows below their floors")
    return int(missed > 0)


def print_row(row: Row, verdicts: list[tuple[float, float]]) -> None:
    """One line: ratios, with the floor where there is one."""
    cells = [f"{ratio:5.2f}" + (f" ({floor:.1f})".ljust(8) if floor else " " * 8) for ratio, floor in verdicts]
    micro = row.microseconds["sparta"]
    print(
        f"{row.shape:9} {row.tokens:4} {row.pattern:7} {row.sparsity:8.2f} {row.temperature:4} {micro:8.1f}  "
        f"{''.join(cells)} {row.kernel} err {row.error:.0e}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
