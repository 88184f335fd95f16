"""The tensors a folded module owns: each registered once, named after the parameter it comes from."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, fx


class Constants:
    """Registers tensors as buffers of the folded module; equal storage is registered once."""

    def __init__(self, root: torch.nn.Module, graph: fx.Graph) -> None:
        self.names: dict[str, str] = {}
        self._root, self._graph = root, graph
        self._known: dict[Hashable, str] = {}

    def emit(self, tensor: Tensor, name: str, *, qualified: bool = False) -> fx.Node:
        """A node that reads `tensor`; `qualified` says that `name` is a parameter or buffer of the model."""
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or key not in self._known:
            self._known[key] = self._register(tensor, name, qualified)
        return self._graph.get_attr(self._known[key])

    def _register(self, tensor: Tensor, name: str, qualified: bool) -> str:
        attribute = unique = name.replace(".", "__") or "constant"
        suffix = 0
        while hasattr(self._root, unique) or hasattr(fx.GraphModule, unique):
            suffix += 1
            unique = f"{attribute}_{suffix}"
        self._root.register_buffer(unique, tensor)
        if qualified:
            self.names[unique] = name
        return unique

    def prune(self) -> None:
        """Drop the buffers that no node reads."""
        used = {node.target for node in self._graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in self._root.named_buffers(recurse=False) if name not in used]:
            delattr(self._root, name)
            self.names.pop(name, None)
