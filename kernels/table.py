"""The closed table of kernels: one class per kernel, found by name, by operator or by format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from sparta.kernels.formats import Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Problem


class Compiled(Protocol):
    """A kernel specialized for one weight; re-entrant, releases the GIL while it computes."""

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        """The result for a contiguous fp32 `x`: ``[T, I] -> [T, O]`` (linear), ``[N, C, H, W] -> NCHW`` (conv)."""
        ...


class Kernel(ABC):
    """One way to run one operator with the weight in one storage format."""

    name: ClassVar[str]
    """Unique name; also what reports and saved plans say."""
    problem: ClassVar[type[Problem]]
    """The operator: `Linear` or `Conv`."""
    format: ClassVar[str]
    """Name of the storage format of the weight."""
    reference: ClassVar[bool] = False
    """Portable and slow: the oracle of the others, never chosen for speed."""

    @abstractmethod
    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Whether this kernel can run the problem on this machine at all."""

    @abstractmethod
    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """Estimated seconds for one call on one thread with `tokens` columns (T, or N * OH * OW pixels)."""

    @abstractmethod
    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The callable: packs the weight, generates the code and loads it (or finds it in the cache).

        Raises
        ------
        KernelCompileError
            If the code cannot be generated or loaded on this machine.
        """


_TABLE: dict[str, Kernel] = {}

K = TypeVar("K", bound=type[Kernel])


def kernel() -> Callable[[K], K]:
    """Class decorator that adds a kernel to the table."""

    def add(cls: K) -> K:
        assert cls.name not in _TABLE, f"two kernels are called {cls.name!r}"
        _TABLE[cls.name] = cls()
        return cls

    return add


def find(name: str) -> Kernel:
    """The kernel called `name`; KeyError lists the known names."""
    if name not in _TABLE:
        message = f"no kernel is called {name!r}; known: {', '.join(sorted(_TABLE))}"
        raise KeyError(message)
    return _TABLE[name]


def kernel_names() -> tuple[str, ...]:
    """The names of all kernels."""
    return tuple(sorted(_TABLE))


def kernels_for(problem: Problem, *, format: str | None = None, reference: bool = False) -> tuple[Kernel, ...]:
    """All kernels of an operator, optionally of one storage format only."""
    return tuple(
        entry
        for entry in _TABLE.values()
        if isinstance(problem, entry.problem) and format in (None, entry.format) and entry.reference == reference
    )
