"""Programs saved by `torch.export.save`: loading, optimizing and comparing them, for the command line."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import sparta
from sparta.reporting.document import Document
from sparta.reporting.layout import latency_text
from sparta.runtime.densify import dense_twin
from sparta.runtime.inputs import Leaf
from sparta.runtime.reference import masked_model
from sparta.runtime.verify import worst_error
from sparta.tesa.errors import FormatError
from sparta.transformation.measure import measure

TOLERANCE = 1e-4
"""Largest difference, relative to the largest element of a result, that counts as rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A loaded program, the module it runs as, and one call of it."""

    program: ExportedProgram
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def load_program(path: Path) -> Saved:
    """The program of a ``.pt2`` file. Only load files you trust: PyTorch's format can hold more than data.

    Raises
    ------
    FormatError
        If the file is not one, or was saved without example inputs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch 2.11 warns about the way it reads its own files
            program = torch.export.load(path)
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError, zipfile.BadZipFile) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        message = f"cannot read {path} as an exported program: {reason}. Write it with torch.export.save"
        raise FormatError(message) from error
    if program.example_inputs is None:
        message = f"{path} was saved without example inputs; export the model again with torch.export.export"
        raise FormatError(message)
    args, kwargs = program.example_inputs
    return Saved(program, program.module(), args, kwargs)


def optimize_file(path: Path, masks: Path | None, output: Path, *, threads: int | None = None) -> sparta.Report:
    """The report on the program of `path`, masked, optimized for its example inputs, and saved to `output`."""
    if not output.parent.is_dir():  # said now, not after the work
        message = f"cannot write {output}: there is no directory {output.parent}"
        raise FileNotFoundError(message)
    saved = load_program(path)
    fast = sparta.optimize(saved.module, masks, saved.args, saved.kwargs, threads=threads)
    fast.save(output)
    return fast.report()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A saved optimized model against the masked dense program, measured in turns.

    Parameters
    ----------
    dense_ms, optimized_ms
        Median latencies of one call.
    error
        Largest difference of the results, relative to the largest element.
    """

    dense_ms: float
    optimized_ms: float
    error: float

    @property
    def exact(self) -> bool:
        """Whether the results agree within float rounding."""
        return self.error <= TOLERANCE


def bench_file(optimized: Path, dense: Path, masks: Path | None) -> Comparison:
    """How the model saved in `optimized` compares with the program in `dense` under the same masks."""
    fast, saved = sparta.load(optimized), load_program(dense)
    reference = masked_model(saved.module, masks)
    with torch.no_grad():
        expected, got = reference(*saved.args, **saved.kwargs), fast(*saved.args, **saved.kwargs)
        runs = {
            "dense": lambda: reference(*saved.args, **saved.kwargs),
            "optimized": lambda: fast(*saved.args, **saved.kwargs),
        }
        seconds = measure(runs, budget=2.0, rounds=(20, 1000))
    return Comparison(
        1e3 * seconds["dense"],
        1e3 * seconds["optimized"],
        worst_error(pytree.tree_leaves(expected), pytree.tree_leaves(got)),
    )


def bench_saved(optimized: Path, *, batch: int = 1) -> Comparison:
    """How the model saved in `optimized` compares with itself run densely, on random inputs of its first shape.

    Parameters
    ----------
    batch
        Size of every dimension that the model takes in any size.

    Raises
    ------
    FormatError
        If the file is not a sparta model.
    """
    fast = sparta.load(optimized)
    program = fast.programs[0]
    assert isinstance(program.module, fx.GraphModule)
    twin = dense_twin(program.module)
    leaves = [_random_input(leaf, batch) for leaf in program.leaves or ()]
    args, kwargs = pytree.tree_unflatten(leaves, program.in_spec)
    with torch.no_grad():
        error = worst_error(twin(*leaves), pytree.tree_leaves(fast(*args, **kwargs)))
        runs = {"dense": lambda: twin(*leaves), "optimized": lambda: fast(*args, **kwargs)}
        seconds = measure(runs, budget=2.0, rounds=(20, 1000))
    return Comparison(1e3 * seconds["dense"], 1e3 * seconds["optimized"], error)


def _random_input(leaf: Leaf, batch: int) -> Any:
    """An input a saved program accepts; integers are 0, which is an index into anything."""
    if leaf.dtype is None:
        return leaf.value
    shape = [batch if isinstance(size, str) else size for size in leaf.shape]
    return torch.randn(shape).to(leaf.dtype) if leaf.dtype.is_floating_point else torch.zeros(shape, dtype=leaf.dtype)


def document(comparison: Comparison, path: Path) -> Document:
    """The comparison in words."""
    latency = latency_text(comparison.dense_ms, comparison.optimized_ms)
    exactness = f"relative error {comparison.error:.1e} against dense"
    notes = () if comparison.exact else ("The results differ: is this the same program with the same masks?",)
    return Document(str(path), (("latency", latency), ("exactness", exactness)), notes=notes)
