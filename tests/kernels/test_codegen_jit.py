"""Compiling: every kernel family for every instruction set, errors, and what the hot loops look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch

from sparta.kernels import Bsr, Conv, Csr, Epilogue, Machine, machine_for
from sparta.kernels.codegen.ir import Module
from sparta.kernels.codegen.jit import AVX2, AVX512, NEON, X86_64, Target, emit_assembly, emit_object, host_target, load
from sparta.kernels.codegen.products import Product, make_product
from sparta.kernels.codegen.sinks import PlanesSink, RowsSink
from sparta.kernels.codegen.sources import PlanesSource, RowsSource
from sparta.kernels.codegen.threads import launcher_module
from sparta.kernels.codegen.tiles import tile_module
from sparta.kernels.conv.geometry import Geometry
from sparta.kernels.conv.spread import spread_module
from sparta.tesa.errors import KernelCompileError

_FEATURES = {
    AVX512: frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")),
    AVX2: frozenset(("avx2", "fma")),
    X86_64: frozenset[str](),
    NEON: frozenset(("neon",)),
}
_TARGETS = pytest.mark.parametrize("target", [pytest.param(target, id=target.cpu) for target in _FEATURES])
_CONV = Conv(70, 5, (3, 3), (2, 2), (1, 1), (1, 1), 1, (15, 15), Epilogue(True, True, "silu"))
_WEIGHT = torch.ones(70, 45)


def _linear(product: Product, machine: Machine) -> Module:
    sink = RowsSink(70, Epilogue(True, True, "gelu"))
    return tile_module(product.tiling, RowsSource(45), product.compute, sink)[0]


def _conv(product: Product, machine: Machine) -> Module:
    source = PlanesSource(1000, limit=100)
    sink = PlanesSink(70, _CONV.epilogue, Geometry(_CONV).lattice)
    return tile_module(product.tiling, source, product.compute, sink)[0]


def _spread(product: Product, machine: Machine) -> Module:
    return spread_module(Geometry(_CONV), machine.lanes)[0]


@_TARGETS
@pytest.mark.parametrize("weight", [Csr.from_dense(_WEIGHT), Bsr.from_dense(_WEIGHT, block=(8, 1))], ids=["csr", "bsr"])
@pytest.mark.parametrize("family", [_linear, _conv, _spread])
def test_families_compile_for_every_instruction_set(
    family: Callable[[Product, Machine], Module], weight: Csr | Bsr, target: Target
) -> None:
    machine = machine_for(_FEATURES[target])
    assert len(emit_object(str(family(make_product(weight, machine), machine)), target)) > 500


@_TARGETS
@pytest.mark.parametrize("openmp", [True, False])
def test_launcher_compiles_for_every_instruction_set(target: Target, openmp: bool) -> None:
    architecture = target.triple.split("-")[0]
    text = emit_assembly(str(launcher_module(openmp=openmp, architecture=architecture)), target)
    assert ("ldmxcsr" in text) == (architecture == "x86_64")
    assert ("fpcr" in text.lower()) == (architecture == "aarch64")


def test_launcher_without_a_known_control_register() -> None:
    assert "csr" not in str(launcher_module(openmp=False, architecture="riscv64"))


def _loops(assembly: str) -> Iterator[str]:
    """Basic blocks that end with a jump to their own beginning."""
    for match in re.finditer(r"^(\.L\w+):[^\n]*\n((?:\t[^\n]*\n|\s*#[^\n]*\n)*)", assembly, re.MULTILINE):
        if re.search(rf"\tj\w+\t{re.escape(match[1])}\n", match[2]):
            yield match[2]


@pytest.mark.parametrize("weight", [Csr.from_dense(_WEIGHT), Bsr.from_dense(_WEIGHT, block=(8, 1))], ids=["csr", "bsr"])
@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_multiply_loops_do_not_spill(weight: Csr | Bsr, target: Target) -> None:
    machine = machine_for(_FEATURES[target])
    assembly = emit_assembly(str(_linear(make_product(weight, machine), machine)), target)
    # Only the multiply loops load 16-bit columns.
    hot = [loop for loop in _loops(assembly) if "movzwl" in loop]
    assert sum(loop.count("vfmadd") >= 8 for loop in hot) >= 3
    assert not [loop for loop in hot if "%rsp" in loop or "%rbp)" in loop]


def test_rejected_text_is_a_compile_error() -> None:
    with pytest.raises(KernelCompileError, match="LLVM cannot compile a kernel for"):
        emit_object("define void @broken() { ret i32 0 }")


def test_missing_symbol_is_a_compile_error() -> None:
    text = "declare void @nowhere()\ndefine void @entry() {\n  call void @nowhere()\n  ret void\n}\n"
    with pytest.raises(KernelCompileError, match="'entry' cannot be loaded"):
        load(text, "entry")


def test_same_text_gives_the_same_object() -> None:
    text = str(launcher_module(openmp=False))
    assert emit_object(text) == emit_object(text, host_target())
