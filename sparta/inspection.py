"""What a file holds: the sparsity of a saved program's weights, or of a file of masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparta.exported import load_program
from sparta.reporting.document import Cell, Column, Document, Table
from sparta.reporting.layout import percent_text, shape_text
from sparta.tesa.io import load_masks
from sparta.tesa.patterns import find_pattern


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One weight or mask: where its zeros are."""

    name: str
    shape: tuple[int, ...]
    pattern: str
    density: float
    zeros: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A file and the matrices in it (vectors such as biases are left out)."""

    path: str
    kind: str
    tensors: tuple[TensorFacts, ...]

    @property
    def density(self) -> float:
        """Fraction of nonzero elements in all tensors together."""
        total = sum(_elements(facts) for facts in self.tensors)
        return 1 - sum(facts.zeros for facts in self.tensors) / max(total, 1)


def inspect_file(path: Path) -> Inspection:
    """What `path` holds: a program saved by `torch.export.save` (``.pt2``), else a file of masks.

    Raises
    ------
    FormatError
        If it is neither.
    """
    if path.suffix == ".pt2":
        state = load_program(path).program.state_dict
        return Inspection(str(path), "exported program", tuple(_facts(state)))
    return Inspection(str(path), "masks", tuple(_facts(_flat(load_masks(path)))))


def _flat(masks: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for name, value in masks.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is not None:
            flat[prefix + name] = value
    return flat


def _facts(tensors: Mapping[str, Tensor]) -> Iterator[TensorFacts]:
    for name, tensor in tensors.items():
        if tensor.dim() >= 2 and tensor.numel():
            zeros = int((tensor == 0).sum())
            pattern = str(find_pattern(tensor.detach()))
            yield TensorFacts(name, tuple(tensor.shape), pattern, 1 - zeros / tensor.numel(), zeros)


def _elements(facts: TensorFacts) -> int:
    count = 1
    for size in facts.shape:
        count *= size
    return count


_COLUMNS: tuple[tuple[Column, Callable[[TensorFacts], Cell]], ...] = (
    (Column("tensor"), lambda facts: Cell(facts.name)),
    (Column("shape", "right"), lambda facts: Cell(shape_text(facts.shape))),
    (Column("pattern"), lambda facts: Cell(facts.pattern)),
    (Column("density", "right"), lambda facts: Cell(percent_text(facts.density), facts.density)),
)


def document(inspection: Inspection) -> Document:
    """The inspection in words."""
    rows = tuple(tuple(cell(facts) for _, cell in _COLUMNS) for facts in inspection.tensors)
    facts = (("kind", inspection.kind), ("density", percent_text(inspection.density)))
    columns = tuple(column for column, _ in _COLUMNS)
    return Document(inspection.path, facts, (Table("Tensors", columns, rows),) if rows else ())
