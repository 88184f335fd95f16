"""The custom operators `sparta::linear` and `sparta::conv2d`, with fake kernels for export and compile.

Weights are plain tensors (the components of a storage format), the plan is a string: graphs that hold these operators
can be exported, compiled and saved. Importing this module registers them.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from sparta.kernels.problem import Conv
from sparta.runtime.executor import Executor, executor_for
from sparta.transformation.plan import Plan

_library = torch.library.Library("sparta", "DEF")
for _name in ("linear", "conv2d"):
    _library.define(
        f"{_name}(Tensor x, Tensor[] weight, Tensor? bias, Tensor? residual, str plan) -> Tensor",
        tags=(torch.Tag.pt2_compliant_tag,),
    )


@lru_cache(maxsize=4096)
def _plan(text: str) -> Plan:
    return Plan.loads(text)


def empty_linear(x: Tensor, weight: list[Tensor], bias: Tensor | None, residual: Tensor | None, plan: str) -> Tensor:
    """An empty result of the right shape: what export and compile see."""
    return x.new_empty((*x.shape[:-1], _plan(plan).problem.matrix[0]))


def empty_conv2d(x: Tensor, weight: list[Tensor], bias: Tensor | None, residual: Tensor | None, plan: str) -> Tensor:
    """An empty result of the right shape: what export and compile see."""
    problem = _plan(plan).for_image((x.shape[2], x.shape[3]))
    assert isinstance(problem, Conv)
    return x.new_empty((x.shape[0], problem.out_channels, *problem.out_image))


def run_linear(executor: Executor, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The result of a sparse linear for `x` of any rank, strides and batch."""
    plain = x.dim() == 2 and residual is None
    rows = (x if plain else x.reshape(-1, x.shape[-1])).contiguous()
    if residual is not None:
        residual = residual.reshape(-1, residual.shape[-1]).contiguous()
    y = executor(rows, bias, residual)
    return y if plain else y.reshape(*x.shape[:-1], y.shape[-1])


def run_conv2d(executor: Executor, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The result of a sparse convolution for NCHW data of any strides and batch."""
    if residual is not None:
        residual = residual.contiguous()
    return executor(x.contiguous(), bias, residual).contiguous()


def _linear(x: Tensor, weight: list[Tensor], bias: Tensor | None, residual: Tensor | None, plan: str) -> Tensor:
    return run_linear(executor_for(weight, plan), x, bias, residual)


def _conv2d(x: Tensor, weight: list[Tensor], bias: Tensor | None, residual: Tensor | None, plan: str) -> Tensor:
    return run_conv2d(executor_for(weight, plan), x, bias, residual)


_library.impl("linear", _linear, "CPU")
_library.impl("conv2d", _conv2d, "CPU")
torch.library.register_fake("sparta::linear", empty_linear, lib=_library)
torch.library.register_fake("sparta::conv2d", empty_conv2d, lib=_library)
