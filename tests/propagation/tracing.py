"""A capture for tests that is ten times cheaper than `torch.export`: the same operators, static shapes only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from sparta.propagation import annotate
from sparta.propagation.engine import propagate
from sparta.propagation.normalize import normalize
from sparta.propagation.stages import Captured, Propagated
from tests.propagation.random_nets import RandomNet


def trace(model: nn.Module, *args: Tensor) -> Captured:
    """The graph of `model(*args)` for a model without in-place operators, mutation or integer inputs."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    structure = []

    def flat(*inputs: Tensor) -> list[Tensor]:
        result = functional_call(model, dict(zip(tensors, inputs, strict=False)), inputs[len(tensors) :])
        leaves, spec = pytree.tree_flatten(result)
        structure.append(spec)
        return leaves

    with torch.no_grad():
        traced = make_fx(flat, tracing_mode="fake", pre_dispatch=True)(*tensors.values(), *args)
    root = nn.Module()
    for node in traced.graph.find_nodes(op="get_attr"):
        root.register_buffer(node.target, getattr(traced, node.target))
    normalize(traced.graph, root)
    placeholders = [node.name for node in traced.graph.find_nodes(op="placeholder")]
    names = dict(zip(placeholders, tensors, strict=False))
    return Captured(
        graph=traced.graph,
        root=root,
        tensors={placeholder: tensors[name] for placeholder, name in names.items()},
        names=names,
        aliases={name: name for name in tensors},
        user_inputs=tuple(placeholders[len(tensors) :]),
        in_spec=pytree.tree_structure((args, {})),
        out_spec=structure[0],
        example=(args, {}),
        dynamic=tuple(() for _ in args),
    )


def propagate_net(net: RandomNet) -> Propagated:
    """The propagation of a random network with its masks."""
    return propagate(annotate(trace(net.model, net.example), net.masks))
