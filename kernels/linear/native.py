"""What generated linear kernels share: parameters, the split among threads, stores, and the call from Python.

The weight is cut into *parts*, runs of consecutive groups of outputs. There is one job per thread; it does its share of
the parts for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparta.kernels.codegen.epilogue import finish
from sparta.kernels.codegen.ir import I32, I64, PTR, Function, Module, Type, Value, Variable
from sparta.kernels.problem import Epilogue, Linear

CALL = 6e-6
"""Seconds that a call from Python takes beyond the work."""


def kernel_function(module: Module, name: str, packed: Sequence[str], sizes: Sequence[str] = ()) -> Function:
    """A new function with the parameters of a linear kernel, `packed` and `sizes` naming those of its weight."""
    parameters: dict[str, Type] = dict.fromkeys(("x", "y", "bias", "residual"), PTR)
    parameters |= {"tokens": I64, "jobs": I64, "parts": I64, "cuts": PTR}
    parameters |= dict.fromkeys(packed, PTR) | dict.fromkeys(sizes, I64)
    return module.function(name, parameters | {"job": I64, "scratch": PTR})


@contextmanager
def loop_over_parts(f: Function) -> Iterator[tuple[Value, Value]]:
    """Run the body for the first and last group of each part that the job has to do."""
    first, last = (job * f["parts"] // f["jobs"] for job in (f["job"], f["job"] + 1))
    with f.loop(first, last) as part:
        yield f.load_index(I32, f["cuts"], part), f.load_index(I32, f["cuts"], part + 1)


def store_outputs(
    f: Function, accumulated: Value, epilogue: Epilogue, *, output: Value, place: Value, valid: int
) -> None:
    """Store the first `valid` lanes of `accumulated` after the epilogue.

    Parameters
    ----------
    output
        Which output feature the first lane is.
    place
        Where it lies in ``y`` and ``residual``.
    """
    type = accumulated.type
    mask = None if valid == type.lanes else f.first_lanes(f.constant(I64, valid), type.lanes)

    def read(name: str, index: Value) -> Value:
        return f.load(type, f[name], index) if mask is None else f.masked_load(type, f[name], mask, index)

    bias = read("bias", output) if epilogue.bias else None
    residual = read("residual", place) if epilogue.residual else None
    result = finish(f, accumulated, bias=bias, residual=residual, activation=epilogue.activation)
    if mask is None:
        f.store(result, f["y"], place)
    else:
        f.masked_store(result, f["y"], mask, place)


def sum_of(variables: Sequence[Variable]) -> Value:
    """The sum of independent accumulators, pairwise."""
    values = [variable.get() for variable in variables]
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def cut(offsets: Tensor, parts: int, *, overhead: int) -> Tensor:
    """Bounds of at most `parts` runs of groups with equal work: the stored entries, and `overhead` for each group."""
    groups = offsets.numel() - 1
    work = offsets.long() + overhead * torch.arange(groups + 1)
    shares = torch.arange(1, parts) * int(work[-1]) // parts
    inner = torch.searchsorted(work, shares)
    bounds: Tensor = torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.tensor([groups])])
    cuts: Tensor = bounds.unique_consecutive().int()
    return cuts


@dataclass(frozen=True, slots=True)
class NativeLinear:
    """A generated linear kernel bound to its packed weight."""

    run: Callable[..., None]
    native: Any
    problem: Linear
    parts: int
    packed: tuple[Tensor, ...]
    words: tuple[int, ...]
    """The number of parts, the addresses of the cuts and of the packed weight, then its sizes."""
    scratch: int

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        tokens, features = x.shape
        assert features == self.problem.in_features, f"x has {features} features, not {self.problem.in_features}"
        y = x.new_empty(tokens, self.problem.out_features)  # half the time of torch.empty with a tuple
        bias = _operand(bias, self.problem.epilogue.bias)
        residual = _operand(residual, self.problem.epilogue.residual)
        jobs = threads if threads < self.parts else self.parts
        arguments = (
            x.data_ptr(),
            y.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if residual is None else residual.data_ptr(),
            tokens,
            jobs,
            *self.words,
        )
        self.run(self.native, arguments, jobs=jobs, threads=threads, scratch=self.scratch)
        return y


def _operand(tensor: Tensor | None, wanted: bool) -> Tensor | None:
    """A bias or residual, contiguous."""
    assert (tensor is not None) == wanted, "bias and residual must be given exactly where the epilogue has them"
    return tensor if tensor is None else tensor.contiguous()


def bind(
    f: Function,
    problem: Linear,
    *,
    cuts: Tensor,
    packed: Sequence[Tensor],
    sizes: Sequence[int] = (),
    scratch: int = 0,
) -> NativeLinear:
    """The kernel `f` compiled, loaded and bound to the arrays and sizes of its weight, in the order of parameters."""
    from sparta.kernels.codegen import jit, threads  # lazily: they load LLVM

    entry = threads.job_entry(f.module, f)
    native = jit.load(str(f.module), entry)
    arrays, parts = (cuts, *packed), cuts.numel() - 1
    words = (parts, *(tensor.data_ptr() for tensor in arrays), *sizes)
    return NativeLinear(threads.run, native, problem, parts, arrays, words, scratch)
