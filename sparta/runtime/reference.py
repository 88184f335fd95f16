"""The masked dense model: the meaning of every optimized model, and what runs where nothing faster is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sparta.propagation.shadow import masked
from sparta.tesa import normalize_masks
from sparta.tesa.naming import named_tensors


def masked_model(model: nn.Module, masks: Any = None) -> nn.Module:
    """The masked dense model in eval mode: shares everything with `model` except the weights that have a mask.

    A pruned element is exactly 0, whatever the weight was there.
    """
    kept = normalize_masks(masks, model)
    named = named_tensors(model)
    return masked(model, {name: named[name].detach().masked_fill(~mask, 0) for name, mask in kept.items()})


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """Trial runs inside leave no trace in the buffers of `model`, even of a forward that counts its calls."""
    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers() if buffer.layout is torch.strided]
    try:
        yield
    finally:
        with torch.inference_mode():
            for buffer, before in saved:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
