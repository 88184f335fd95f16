"""Executors: what a custom operator calls; they hold the specialized kernels of one weight, by range of T."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from sparta.kernels import Compiled, Format, Kernel, find, find_format, host_machine
from sparta.kernels.conv.dense import conv_weight
from sparta.kernels.problem import Conv, Linear, Problem
from sparta.kernels.table import kernel_names
from sparta.tesa.errors import FormatError
from sparta.transformation.choose import DENSE, build, build_dense, choose, typed
from sparta.transformation.plan import Plan, bucket_of
from sparta.transformation.weight import Weight

Place = tuple[int, tuple[int, int]]
"""A range of T and an image size (0, 0 for linears): what a compiled kernel is good for."""


@dataclass(slots=True)
class Executor:
    """Runs one plan with one weight; kernels are compiled at their first use and kept while the weight stays.

    Parameters
    ----------
    plan
        What to run.
    weight
        The weight in the plan's storage format, validated.
    version
        Counter of in-place changes of the stored values when the kernels were packed.
    """

    plan: Plan
    weight: Format
    version: int
    compiled: dict[Place, Compiled] = field(default_factory=dict)

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """The operator's result for a contiguous `x`."""
        if self.version != version_of(self.weight.values):
            self._repack()
        tokens, image = self._sizes(x)
        if tokens == 0:
            return self._empty(x, image)
        place = bucket_of(tokens), image
        run = self.compiled.get(place)
        if run is None:
            run = self.compiled[place] = self._specialize(self.plan.for_image(image), tokens)
        return run(x, bias, residual, self.threads)

    def _sizes(self, x: Tensor) -> tuple[int, tuple[int, int]]:
        """Columns of the dense operand, and the image size (0, 0 for linears)."""
        if isinstance(self.plan.problem, Linear):
            return x.shape[0], (0, 0)
        batch, _, height, width = x.shape
        problem = self.plan.for_image((height, width))
        assert isinstance(problem, Conv)
        out = problem.out_image
        return batch * out[0] * out[1], (height, width)

    def compile(self, tokens: int) -> None:
        """Compile the kernel for the plan's own problem at `tokens` columns, before the first call.

        Raises
        ------
        KernelCompileError
            If the kernel the plan names cannot be compiled or loaded here.
        """
        problem = self.plan.problem
        image = problem.image if isinstance(problem, Conv) else (0, 0)
        self.compiled[bucket_of(tokens), image] = self._specialize(problem, tokens)

    def _empty(self, x: Tensor, image: tuple[int, int]) -> Tensor:
        problem = self.plan.for_image(image)
        pixels = problem.out_image if isinstance(problem, Conv) else ()
        return x.new_empty((0, problem.matrix[0], *pixels))

    def _repack(self) -> None:
        """The stored values were changed in place, as by `load_state_dict`: what was packed of them is void."""
        self.compiled.clear()
        self.version = version_of(self.weight.values)

    @property
    def threads(self) -> int:
        """Threads of the next call."""
        return self.plan.threads or torch.get_num_threads()

    def _specialize(self, problem: Problem, tokens: int) -> Compiled:
        """The kernel the plan names for this range of T, else the one that measures fastest now."""
        planned = self._planned(problem, tokens)
        if planned is not None:
            return typed(planned.build(problem, self.weight, host_machine()))
        matrix = self.weight.to_dense()
        weight = Weight.of(conv_weight(matrix, problem) if isinstance(problem, Conv) else matrix, problem)
        choice = choose(weight, tokens, threads=self.threads, only=self.plan.only)
        run = build(find(choice.kernel), weight) if choice.kernel != DENSE else None
        return run if run is not None else build_dense(weight)

    def _planned(self, problem: Problem, tokens: int) -> Kernel | None:
        """The kernel that was chosen for this problem at this range of T, if this machine can run it."""
        name = self.plan.kernels.get(bucket_of(tokens)) if problem == self.plan.problem else None
        if name is None:
            return None
        kernel = find(name)
        fits = kernel.format == self.plan.format and kernel.supports(problem, self.weight, host_machine())
        return kernel if fits else None


_Table = dict[tuple[int, str], tuple[weakref.ref[Tensor], Executor]]

_EXECUTORS: _Table = {}


def executor_for(components: Sequence[Tensor], plan: str) -> Executor:
    """The executor of a stored weight and a plan, made at the first call.

    Raises
    ------
    FormatError
        If the plan or the components are not valid.
    """
    if not components:
        message = "a sparse operator was called without weight components; save the model again with this version"
        raise FormatError(message)
    values = components[-1]
    key = id(values), plan
    found = _EXECUTORS.get(key)
    if found is not None and found[0]() is values:
        return found[1]
    executor = _make(components, plan, values)
    _EXECUTORS[key] = weakref.ref(values, partial(_forget, key, _EXECUTORS)), executor
    return executor


def _forget(key: tuple[int, str], table: _Table, _: object) -> None:
    """Drop the executor of a tensor that died; the table is passed in, as globals may be gone at exit."""
    table.pop(key, None)


def version_of(tensor: Tensor) -> int:
    """How often `tensor` was changed in place; 0 for inference tensors, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _make(components: Sequence[Tensor], text: str, values: Tensor) -> Executor:
    plan = Plan.loads(text)
    unknown = [name for name in plan.kernels.values() if name not in kernel_names()]
    if unknown:
        message = f"the plan names unknown kernels {unknown}; known: {', '.join(kernel_names())}"
        raise FormatError(message)
    names = tuple(find_format(plan.format).layout)
    if len(names) != len(components):
        message = f"format {plan.format!r} has components {names}, got {len(components)} tensors"
        raise FormatError(message)
    stored = dict(zip(names, components, strict=True))
    stored[names[-1]] = values.detach()  # the tensor itself must be able to die: the executor goes with it
    weight = find_format(plan.format).from_components(plan.problem.matrix, stored, plan.parameters)
    return Executor(plan, weight, version_of(values))
