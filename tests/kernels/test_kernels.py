"""Every kernel of the table against fp64: a new kernel is tested as soon as it is registered."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from sparta.kernels import (
    Activation,
    Compiled,
    Conv,
    Epilogue,
    Format,
    Kernel,
    Linear,
    Problem,
    conv_matrix,
    find,
    find_format,
    host_machine,
    kernel_names,
)

LINEAR = [name for name in kernel_names() if find(name).problem is Linear]
CONV = [name for name in kernel_names() if find(name).problem is Conv]
SPARSE = [name for name in LINEAR if find(name).format != "dense"]

BLOCKS = ((1, 1), (4, 1), (4, 4), (8, 8), (1, 16), (16, 16), (24, 3), (32, 1), (3, 5))
TOKENS = (*range(1, 18), 31, 64, 127, 128, 129)
PLAIN = Epilogue()

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
    "silu": functional.silu,
}


def block_sparse(rows: int, columns: int, block: tuple[int, int], density: float = 0.3) -> Tensor:
    """A matrix of full blocks and empty blocks."""
    height, width = block
    grid = torch.rand(-(-rows // height), -(-columns // width)) < density
    mask = grid.repeat_interleave(height, 0).repeat_interleave(width, 1)[:rows, :columns]
    return torch.randn(rows, columns) * mask


def stored(name: str, weight: Tensor, block: tuple[int, int]) -> Format:
    """The weight in the format that a kernel wants."""
    format_name = find(name).format
    return find_format(format_name).from_dense(weight, **({"block": block} if format_name == "bsr" else {}))


def blocks_of(name: str, problem: Problem) -> list[tuple[int, int]]:
    """The block sizes that a kernel supports; one for kernels of formats without blocks."""
    kernel, machine = find(name), host_machine()
    choices = BLOCKS if kernel.format == "bsr" else BLOCKS[:1]
    example = torch.ones(problem.matrix)
    found = [block for block in choices if kernel.supports(problem, stored(name, example, block), machine)]
    assert found, f"{name} supports none of {choices}"
    return found


def built(name: str, problem: Problem, weight: Tensor, block: tuple[int, int]) -> Compiled:
    """The kernel specialized for a weight."""
    return find(name).build(problem, stored(name, weight, block), host_machine())


def operands(problem: Linear, tokens: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Random x, bias and residual."""
    bias = torch.randn(problem.out_features) if problem.epilogue.bias else None
    residual = torch.randn(tokens, problem.out_features) if problem.epilogue.residual else None
    return torch.randn(tokens, problem.in_features), bias, residual


def finished(y: Tensor, bias: Tensor | None, residual: Tensor | None, activation: Activation) -> Tensor:
    """The epilogue in the precision of `y`."""
    for term in (bias, residual):
        y = y if term is None else y + term.to(y.dtype)
    return ACTIVATIONS[activation](y)


def expected(problem: Linear, weight: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The linear in double precision, multiplied by scipy."""
    matrix = sparse.csr_matrix(weight.double().numpy())
    y = torch.from_numpy(np.ascontiguousarray((matrix @ x.double().numpy().T).T))
    return finished(y, bias, residual, problem.epilogue.activation)


def assert_close(actual: Tensor, reference: Tensor) -> None:
    """Agreement up to the rounding of fp32 sums, relative to the largest output."""
    assert actual.shape == reference.shape
    assert actual.dtype == torch.float32
    scale = float(reference.abs().max()) if reference.numel() else 0.0
    torch.testing.assert_close(actual.double(), reference, rtol=0, atol=3e-6 * (1 + scale))


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (37, 53), (130, 70)])
def test_linear_for_any_number_of_tokens(name: str, rows: int, columns: int) -> None:
    problem = Linear(rows, columns, Epilogue(bias=True))
    for block in blocks_of(name, problem):
        weight = block_sparse(rows, columns, block)
        compiled = built(name, problem, weight, block)
        for tokens in TOKENS:
            x, bias, _ = operands(problem, tokens)
            reference = expected(problem, weight, x, bias, None)
            for threads in (1, 2):
                assert_close(compiled(x, bias, None, threads), reference)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (False, True), (True, True)])
def test_linear_epilogues(name: str, activation: Activation, bias: bool, residual: bool) -> None:
    problem = Linear(37, 50, Epilogue(bias, residual, activation))
    block = blocks_of(name, problem)[-1]
    weight = block_sparse(37, 50, block)
    compiled = built(name, problem, weight, block)
    for tokens in (1, 9, 40):
        arguments = operands(problem, tokens)
        assert_close(compiled(*arguments, 1), expected(problem, weight, *arguments))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_without_weights_leaves_the_epilogue(name: str) -> None:
    problem = Linear(40, 24, Epilogue(bias=True, residual=True, activation="relu"))
    block = blocks_of(name, problem)[0]
    compiled = built(name, problem, torch.zeros(40, 24), block)
    for tokens in (1, 5, 33):
        x, bias, residual = operands(problem, tokens)
        assert bias is not None and residual is not None
        assert torch.equal(compiled(x, bias, residual, 2), functional.relu(bias + residual))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_with_empty_and_full_rows(name: str) -> None:
    problem = Linear(64, 48)
    block = blocks_of(name, problem)[0]
    weight = torch.zeros(64, 48)
    weight[block[0] : 2 * block[0]] = torch.randn(block[0], 48)
    compiled = built(name, problem, weight, block)
    for tokens in (1, 8, 50):
        x = torch.randn(tokens, 48)
        assert_close(compiled(x, None, None, 2), expected(problem, weight, x, None, None))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_of_no_tokens(name: str) -> None:
    problem = Linear(16, 16)
    compiled = built(name, problem, torch.eye(16), blocks_of(name, problem)[0])
    assert compiled(torch.empty(0, 16), None, None, 2).shape == (0, 16)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_pruned_weights_hide_and_kept_weights_show_what_is_not_finite(name: str, poison: float) -> None:
    problem = Linear(64, 64)
    for block in blocks_of(name, problem):
        height, width = block
        weight = block_sparse(64, 64, block, density=0.5)
        # Only one row of blocks keeps the first columns, where the padding of packed weights would point.
        weight[:, :width] = 0
        weight[height : 2 * height, :width] = 1
        compiled = built(name, problem, weight, block)
        kept = torch.zeros(64, dtype=torch.bool)
        kept[height : 2 * height] = True
        for tokens in (1, 8, 40):
            x = torch.randn(tokens, 64)
            x[:, :width] = poison
            y = compiled(x, None, None, 1)
            assert y[:, ~kept].isfinite().all(), f"{block}, {tokens} tokens: a pruned weight shows {poison}"
            assert not y[:, kept].isfinite().any(), f"{block}, {tokens} tokens: a kept weight hides {poison}"


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("offset", [1, 2, 5])
def test_linear_of_operands_at_any_address(name: str, offset: int) -> None:
    problem = Linear(33, 47, Epilogue(bias=True, residual=True))
    block = blocks_of(name, problem)[0]
    weight = block_sparse(33, 47, block)
    compiled = built(name, problem, weight, block)

    def shifted(tensor: Tensor) -> Tensor:
        return torch.cat([tensor.new_zeros(offset), tensor.flatten()])[offset:].view(tensor.shape)

    for tokens in (1, 7, 19):
        x, bias, residual = operands(problem, tokens)
        assert bias is not None and residual is not None
        y = compiled(shifted(x), shifted(bias), shifted(residual), 1)
        assert_close(y, expected(problem, weight, x, bias, residual))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_of_strided_epilogue_operands(name: str) -> None:
    problem = Linear(33, 47, Epilogue(bias=True, residual=True))
    block = blocks_of(name, problem)[0]
    weight = block_sparse(33, 47, block)
    compiled = built(name, problem, weight, block)
    for tokens in (1, 7, 19):
        x, bias, residual = torch.randn(tokens, 47), torch.randn(33, 2)[:, 0], torch.randn(33, tokens).t()
        assert_close(compiled(x, bias, residual, 1), expected(problem, weight, x, bias, residual))


def fenced(tensor: Tensor) -> Tensor:
    """A copy that ends where memory may not be touched: a read or write beyond it is a segmentation fault."""
    page, size = mmap.PAGESIZE, tensor.numel() * tensor.element_size()
    usable = -(-size // page) * page
    memory = mmap.mmap(-1, usable + page)
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=usable - size).view(tensor.shape)
    end = copy.data_ptr() + size
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), ctypes.c_size_t(page), 0) == 0
    return copy.copy_(tensor)


@pytest.mark.skipif(sys.platform != "linux", reason="fences memory with mprotect")
@pytest.mark.parametrize("name", SPARSE)
def test_kernels_read_nothing_beyond_their_operands(name: str) -> None:
    problem = Linear(37, 53, Epilogue(bias=True, residual=True))
    block = blocks_of(name, problem)[-1]
    weight = block_sparse(37, 53, block)
    compiled = built(name, problem, weight, block)
    for tokens in (1, 3, 9, 17, 40):
        x, bias, residual = (torch.randn(shape) for shape in ((tokens, 53), (37,), (tokens, 37)))
        y = compiled(fenced(x), fenced(bias), fenced(residual), 2)
        assert_close(y, expected(problem, weight, x, bias, residual))


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_other_types_are_computed_in_single_precision(name: str, dtype: torch.dtype) -> None:
    problem = Linear(32, 32)
    block = blocks_of(name, problem)[0]
    weight = block_sparse(32, 32, block).to(dtype)
    x = torch.randn(6, 32)
    y = built(name, problem, weight, block)(x, None, None, 1)
    assert_close(y, expected(problem, weight.float(), x, None, None))


@pytest.mark.parametrize("name", LINEAR)
def test_kernels_are_reentrant(name: str) -> None:
    problem = Linear(64, 96)
    block = blocks_of(name, problem)[0]
    weight = block_sparse(64, 96, block)
    compiled = built(name, problem, weight, block)
    inputs = [torch.randn(tokens, 96) for tokens in (1, 3, 12, 40)] * 5
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: compiled(x, None, None, 2), inputs))
    for x, y in zip(inputs, results, strict=True):
        assert_close(y, expected(problem, weight, x, None, None))


@pytest.mark.parametrize("name", kernel_names())
def test_estimates_grow_with_the_work(name: str) -> None:
    kernel, machine = find(name), host_machine()
    problem: Problem = (
        Linear(256, 256) if kernel.problem is Linear else Conv(32, 32, (3, 3), (1, 1), (1, 1), (1, 1), 1, (14, 14))
    )
    block = blocks_of(name, problem)[-1]
    light, heavy = (stored(name, block_sparse(*problem.matrix, block, density), block) for density in (0.05, 0.5))
    few, many = (kernel.cost(problem, heavy, tokens, machine) for tokens in (4, 4096))
    assert 0 < few < many
    assert kernel.cost(problem, light, 4096, machine) <= many


# --- convolutions -----------------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    Conv(8, 4, (1, 1), (1, 1), (0, 0), (1, 1), 1, (6, 7), Epilogue(bias=True)),
    Conv(6, 5, (3, 3), (1, 1), (1, 1), (1, 1), 1, (9, 11), Epilogue(bias=True, residual=True, activation="relu")),
    Conv(8, 6, (3, 2), (2, 1), (1, 0), (1, 1), 2, (8, 9), Epilogue(activation="silu")),
    Conv(5, 3, (3, 3), (1, 2), (2, 1), (2, 1), 1, (12, 10), Epilogue(residual=True, activation="gelu")),
    Conv(6, 6, (5, 3), (1, 1), (2, 1), (1, 1), 6, (7, 17), Epilogue(bias=True, activation="gelu_tanh")),
    Conv(4, 4, (7, 7), (2, 2), (3, 3), (1, 1), 1, (21, 20), PLAIN),
]


def convolved(problem: Conv, weight: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The convolution in double precision."""
    sizes = problem.stride, problem.padding, problem.dilation, problem.groups
    y = functional.conv2d(x.double(), weight.double(), None, *sizes)
    spread = None if bias is None else bias[:, None, None]
    return finished(y, spread, residual, problem.epilogue.activation)


def supporting(kernel: Kernel, problem: Conv) -> list[tuple[int, int]]:
    """Blocks with which a convolution kernel supports a problem; a kernel may turn down some geometries."""
    weight = torch.ones(problem.matrix)
    choices = ((1, 1), (4, 1), (8, 8)) if kernel.format == "bsr" else BLOCKS[:1]
    return [b for b in choices if kernel.supports(problem, stored(kernel.name, weight, b), host_machine())]


def check_conv(name: str, problem: Conv, block: tuple[int, int]) -> None:
    """Compare a kernel with the oracle on a random weight."""
    shape = (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel)
    weight = block_sparse(shape[0], shape[1] * shape[2] * shape[3], block, 0.4).view(shape)
    compiled = built(name, problem, conv_matrix(weight, problem.groups), block)
    for images in (1, 3):
        x = torch.randn(images, problem.in_channels, *problem.image)
        bias = torch.randn(problem.out_channels) if problem.epilogue.bias else None
        residual = None
        if problem.epilogue.residual:
            residual = torch.randn(images, problem.out_channels, *problem.out_image)
        for threads in (1, 2):
            assert_close(compiled(x, bias, residual, threads), convolved(problem, weight, x, bias, residual))


@pytest.mark.parametrize("name", CONV)
def test_convolutions(name: str) -> None:
    checked = 0
    for problem in CONVOLUTIONS:
        for block in supporting(find(name), problem):
            check_conv(name, problem, block)
            checked += 1
    assert checked, f"{name} supports none of the convolutions"


@pytest.mark.parametrize("name", CONV)
def test_convolutions_without_weights(name: str) -> None:
    problem = Conv(8, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1, (6, 7), Epilogue(bias=True))
    block = blocks_of(name, problem)[0]
    bias = torch.randn(8)
    y = built(name, problem, torch.zeros(problem.matrix), block)(torch.randn(2, 4, 6, 7), bias, None, 2)
    assert torch.equal(y, bias[:, None, None].expand(2, 8, 6, 7))


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [Linear, Conv])
@pytest.mark.parametrize("format_name", ["csr", "bsr"])
def test_every_sparse_format_has_a_reference(operator: type[Problem], format_name: str) -> None:
    kernels = [find(name) for name in kernel_names()]
    assert [k.name for k in kernels if k.reference and k.problem is operator and k.format == format_name]


def test_importing_the_table_compiles_nothing() -> None:
    program = "import sys, sparta.kernels; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
