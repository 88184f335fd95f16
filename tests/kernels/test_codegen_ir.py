"""The IR builder: text that LLVM accepts and that computes what it says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparta.kernels.codegen.ir import F32, I16, I32, I64, PTR, Function, Module, Value
from sparta.kernels.codegen.jit import load
from sparta.kernels.codegen.threads import job_entry, run
from sparta.kernels.codegen.transpose import transposed


def _run(emit: Callable[[Function], None], *tensors: Tensor) -> None:
    """Compiles a function of pointers x0, x1, ... and runs it on tensors."""
    module = Module()
    parameters = {f"x{number}": PTR for number in range(len(tensors))} | {"job": I64, "scratch": PTR}
    f = module.function("test", parameters, internal=True)
    emit(f)
    run(load(module, job_entry(module, f)), [t.data_ptr() for t in tensors], jobs=1, threads=1, scratch=64)


@pytest.mark.parametrize("number", [0.1, -1.0, 1e-38, 3.4e38, float("inf"), 1 / 3])
def test_float_constants_are_exact(number: float) -> None:
    out = torch.empty(1)
    _run(lambda f: f.store(f.constant(F32, number), f["x0"]), out)
    assert out.item() == ctypes.c_float(number).value


def test_loops_branches_and_variables() -> None:
    values = torch.arange(10, dtype=torch.int64)
    out = torch.zeros(1, dtype=torch.int64)

    def sum_of_multiples_of_three_except_the_last(f: Function) -> None:
        total = f.variable(I64, 0)
        with f.loop(0, 9, 3) as i:
            value = f.load(I64, f["x0"], i)
            with f.when(f.compare("sgt", value, 0)):
                total.set(total.get() + value)
        f.store(total.get(), f["x1"])

    _run(sum_of_multiples_of_three_except_the_last, values, out)
    assert out.item() == 3 + 6


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_masked_access_leaves_other_lanes_alone(count: int) -> None:
    x, y = torch.arange(8.0) + 1, torch.full((8,), -1.0)

    def copy(f: Function) -> None:
        mask = f.first_lanes(f.constant(I64, count), 8)
        f.masked_store(f.masked_load(F32.vector(8), f["x0"], mask), f["x1"], mask)

    _run(copy, x, y)
    assert torch.equal(y, torch.where(torch.arange(8) < count, x, -torch.ones(8)))


def test_gather_and_index_loads() -> None:
    table, y = torch.arange(100.0), torch.empty(4)
    indices, lengths = torch.tensor([7, 3, 99, 0], dtype=torch.int32), torch.tensor([60000], dtype=torch.uint16)
    long = torch.empty(1, dtype=torch.int64)

    def look_up(f: Function) -> None:
        f.store(f.gather(f["x0"], f.load(I32.vector(4), f["x1"])), f["x2"])
        f.store(f.load_index(I16, f["x3"]), f["x4"])

    _run(look_up, table, indices, y, lengths, long)
    assert y.tolist() == [7, 3, 99, 0]
    assert long.item() == 60000


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_transposed(lanes: int) -> None:
    x, y = torch.randn(lanes, lanes), torch.empty(lanes, lanes)

    def transpose(f: Function) -> None:
        rows = [f.load(F32.vector(lanes), f["x0"], row * lanes) for row in range(lanes)]
        for number, column in enumerate(transposed(f, rows)):
            f.store(column, f["x1"], number * lanes)

    _run(transpose, x, y)
    assert torch.equal(y, x.T)


def test_operands_must_have_one_type() -> None:
    f = Module().function("mixed", {"a": I64, "b": I32})
    with pytest.raises(AssertionError, match="add of i64 and i32"):
        f["a"] + f["b"]


def test_function_names_are_unique() -> None:
    module = Module()
    module.function("once", {})
    with pytest.raises(AssertionError, match="two functions are called 'once'"):
        module.function("once", {})


def test_arithmetic_of_vectors() -> None:
    x = torch.randn(8)
    out = torch.empty(3, 8)

    def compute(f: Function) -> None:
        a = f.load(F32.vector(8), f["x0"])
        results: list[Value] = [f.fma(a, a, a) - 1.0, a / 2.0, f.maximum(f.minimum(a, 0.5), -0.5)]
        for number, result in enumerate(results):
            f.store(result, f["x1"], 8 * number)

    _run(compute, x, out)
    assert torch.allclose(out, torch.stack([x * x + x - 1, x / 2, x.clamp(-0.5, 0.5)]), atol=1e-6)
