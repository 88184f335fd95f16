"""Names of a model's tensors: one canonical name for every storage, whatever wraps or shares it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import torch
from torch import Tensor, nn

NNI_WRAPPER = "_nni_wrapper"
"""Submodule that NNI's pruners and quantizers add to a wrapped module; it owns the real parameters."""


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside `torch.compile` and `DataParallel` wrappers.

    Examples
    --------
    >>> layer = torch.nn.Linear(2, 2)
    >>> unwrap(torch.nn.DataParallel(layer)) is layer
    True
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def wrapper_of(module: nn.Module) -> nn.Module | None:
    """The NNI wrapper of a module, if it has one."""
    wrapper = getattr(module, NNI_WRAPPER, None)
    return wrapper if isinstance(wrapper, nn.Module) else None


def module_tensors(module: nn.Module) -> tuple[dict[str, nn.Parameter | None], dict[str, Tensor | None]]:
    """The parameters and buffers that belong to one module itself, as they would be without an NNI wrapper.

    NNI moves a parameter to ``module._nni_wrapper`` and leaves a scratch buffer of the same name behind.
    """
    parameters, buffers = dict(module._parameters), dict(module._buffers)
    wrapper = wrapper_of(module)
    if wrapper is not None:
        for name, parameter in wrapper._parameters.items():
            if name in buffers:
                del buffers[name]
                parameters[name] = parameter
    return parameters, buffers


def walk(model: nn.Module, prefix: str = "", path: tuple[nn.Module, ...] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Every (name, module) of the tree, shared modules under each of their names, NNI wrappers left out."""
    yield prefix, model
    for name, child in model._modules.items():
        if child is not None and name != NNI_WRAPPER and not any(child is parent for parent in (*path, model)):
            yield from walk(child, f"{prefix}.{name}" if prefix else name, (*path, model))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer of `model` under each of its names, parameters first.

    Examples
    --------
    >>> sorted(named_tensors(torch.nn.Sequential(torch.nn.Linear(2, 2))))
    ['0.bias', '0.weight']
    """
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for prefix, module in walk(unwrap(model)):
        own_parameters, own_buffers = module_tensors(module)
        parameters |= _qualified(prefix, own_parameters)
        buffers |= _qualified(prefix, own_buffers)
    return parameters | buffers


def _qualified(prefix: str, own: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}" if prefix else name: tensor for name, tensor in own.items() if tensor is not None}


def storage_key(tensor: Tensor) -> Hashable:
    """What two tensors have in common exactly when they are the same view of the same storage."""
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
    if not plain or tensor.device.type == "meta" or tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def alias_table(model: nn.Module) -> dict[str, str]:
    """The canonical (first) name for every name of every parameter and buffer; tied weights share one.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    >>> net[1].weight = net[0].weight
    >>> alias_table(net)["1.weight"]
    '0.weight'
    """
    first: dict[Hashable, str] = {}
    return {name: first.setdefault(storage_key(t), name) for name, t in named_tensors(model).items()}
