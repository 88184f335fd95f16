"""Tensors of a module by their dotted names."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def attribute(module: nn.Module, name: str) -> Any:
    """What `module` holds under a dotted name."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def place(root: nn.Module, name: str, value: Any) -> None:
    """Hold `value` in `root` under a dotted name, a tensor as buffer, with empty modules for the parts before dots."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        child = root._modules[part]
        assert child is not None
        root = child
    if isinstance(value, Tensor):
        plain = type(value) is Tensor and not value.requires_grad  # kept as is, as executors are found by identity
        root.register_buffer(leaf, value if plain else value.detach())
    else:
        setattr(root, leaf, value)
