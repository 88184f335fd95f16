"""Module-wise capture: the largest parts of a model that are graphs, when the whole is not one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call, bind
from sparta.propagation.capture import capture
from sparta.propagation.export import explain
from sparta.propagation.guards import mismatch
from sparta.propagation.shadow import isolated, masked
from sparta.propagation.stages import Captured
from sparta.tesa.errors import CaptureError, InputError
from sparta.tesa.naming import walk

ATTEMPTS = 64
"""Most submodules that are tried: a capture takes a second, and a model that fails everywhere has thousands."""

log = logging.getLogger("sparta.propagation")


def capture_tree(
    model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, *, dynamic_batch: bool = True
) -> dict[str, Captured]:
    """Submodule name -> captured graph, for the largest submodules with parameters that can be captured.

    The model runs once on the example; each submodule is captured with the arguments it got. Regions never overlap.
    A submodule that is called with arguments its graph cannot take is split further; what the example does not reach
    is left out. Names in a `Captured` are relative to its submodule.

    Examples
    --------
    >>> class Branch(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    ...
    ...     def forward(self, x):
    ...         return self.body(x) if float(x.sum()) > 0 else x
    >>> list(capture_tree(Branch(), (torch.ones(2, 4),)))
    ['body']
    """
    tree = _Tree.record(model, args, kwargs or {})
    regions: dict[str, Captured] = {}
    queue, attempts = deque(tree.children("")), 0
    while queue and attempts < ATTEMPTS:
        name = queue.popleft()
        captured = tree.capture(name, dynamic_batch)
        attempts += bool(tree.calls(name))
        if captured is not None:
            regions[name] = captured
        else:
            queue.extend(tree.children(name))
    if queue:
        log.warning("module-wise capture stopped after %d attempts; submodules not tried: %s", attempts, list(queue))
    return regions


class _Tree:
    """A shadow of the model with the calls that its submodules received."""

    def __init__(self, shadow: nn.Module) -> None:
        self._shadow = shadow
        self._calls: dict[int, list[Call]] = {id(module): [] for module in shadow.modules()}
        self._taken: set[int] = set()

    @classmethod
    def record(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Tree:
        """Run the model once, on copies of its buffers, and note the calls."""
        tree, runner = cls(masked(model)), isolated(model)
        twins = {module: running for (_, module), (_, running) in zip(walk(tree._shadow), walk(runner), strict=True)}
        for module, running in twins.items():
            # Before the user's own hooks, since those run again in a capture.
            note = partial(_note, tree._calls[id(module)])
            running.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
        try:
            with torch.no_grad():
                runner(*args, **kwargs)
        except Exception as error:  # user code
            raise CaptureError(explain(error, model)) from error
        return tree

    def calls(self, name: str) -> list[Call]:
        """The calls of a submodule, in order."""
        return self._calls[id(self._shadow.get_submodule(name))]

    def children(self, name: str) -> list[str]:
        """Names of the direct submodules that have parameters and are not captured under another name."""
        return [
            f"{name}.{child}".lstrip(".")
            for child, module in self._shadow.get_submodule(name).named_children()
            if id(module) not in self._taken and next(module.parameters(), None) is not None
        ]

    def capture(self, name: str, dynamic_batch: bool) -> Captured | None:
        """The graph of one submodule if it serves all calls that the submodule received."""
        module, calls = self._shadow.get_submodule(name), self.calls(name)
        if not calls or id(module) in self._taken:
            return None
        try:
            captured = capture(module, *calls[0], dynamic_batch=dynamic_batch)
        except (CaptureError, InputError) as error:
            log.debug("%s is no region: %s", name, error)
            return None
        if not all(_serves(captured, module, call) for call in calls[1:]):
            return None
        self._taken.add(id(module))
        return captured


def _note(calls: list[Call], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A forward pre-hook that appends the arguments to `calls`."""
    calls.append((args, kwargs))


def _serves(captured: Captured, module: nn.Module, call: Call) -> bool:
    """Whether the graph may run another call of the same module."""
    args, kwargs = bind(signature(module.forward), *call)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    return spec == captured.in_spec and mismatch(captured, leaves) is None
