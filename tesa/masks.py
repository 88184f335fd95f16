"""Masks as the user gives them, turned into one form: canonical name -> bool tensor of the full shape."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparta.tesa.errors import MaskError
from sparta.tesa.io import load_masks
from sparta.tesa.naming import NNI_WRAPPER, alias_table, named_tensors, unwrap, walk, wrapper_of

Masks = Mapping[str, Any] | str | os.PathLike[str] | None
"""``{module: {"weight": mask}}``, ``{"module.weight": mask}``, a path of a file with either, or None."""

TRANSPARENT = ("_orig_mod", NNI_WRAPPER)
"""Path segments that wrappers add anywhere in a name."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """What masks are resolved against: every name of a model.

    Parameters
    ----------
    aliases
        Every name -> canonical name.
    tensors
        Canonical name -> tensor; a name without tensor is accepted unchecked (the graph does not use it).
    """

    aliases: Mapping[str, str]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> NameTable:
        """The names and tensors of `model`."""
        return cls(alias_table(model), named_tensors(model))


def normalize_masks(masks: Masks, model: nn.Module) -> dict[str, Tensor]:
    """Canonical parameter name -> bool mask (True = keep) of the full shape, contiguous, on the parameter's device.

    Parameters
    ----------
    masks
        Any supported form; None reads the masks that `torch.nn.utils.prune` or an NNI pruner left in the model.
        A mask of None masks nothing. The inputs are not modified.
    model
        What the masks belong to; prefixes that wrappers add to names are understood.

    Raises
    ------
    MaskError
        If a mask does not fit; the message lists every problem with its fix.

    Examples
    --------
    >>> normalize_masks({"module.weight": torch.tensor([[1.0, 0.0]])}, nn.Linear(2, 1))
    {'weight': tensor([[ True, False]])}
    """
    return resolve_masks(_wrapper_masks(model) if masks is None else masks, NameTable.of(model))


def resolve_masks(masks: Masks, table: NameTable) -> dict[str, Tensor]:
    """`normalize_masks` against a table of names instead of a model."""
    if isinstance(masks, str | os.PathLike):
        masks = load_masks(masks)
    if not isinstance(masks, Mapping | None):
        msg = f"masks is a {type(masks).__name__}; pass a dictionary, the path of a file, or None"
        raise MaskError(msg)
    resolver = _Resolver(table)
    for name, mask in _entries(masks or {}):
        resolver.add(name, mask)
    found = resolver.result()
    for name, mask in _prune_leftovers(table):
        canonical = table.aliases[name]
        found[canonical] = found[canonical] & mask if canonical in found else mask
    return found


def _entries(masks: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name of a tensor, mask) for nested, flat and mixed forms; masks of None left out."""
    for name, value in masks.items():
        targets = value.items() if isinstance(value, Mapping) else [("", value)]
        for target, mask in targets:
            if mask is not None:
                yield ".".join(str(part) for part in (name, target) if part != ""), mask


def _wrapper_masks(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The masks that an NNI pruner keeps in the wrappers of `model`."""
    return {
        name: {
            target: mask
            for target in wrapper._parameters
            if (mask := wrapper._buffers.get(f"{target}_mask")) is not None
        }
        for name, module in walk(unwrap(model))
        if (wrapper := wrapper_of(module)) is not None
    }


def _prune_leftovers(table: NameTable) -> Iterator[tuple[str, Tensor]]:
    """The masks of `torch.nn.utils.prune`: the model multiplies ``x_orig`` by ``x_mask`` in every call."""
    for name, tensor in table.tensors.items():
        mask = table.tensors.get(f"{name.removesuffix('_orig')}_mask")
        if name.endswith("_orig") and mask is not None and mask.shape == tensor.shape and _check_values(mask) is None:
            yield name, (mask.detach() != 0).to(tensor.device).contiguous()


class _Resolver:
    """Collects masks by canonical name, and every problem on the way."""

    def __init__(self, table: NameTable) -> None:
        self._table = table
        self._bare: dict[str, str] = {}
        for name, canonical in table.aliases.items():
            self._bare.setdefault(_bare(name), canonical)
        self._found: dict[str, tuple[str, Tensor]] = {}
        self._problems: list[str] = []

    def add(self, name: str, mask: Any) -> None:
        """Take one mask, or note why it does not fit."""
        canonical = self._lookup(name)
        problem = _check_values(mask) or self._check_target(name, canonical, mask)
        if problem is not None:
            self._problems.append(f"{name}: {problem}")
        elif canonical is not None:
            self._merge(name, canonical, mask)

    def result(self) -> dict[str, Tensor]:
        """All masks; raises one error for all problems."""
        if self._problems:
            msg = f"{len(self._problems)} problem(s) with the masks:\n  " + "\n  ".join(self._problems)
            raise MaskError(msg)
        return {canonical: mask for canonical, (_, mask) in self._found.items()}

    def _lookup(self, name: str) -> str | None:
        """The canonical name for `name` under any wrapper prefixes; a pruned ``x`` is stored as ``x_orig``."""
        for candidate in (name, f"{name}_orig"):
            canonical = self._table.aliases.get(candidate) or self._bare.get(_bare(candidate))
            if canonical is not None:
                return canonical
        return None

    def _check_target(self, name: str, canonical: str | None, mask: Tensor) -> str | None:
        """What is wrong with where a mask goes."""
        if canonical is None:
            return None if _keeps_all_activations(name, mask) else self._unknown(name)
        tensor = self._table.tensors.get(canonical)
        return None if tensor is None else _check_shape(mask, tensor.shape)

    def _merge(self, name: str, canonical: str, mask: Tensor) -> None:
        tensor = self._table.tensors.get(canonical)
        keep = (mask.detach() != 0).to(device=mask.device if tensor is None else tensor.device).contiguous()
        before = self._found.get(canonical)
        if before is not None and not torch.equal(before[1], keep):
            text = f"masks of {before[0]} and {name} differ but are for one tensor; what either prunes is pruned"
            warnings.warn(text, stacklevel=2)
            keep = keep & before[1]
        self._found[canonical] = name, keep

    def _unknown(self, name: str) -> str:
        """Why `name` cannot be masked, and what could be meant."""
        module, _, target = _bare(name).rpartition(".")
        if target.startswith(("_input_", "_output_")):
            return "masks of activations are not supported; mask the weights that produce or consume them"
        parametrized = (f"{module}.parametrizations.{target}.".lstrip("."), f"{_bare(name)}_g")
        if any(known.startswith(parametrized) for known in self._bare):
            return "the tensor is computed by a parametrization; remove it first (torch.nn.utils.parametrize)"
        inside = [known for known in self._bare if known.startswith(f"{_bare(name)}.")]
        close = inside or difflib.get_close_matches(_bare(name), self._bare, n=3)
        hint = f"did you mean {' or '.join(close[:3])}?" if close else "see model.named_parameters()"
        return f"the model has no parameter of this name; {hint}"


def _bare(name: str) -> str:
    """`name` without the segments of wrappers."""
    parts = [part for part in name.split(".") if part not in TRANSPARENT]
    while len(parts) > 1 and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def _keeps_all_activations(name: str, mask: Tensor) -> bool:
    """Whether this is the mask of an activation that masks nothing, as some NNI configurations write it."""
    return name.rpartition(".")[2].startswith(("_input_", "_output_")) and bool((mask != 0).all())


def _check_values(mask: Any) -> str | None:
    """What is wrong with a mask in itself."""
    if not isinstance(mask, Tensor) or mask.layout is not torch.strided or mask.is_complex():
        kind = f"{mask.layout} tensor" if isinstance(mask, Tensor) else type(mask).__name__
        return f"mask is a {kind}; pass a dense tensor of 0 (prune) and 1 (keep)"
    if mask.dtype is torch.bool:
        return None
    wrong = mask[(mask != 0) & (mask != 1)]
    if wrong.numel() == 0:
        return None
    nans = int(torch.isnan(wrong).sum())
    what = f"{nans} NaN" if nans else f"{wrong.numel()} values such as {wrong.flatten()[0].item():g}"
    return f"mask holds {what}; only 0 (prune) and 1 (keep) are allowed, for instance mask = (score > threshold)"


def _check_shape(mask: Tensor, shape: torch.Size) -> str | None:
    """What is wrong with the shape of a mask for a tensor of `shape`."""
    if mask.shape == shape:
        return None
    text = f"mask has shape {tuple(mask.shape)}, the parameter {tuple(shape)}"
    fits = mask.dim() == len(shape) and all(have in (1, want) for have, want in zip(mask.shape, shape, strict=True))
    return f"{text}; " + (f"use mask.expand{tuple(shape)}" if fits else "was it made for another version of the model?")
