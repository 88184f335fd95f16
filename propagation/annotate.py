"""Annotate: the masks of the user multiplied into the tensors of a captured graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sparta.propagation.stages import Annotated, Captured
from sparta.tesa.masks import Masks, NameTable, resolve_masks


def annotate(captured: Captured, masks: Masks = None) -> Annotated:
    """The captured model with masked weights: exactly +0.0 where pruned, the model's own objects where not masked.

    Parameters
    ----------
    captured
        The graph.
    masks
        Any form that `sparta.optimize` takes, or the result of `normalize_masks`.

    Raises
    ------
    MaskError
        If a mask does not fit; the message lists every problem.

    Examples
    --------
    >>> from sparta.propagation import capture
    >>> captured = capture(torch.nn.Linear(2, 1), (torch.randn(3, 2),))
    >>> annotated = annotate(captured, {"weight": torch.tensor([[True, False]])})
    >>> annotated.weights["p_weight"][0, 1].item(), list(annotated.masks)
    (0.0, ['p_weight'])
    """
    by_name = resolve_masks(masks, _name_table(captured))
    used = {placeholder: by_name[name] for placeholder, name in captured.names.items() if name in by_name}
    partial = {placeholder: mask for placeholder, mask in used.items() if not bool(mask.all())}
    weights = {
        placeholder: _prune(tensor, partial[placeholder]) if placeholder in partial else tensor
        for placeholder, tensor in captured.tensors.items()
    }
    return Annotated(captured=captured, weights=weights, masks=partial)


def masked_weights(annotated: Annotated) -> dict[str, Tensor]:
    """Qualified name -> masked tensor, for the masked tensors: what `masked` needs to build the masked dense model."""
    names = annotated.captured.names
    return {names[placeholder]: annotated.weights[placeholder] for placeholder in annotated.masks}


def unused_masks(captured: Captured, masks: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names in normalized `masks` of tensors that the captured call never uses."""
    used = set(captured.names.values())
    return tuple(name for name in masks if name not in used)


def _prune(tensor: Tensor, mask: Tensor) -> Tensor:
    """`tensor` with +0 where pruned; selected, not multiplied, so that no NaN, infinity or sign of zero is left."""
    return torch.where(mask, tensor.detach(), torch.zeros((), dtype=tensor.dtype, device=tensor.device))


def _name_table(captured: Captured) -> NameTable:
    """The names of the whole model; tensors that the graph does not use have no shape to check against."""
    used = {name: captured.tensors[placeholder] for placeholder, name in captured.names.items()}
    return NameTable(aliases=captured.aliases, tensors=used)
