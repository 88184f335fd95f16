"""The storage formats: what each of them promises, their closed table, and the checks of stored components."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sparta.tesa.errors import FormatError

VALUE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Element types a weight may be stored in; kept as given."""

INDEX_DTYPES = (torch.int32,)

_MAX_SIZE = 2**31 - 1


class Format(ABC):
    """A weight matrix [O, I] in one storage format; immutable.

    Zeros, -0.0 included, are never stored on purpose (a block that holds a nonzero stores all its elements).
    """

    __slots__ = ()

    name: ClassVar[str]
    """The name in the table, set by `format`."""
    layout: ClassVar[Mapping[str, tuple[tuple[torch.dtype, ...], int]]]
    """Component name -> (accepted dtypes, number of dimensions)."""

    shape: tuple[int, int]
    values: Tensor

    @classmethod
    @abstractmethod
    def from_dense(cls, weight: Tensor, **parameters: Any) -> Format:
        """`weight` [O, I] in this format."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The weight [O, I] with zeros where nothing is stored."""

    @classmethod
    @abstractmethod
    def problems(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Iterator[str]:
        """What contradicts the format in components whose names, dtypes and ranks are right."""

    @classmethod
    @abstractmethod
    def restore(cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> Format:
        """The weight made of components that have no problems."""

    def components(self) -> dict[str, Tensor]:
        """The tensors that are stored, by their torch names."""
        return {name: getattr(self, name) for name in self.layout}

    def parameters(self) -> dict[str, Any]:
        """The keyword arguments of `from_dense` that gave this layout."""
        return {}

    @property
    def nbytes(self) -> int:
        """Bytes of all components."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.components().values())

    @property
    def nnz(self) -> int:
        """Number of stored elements, zeros inside blocks and padding included."""
        return self.values.numel()

    @property
    def density(self) -> float:
        """Stored elements over all elements."""
        return self.nnz / (self.shape[0] * self.shape[1])

    @classmethod
    def from_components(
        cls, shape: tuple[int, int], components: Mapping[str, Tensor], parameters: Mapping[str, Any]
    ) -> Format:
        """The weight that untrusted components describe, every size and index checked.

        Raises
        ------
        FormatError
            Listing everything that contradicts the format.
        """
        found = _generic_problems(cls, shape, components) or list(cls.problems(shape, components, parameters))
        if found:
            listing = "\n".join(f"  - {problem}" for problem in found)
            message = (
                f"a weight of shape {shape!r} stored as {cls.name!r} is damaged or was not written by sparta:\n"
                f"{listing}\nCompile and save the model again."
            )
            raise FormatError(message)
        return cls.restore(shape, {name: tensor.contiguous() for name, tensor in components.items()}, parameters)


_TABLE: dict[str, type[Format]] = {}

F = TypeVar("F", bound=type[Format])


def format(name: str) -> Callable[[F], F]:
    """Class decorator that adds a storage format to the table under `name`."""

    def add(cls: F) -> F:
        assert name not in _TABLE, f"two formats are called {name!r}"
        cls.name = name
        _TABLE[name] = cls
        return cls

    return add


def find_format(name: str) -> type[Format]:
    """The format called `name`; FormatError lists the known names.

    Examples
    --------
    >>> find_format("csr").name
    'csr'
    """
    if name not in _TABLE:
        message = f"no storage format is called {name!r}; known: {', '.join(sorted(_TABLE))}"
        raise FormatError(message)
    return _TABLE[name]


def format_names() -> tuple[str, ...]:
    """The names of all formats."""
    return tuple(sorted(_TABLE))


def _generic_problems(cls: type[Format], shape: object, components: Mapping[str, Tensor]) -> list[str]:
    """Problems that make the format's own checks meaningless."""
    found = []
    if not (isinstance(shape, tuple) and len(shape) == 2 and all(is_size(size) for size in shape)):
        found.append(f"the shape must be two sizes from 1 to {_MAX_SIZE}")
    missing, extra = cls.layout.keys() - components.keys(), components.keys() - cls.layout.keys()
    found += [f"component {name!r} is missing" for name in sorted(missing)]
    found += [f"component {name!r} is unknown" for name in sorted(extra)]
    for name in sorted(cls.layout.keys() & components.keys()):
        found += _tensor_problems(name, components[name], *cls.layout[name])
    return found


def _tensor_problems(name: str, tensor: object, dtypes: tuple[torch.dtype, ...], rank: int) -> Iterator[str]:
    if not isinstance(tensor, Tensor):
        yield f"component {name!r} is a {type(tensor).__name__}, not a tensor"
    elif tensor.layout != torch.strided or tensor.device.type != "cpu":
        yield f"component {name!r} must be a plain CPU tensor, not {tensor.layout} on {tensor.device}"
    elif tensor.dtype not in dtypes:
        yield f"component {name!r} has dtype {tensor.dtype}, expected one of {', '.join(map(str, dtypes))}"
    elif tensor.dim() != rank:
        yield f"component {name!r} has {tensor.dim()} dimensions, expected {rank}"


def is_size(value: object) -> bool:
    """Whether `value` is an int that can be a dimension of a weight."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIZE


def offsets_problems(name: str, offsets: Tensor, *, count: int, total: int) -> Iterator[str]:
    """What keeps `offsets` from cutting `total` entries into `count` consecutive runs."""
    if offsets.numel() != count + 1:
        yield f"component {name!r} has {offsets.numel()} elements, expected {count + 1}"
    elif int(offsets[0]) != 0 or int(offsets[-1]) != total:
        yield f"component {name!r} runs from {int(offsets[0])} to {int(offsets[-1])}, expected 0 to {total}"
    elif bool((offsets[1:] < offsets[:-1]).any()):
        yield f"component {name!r} decreases at position {int((offsets[1:] < offsets[:-1]).nonzero()[0])}"


def range_problems(name: str, indices: Tensor, *, low: int = 0, limit: int) -> Iterator[str]:
    """Which of `indices` lie outside ``low <= index < limit``."""
    outside = (indices < low) | (indices >= limit)
    if bool(outside.any()):
        yield f"component {name!r} holds {int(indices[outside][0])}, outside {low} to {limit - 1}"


def order_problems(name: str, indices: Tensor, offsets: Tensor) -> Iterator[str]:
    """Whether `indices` fail to increase strictly inside each of the runs that `offsets` cuts."""
    if indices.numel() < 2:
        return
    starts = torch.zeros(indices.numel() + 1, dtype=torch.bool)
    starts[offsets.long()] = True
    stuck = (indices[1:] <= indices[:-1]) & ~starts[1:-1]
    if bool(stuck.any()):
        yield f"component {name!r} is not strictly increasing within a row at position {int(stuck.nonzero()[0]) + 1}"


def check_weight(weight: Tensor) -> None:
    """Asserts that `weight` is a matrix this package can store."""
    assert weight.dim() == 2, f"a weight matrix has two dimensions, not {weight.dim()}"
    assert min(weight.shape) > 0, f"a weight matrix has no empty dimension, got {tuple(weight.shape)}"
    assert weight.dtype in VALUE_DTYPES, f"cannot store {weight.dtype}"
    assert weight.numel() <= _MAX_SIZE, "int32 indices cannot address so large a weight"


def offsets_of(counts: Tensor) -> Tensor:
    """int32 offsets [n + 1] of consecutive runs with the given lengths [n]."""
    offsets = torch.zeros(counts.numel() + 1, dtype=torch.int32)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets
