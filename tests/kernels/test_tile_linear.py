"""Tiled linear kernels against a double-precision product."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from sparta.kernels import Bsr, Compiled, Csr, Epilogue, Format, Linear, Machine, find, host_machine, machine_for
from sparta.kernels.codegen.tiled import cut_rows, cut_tokens, imbalance
from sparta.kernels.problem import Activation

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
_FORMATS: dict[str, Callable[[Tensor], Format]] = {
    "csr": Csr.from_dense,
    "bsr4x1": lambda weight: Bsr.from_dense(weight, block=(4, 1)),
    "bsr8x3": lambda weight: Bsr.from_dense(weight, block=(8, 3)),
    "bsr16x16": lambda weight: Bsr.from_dense(weight, block=(16, 16)),
}
_ALL_FORMATS = pytest.mark.parametrize("stored", list(_FORMATS))
# Other machines' tile shapes, run here: LLVM splits the vectors that this machine lacks.
_MACHINES = {
    "host": host_machine(),
    "avx512": machine_for(frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma"))),
    "neon": machine_for(frozenset(("neon",))),
    "generic": machine_for(frozenset()),
}


def _weight(rows: int, columns: int, density: float) -> Tensor:
    return torch.randn(rows, columns) * (torch.rand(rows, columns) < density)


def _build(weight: Tensor, stored: str, epilogue: Epilogue, machine: Machine = _MACHINES["host"]) -> Compiled:
    problem = Linear(*weight.shape, epilogue)
    kernel = find("csr_tile" if stored == "csr" else "bsr_tile")
    packed = _FORMATS[stored](weight)
    assert kernel.supports(problem, packed, machine)
    return kernel.build(problem, packed, machine)


def _expected(x: Tensor, weight: Tensor) -> Tensor:
    """The product without the terms of pruned weights, whatever x holds there."""
    return torch.from_numpy(sparse.csr_matrix(weight.double().numpy()) @ x.double().numpy().T).T


def _assert_close(y: Tensor, expected: Tensor) -> None:
    # Sums of many terms lose digits relative to their terms, which are about as large as the largest results.
    torch.testing.assert_close(
        y.double(), expected.double(), rtol=1e-5, atol=1e-5 + 2e-6 * expected.abs().amax().item()
    )


@_ALL_FORMATS
@pytest.mark.parametrize("tokens", [*range(1, 41, 3), 63, 64, 65, 127, 128, 129])
def test_any_number_of_tokens(tokens: int, stored: str) -> None:
    kernel, weight = _ragged_kernel(stored)
    x = torch.randn(tokens, 77)
    _assert_close(kernel(x, None, None, 1), _expected(x, weight))


@cache
def _ragged_kernel(stored: str) -> tuple[Compiled, Tensor]:
    weight = _weight(70, 77, 0.3)
    return _build(weight, stored, Epilogue()), weight


@_ALL_FORMATS
@pytest.mark.parametrize("machine", list(_MACHINES))
def test_tile_shapes_of_every_machine(machine: str, stored: str) -> None:
    weight, x = _weight(37, 45, 0.3), torch.randn(150, 45)
    bias, residual = torch.randn(37), torch.randn(150, 37)
    kernel = _build(weight, stored, Epilogue(True, True, "silu"), _MACHINES[machine])
    _assert_close(kernel(x, bias, residual, 1), functional.silu(_expected(x, weight) + bias + residual))


@pytest.mark.parametrize(
    ("has_bias", "has_residual", "activation"),
    [(False, False, "relu"), (True, False, "gelu"), (False, True, "none"), *((True, True, a) for a in _ACTIVATIONS)],
)
def test_epilogues(has_bias: bool, has_residual: bool, activation: Activation) -> None:
    weight, x = _weight(33, 40, 0.2), torch.randn(20, 40)
    bias = torch.randn(33) if has_bias else None
    residual = torch.randn(20, 33) if has_residual else None
    y = _build(weight, "csr", Epilogue(has_bias, has_residual, activation))(x, bias, residual, 1)
    total = _expected(x, weight) + (0 if bias is None else bias) + (0 if residual is None else residual)
    _assert_close(y, _ACTIVATIONS[activation](total))


@pytest.mark.parametrize("stored", ["csr", "bsr8x3"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 129), (129, 17), (300, 1030)])
@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_shapes_and_densities(shape: tuple[int, int], density: float, stored: str) -> None:
    weight, x = _weight(*shape, density), torch.randn(23, shape[1])
    _assert_close(_build(weight, stored, Epilogue())(x, None, None, 1), _expected(x, weight))


@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 300)),
    tokens=st.integers(1, 150),
    density=st.floats(0, 1),
    stored=st.sampled_from(list(_FORMATS)),
    activation=st.sampled_from(list(_ACTIVATIONS)),
    threads=st.integers(1, 3),
)
def test_random_problems(
    shape: tuple[int, int], tokens: int, density: float, stored: str, activation: Activation, threads: int
) -> None:
    weight, x, bias = _weight(*shape, density), torch.randn(tokens, shape[1]), torch.randn(shape[0])
    y = _build(weight, stored, Epilogue(bias=True, activation=activation))(x, bias, None, threads)
    _assert_close(y, _ACTIVATIONS[activation](_expected(x, weight) + bias))


@_ALL_FORMATS
def test_empty_rows_and_columns(stored: str) -> None:
    weight = _weight(64, 300, 0.2)
    weight[5:40] = 0
    weight[:, 100:290] = 0
    x = torch.randn(70, 300)
    _assert_close(_build(weight, stored, Epilogue())(x, None, None, 1), _expected(x, weight))


@_ALL_FORMATS
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("tokens", [5, 64, 200])
def test_threads_change_nothing(tokens: int, threads: int, stored: str) -> None:
    weight, x = _weight(130, 77, 0.3), torch.randn(tokens, 77)
    kernel = _build(weight, stored, Epilogue())
    assert torch.equal(kernel(x, None, None, 1), kernel(x, None, None, threads))


def test_results_larger_than_the_cache_are_computed_in_parts() -> None:
    machine = machine_for(frozenset(("avx2", "fma")), caches=(4096, 16384, 0))
    weight, x = _weight(530, 200, 0.1), torch.randn(100, 200)
    _assert_close(_build(weight, "csr", Epilogue(), machine)(x, None, None, 1), _expected(x, weight))


@_ALL_FORMATS
def test_nan_and_infinity_come_from_kept_weights_only(stored: str) -> None:
    weight = _weight(48, 80, 1.0)
    weight[:, 64:] = 0
    weight[:16, :16] = 0
    x = torch.randn(21, 80)
    x[:, 70] = float("nan")
    x[:, 79] = float("inf")
    x[3, 20] = float("nan")
    x[4, 5] = float("inf")
    y = _build(weight, stored, Epilogue())(x, None, None, 1)
    assert bool(y[3].isnan().all())
    assert bool(y[4, :16].isfinite().all())
    assert bool(y[4, 16:].isinf().all())
    assert bool(y[torch.arange(21) > 4].isfinite().all())
    assert bool(y[:3].isfinite().all())


@_ALL_FORMATS
def test_nothing_outside_the_operands_matters(stored: str) -> None:
    weight = _weight(13, 21, 0.5)
    x_padded, bias_padded = torch.full((1 + 19 * 21 + 64,), float("nan")), torch.full((15,), float("nan"))
    x, bias = x_padded[1 : 1 + 19 * 21].view(19, 21), bias_padded[1:14]
    x.normal_()
    bias.normal_()
    y = _build(weight, stored, Epilogue(bias=True))(x, bias, None, 1)
    _assert_close(y, _expected(x, weight) + bias)


def test_stores_stay_inside_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = _weight(13, 21, 0.5), torch.randn(19, 21)
    kernel = _build(weight, "csr", Epilogue())
    guarded = torch.full((1 + 19 * 13 + 64,), 7.0)
    monkeypatch.setattr(Tensor, "new_empty", lambda _, *shape: guarded[1 : 1 + 19 * 13].view(shape))
    y = kernel(x, None, None, 1)
    _assert_close(y, _expected(x, weight))
    assert guarded[0] == 7.0
    assert bool((guarded[1 + 19 * 13 :] == 7.0).all())


@_ALL_FORMATS
def test_denormals_flush_and_cost_nothing(stored: str) -> None:
    weight = _weight(256, 256, 0.2)
    kernel = _build(weight, stored, Epilogue())

    def seconds(x: Tensor) -> float:
        kernel(x, None, None, 1)
        start = time.thread_time()
        for _ in range(5):
            kernel(x, None, None, 1)
        return time.thread_time() - start

    denormal = torch.full((128, 256), 1e-41)
    assert bool((kernel(denormal, None, None, 1) == 0).all())
    assert seconds(denormal) < 4 * seconds(torch.randn(128, 256)) + 1e-3


def test_two_python_threads_at_once() -> None:
    weight, inputs = _weight(96, 100, 0.2), [torch.randn(70, 100) for _ in range(2)]
    kernel = _build(weight, "csr", Epilogue())
    close: list[bool] = []

    def work(x: Tensor, expected: Tensor) -> None:
        close.extend(torch.allclose(kernel(x, None, None, 2), expected, atol=1e-4) for _ in range(50))

    workers = [threading.Thread(target=work, args=(x, _expected(x, weight).float())) for x in inputs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert close == [True] * 100


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.ones(4, 8), None, "exactly where the epilogue has them"),
        (torch.ones(4, 8), torch.ones(7), "has 7 elements, not 8"),
        (torch.ones(4, 9), torch.ones(8), "x has 9 features, not 8"),
        (torch.ones(4, 8).double(), torch.ones(8), "float64, not float32"),
    ],
)
def test_operands_that_do_not_fit_are_refused(x: Tensor, bias: Tensor | None, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        _small_kernel()(x, bias, None, 1)


@cache
def _small_kernel() -> Compiled:
    return _build(_weight(8, 8, 0.5), "csr", Epilogue(bias=True))


def test_no_tokens_give_no_rows() -> None:
    kernel = _build(_weight(8, 8, 0.5), "csr", Epilogue())
    assert kernel(torch.empty(0, 8), None, None, 2).shape == (0, 8)


def test_strided_operands_of_the_epilogue() -> None:
    weight, x = _weight(24, 30, 0.5), torch.randn(18, 30)
    bias, residual = torch.randn(24, 2)[:, 0], torch.randn(24, 18).T
    y = _build(weight, "csr", Epilogue(True, True))(x, bias, residual, 1)
    _assert_close(y, _expected(x, weight) + bias + residual)


def test_many_sizes_of_input_are_not_all_remembered() -> None:
    kernel, weight = _ragged_kernel("csr")
    for tokens in range(1, 140):
        x = torch.randn(tokens, 77)
        _assert_close(kernel(x, None, None, 1), _expected(x, weight))
    assert len(kernel.tiled._jobs) <= 64  # type: ignore[attr-defined]


def test_blocks_of_other_heights_are_not_supported() -> None:
    weight = Bsr.from_dense(torch.ones(12, 12), block=(6, 1))
    assert not find("bsr_tile").supports(Linear(12, 12), weight, host_machine())


def test_low_precision_weights_are_widened() -> None:
    weight = _weight(20, 30, 0.5).bfloat16()
    x = torch.randn(18, 30)
    _assert_close(_build(weight, "csr", Epilogue())(x, None, None, 1), _expected(x, weight.float()))


@pytest.mark.parametrize("name", ["csr_tile", "bsr_tile"])
def test_cost_grows_with_tokens_and_density(name: str) -> None:
    machine, problem = host_machine(), Linear(256, 256, Epilogue())
    stored = "csr" if name == "csr_tile" else "bsr16x16"
    sparse_weight, dense_weight = (_FORMATS[stored](_weight(256, 256, density)) for density in (0.001, 1.0))
    costs = [find(name).cost(problem, sparse_weight, tokens, machine) for tokens in (16, 64, 200)]
    assert 0 < costs[0] < costs[1] < costs[2]
    assert find(name).cost(problem, dense_weight, 200, machine) > 2 * costs[2]


@pytest.mark.parametrize("tokens", range(1, 300, 7))
def test_tiles_cover_the_tokens_without_much_waste(tokens: int) -> None:
    widths = (64, 32, 16)
    tiles = cut_tokens(tokens, widths)
    ends = [start + widths[number] for number, start in tiles]
    assert [start for _, start in tiles] == [0, *ends[:-1]]
    assert tokens <= ends[-1]
    assert ends[-1] - tokens < max(16, widths[tiles[-1][0]] // 2)


@pytest.mark.parametrize(("tokens", "threads"), [(80, 2), (1, 2), (64, 3), (640, 2), (700, 3)])
def test_threads_get_about_equal_shares(tokens: int, threads: int) -> None:
    tiled = _tall_kernel().tiled  # type: ignore[attr-defined]
    table = tiled._cut(1, tokens, threads).table
    widths = torch.tensor([width.tokens for width in tiled.tiling.widths])
    work = widths[table[:, 0].long()] * (table[:, 4] - table[:, 3])
    assert imbalance(work.tolist(), threads) < 1.3


@cache
def _tall_kernel() -> Compiled:
    return _build(_weight(512, 16, 0.5), "csr", Epilogue())


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_runs_of_rows_are_balanced_and_complete(parts: int) -> None:
    sizes = torch.cat([torch.full((100,), 50), torch.zeros(100, dtype=torch.int64)])
    runs = cut_rows(sizes, 1, 200, parts)
    assert runs[0][0] == 0
    assert runs[-1][1] == 200
    assert all(left[1] == right[0] for left, right in zip(runs, runs[1:], strict=False))
    assert all(first % 16 == 0 for first, _ in runs)
    assert len(runs) <= parts
    if parts == 2:
        assert 48 <= runs[0][1] <= 64
