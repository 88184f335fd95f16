"""Shadows: a model seen in eval mode with some parameters replaced, without copying or touching the original."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparta.tesa.errors import CaptureError, MaskError
from sparta.tesa.naming import module_tensors, named_tensors, storage_key, unwrap, walk, wrapper_of


def masked(model: nn.Module, replacements: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A shallow clone of `model` in eval mode whose named parameters are replaced; all else is shared.

    This is the masked dense model: the oracle of every check and what runs where nothing faster is found. Hooks, tied
    weights, shared modules, `torch.nn.utils.prune`, weight norm and parametrizations keep working; modules wrapped by
    NNI become plain modules with their unmasked parameters. Nothing is deep-copied and nothing of `model` changes.

    Parameters
    ----------
    model
        Any module; wrappers of `torch.compile` and `DataParallel` are taken off.
    replacements
        Qualified name -> tensor of the same shape. Every alias of the same storage is replaced alike.

    Raises
    ------
    MaskError
        If a name is not one of the model's, or a shape differs.

    Examples
    --------
    >>> net = nn.Linear(2, 1, bias=False)
    >>> shadow = masked(net, {"weight": torch.zeros(1, 2)})
    >>> shadow(torch.ones(1, 2)).item(), net.training
    (0.0, True)
    """
    model = unwrap(model)
    tensors = named_tensors(model)
    swap: dict[Hashable, Tensor] = {}
    problems = []
    for name, tensor in (replacements or {}).items():
        original = tensors.get(name)
        if original is None or original.shape != tensor.shape:
            have = "no such tensor" if original is None else f"shape {tuple(original.shape)}"
            problems.append(f"{name}: {have} in the model, replacement of shape {tuple(tensor.shape)}")
            continue
        swap[storage_key(original)] = _like(original, tensor)
    if problems:
        msg = "replacements do not fit the model:\n  " + "\n  ".join(problems)
        raise MaskError(msg)
    return _Cloner(swap).clone_tree(model)


def isolated(model: nn.Module) -> nn.Module:
    """`masked(model)` with copies of the buffers: for a run whose forward may write to them."""
    parameters = {id(parameter) for parameter in model.parameters()}
    tensors = named_tensors(model)
    return masked(model, {name: t.detach().clone() for name, t in tensors.items() if id(t) not in parameters})


def _like(original: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` as a parameter where `original` is one."""
    if not isinstance(original, nn.Parameter) or tensor is original:
        return tensor
    return nn.Parameter(tensor.detach(), requires_grad=original.requires_grad)


class _Cloner:
    """Clones a module tree; what refers to a module or a replaced tensor is made to refer to its clone."""

    def __init__(self, swap: Mapping[Hashable, Tensor]) -> None:
        self._swap = swap
        self._clones: dict[int, nn.Module] = {}
        self._containers: dict[int, Any] = {}
        self._keep: list[Any] = []

    def clone_tree(self, model: nn.Module) -> nn.Module:
        """The clone of `model`; empty clones come first, since attributes may refer to any module of the tree."""
        originals: dict[int, nn.Module] = {id(module): module for _, module in walk(model)}
        for key, module in originals.items():
            if isinstance(module, torch.jit.ScriptModule):
                msg = f"{type(module).__name__} is TorchScript, which cannot be captured: pass the original nn.Module"
                raise CaptureError(msg)
            self._clones[key] = object.__new__(type(module))
        for key, module in originals.items():
            self._fill(self._clones[key], module)
        return self._clones[id(model)]

    def _fill(self, clone: nn.Module, module: nn.Module) -> None:
        state = dict(module.__dict__)
        parameters, buffers = module_tensors(module)
        wrapper = wrapper_of(module)
        if wrapper is not None:
            state["_modules"] = {name: child for name, child in module._modules.items() if child is not wrapper}
            state["forward"] = wrapper.__dict__.get("module_forward")
            if getattr(state["forward"], "__func__", None) is type(module).forward or state["forward"] is None:
                del state["forward"]
        for name in ("train", "eval"):  # a module of torch.export forbids both; the clone is in eval mode for good
            state.pop(name, None)
        # The compiled call of `module.compile()` runs the original weights.
        state.update(_parameters=parameters, _buffers=buffers, training=False, _compiled_call_impl=None)
        clone.__dict__.update({name: self._rebind(value) for name, value in state.items()})

    def _rebind(self, value: Any) -> Any:
        """`value` with every reference to the original tree redirected; the same object where there is none."""
        if isinstance(value, Tensor):
            return self._swap.get(storage_key(value), value) if self._swap else value
        if isinstance(value, nn.Module):
            return self._clones.get(id(value), value)
        if type(value) in (dict, OrderedDict, defaultdict, list, set, tuple):
            return self._container(value)
        return self._callable(value)

    def _container(self, value: Any) -> Any:
        """A copy, so that a forward that stores into a container of the clone leaves the original's alone."""
        if id(value) in self._containers:
            return self._containers[id(value)]
        self._keep.append(value)
        if isinstance(value, tuple):
            items = tuple(map(self._rebind, value))
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        copy = self._containers[id(value)] = value.copy()
        if isinstance(value, dict):
            copy.update({key: self._rebind(item) for key, item in value.items()})
        elif isinstance(value, set):
            copy.clear()
            copy.update(map(self._rebind, value))
        else:
            copy[:] = map(self._rebind, value)
        return copy

    def _callable(self, value: Any) -> Any:
        """Bound methods, partials and closures over modules of the tree: monkey-patched forwards, and hooks."""
        if isinstance(value, types.MethodType):
            owner = self._clones.get(id(value.__self__))
            return value if owner is None else types.MethodType(value.__func__, owner)
        if type(value) is functools.partial:
            return self._partial(value)
        if isinstance(value, types.FunctionType) and value.__closure__:
            return self._closure(value)
        return value

    def _partial(self, value: functools.partial[Any]) -> functools.partial[Any]:
        func, args = self._callable(value.func), tuple(map(self._rebind, value.args))
        copy = functools.partial(func, *args, **{name: self._rebind(item) for name, item in value.keywords.items()})
        copy.__dict__.update(value.__dict__)
        return copy

    def _closure(self, value: types.FunctionType) -> types.FunctionType:
        if id(value) in self._containers:
            return self._containers[id(value)]  # type: ignore[no-any-return]
        self._containers[id(value)] = value  # a function may close over itself
        closure = value.__closure__ or ()
        cells = tuple(map(self._cell, closure))
        if all(new is old for new, old in zip(cells, closure, strict=True)):
            return value
        copy = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        copy.__kwdefaults__ = value.__kwdefaults__
        copy.__dict__.update(value.__dict__)
        self._containers[id(value)] = copy
        return copy

    def _cell(self, cell: types.CellType) -> types.CellType:
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            return cell
        # Containers in a closure are shared with the user on purpose (a list that a hook fills): left alone.
        rebound = self._clones.get(id(content)) if isinstance(content, nn.Module) else self._callable(content)
        return cell if rebound is None or rebound is content else types.CellType(rebound)
