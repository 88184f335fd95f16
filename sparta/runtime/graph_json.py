"""fx graphs as JSON and back; operators are looked up in a closed table, nothing is ever imported or evaluated."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from sparta.propagation.registry import RULES
from sparta.tesa.errors import FormatError

PYTHON_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    f"operator.{function.__name__}": function
    for function in (
        operator.getitem,
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        operator.eq,
        operator.ge,
        operator.gt,
        operator.le,
        operator.lt,
    )
}
"""Name -> Python function that sizes are computed with."""

# fmt: off
OPERATORS = frozenset({
    "sparta.linear", "sparta.conv2d",
    "aten.group_norm", "aten.native_group_norm", "aten.instance_norm", "aten.prelu", "aten.lstm", "aten.gru",
    "aten.rnn_tanh", "aten.rnn_relu", "aten.conv3d", "aten.conv_transpose1d", "aten.conv_transpose2d", "aten.einsum",
    "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_bilinear2d", "aten.upsample_bicubic2d",
    "aten.adaptive_max_pool2d", "aten.max_pool3d", "aten.avg_pool3d", "aten.grid_sampler", "aten.pixel_shuffle",
    "aten.pixel_unshuffle", "aten.channel_shuffle", "aten.reflection_pad2d", "aten.replication_pad2d", "aten.im2col",
    "aten.index", "aten.index_select", "aten.index_put", "aten.gather", "aten.scatter", "aten.masked_scatter",
    "aten.roll", "aten.flip", "aten.cumsum", "aten.diff", "aten.topk", "aten.sort", "aten.argmax", "aten.argmin",
    "aten.repeat", "aten.repeat_interleave", "aten.unfold", "aten.triu", "aten.tril", "aten.var", "aten.std",
    "aten.var_mean", "aten.norm", "aten.linalg_vector_norm", "aten.one_hot", "aten.arange", "aten.full", "aten.zeros",
    "aten.ones", "aten.full_like", "aten.zeros_like", "aten.ones_like", "aten.new_zeros", "aten.new_ones",
    "aten.new_full", "aten.scalar_tensor", "aten.sym_size",
})
# fmt: on
"""Operators a file may name besides those with a propagation rule; all are functional."""


def operator_names() -> frozenset[str]:
    """The closed table: every operator that a file may name."""
    import sparta.propagation.rules  # noqa: F401  (fills the table)

    return OPERATORS | frozenset(RULES)


def _tagged(tag: str, names: Mapping[str, Any]) -> tuple[dict[Any, dict[str, str]], Callable[[str], Any]]:
    values = {value: {tag: name} for name, value in names.items()}

    def decode(name: str) -> Any:
        if name not in names:
            message = f"unknown {tag} {name!r} in the file"
            raise FormatError(message)
        return names[name]

    return values, decode


def _torch_constants(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(torch).items() if isinstance(value, kind)}


_DTYPES, _dtype = _tagged("dtype", {str(value): value for value in _torch_constants(torch.dtype).values()})
_LAYOUTS, _layout = _tagged("layout", {str(value): value for value in _torch_constants(torch.layout).values()})
_MEMORY, _memory = _tagged("memory", {str(value): value for value in _torch_constants(torch.memory_format).values()})
_ENCODED = {**_DTYPES, **_LAYOUTS, **_MEMORY}


def encode_argument(value: Any) -> Any:
    """A graph argument as JSON.

    Raises
    ------
    FormatError
        If the file format cannot say it.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [encode_argument(item) for item in value]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return _ENCODED[value]
    message = f"a saved graph cannot hold {type(value).__name__} {value!r}"
    raise FormatError(message)


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        message = f"unknown device {name!r} in the file"
        raise FormatError(message) from error


def decode_argument(data: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """The graph argument that `encode_argument` wrote; `nodes` are those decoded before it."""
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        message = f"not a graph argument: {str(data)[:80]}"
        raise FormatError(message)
    ((tag, content),) = data.items()
    if tag in ("tuple", "list") and isinstance(content, list):
        items = [decode_argument(item, nodes) for item in content]
        return tuple(items) if tag == "tuple" else items
    if tag not in _DECODERS or not isinstance(content, str):
        message = f"not a graph argument: {str(data)[:80]}"
        raise FormatError(message)
    return _DECODERS[tag](content) if tag != "node" else _known(nodes, content)


_DECODERS: Mapping[str, Callable[[str], Any]] = {
    "dtype": _dtype,
    "layout": _layout,
    "memory": _memory,
    "device": _device,
    "node": str,
}


def _known(nodes: Mapping[str, fx.Node], name: str) -> fx.Node:
    if name not in nodes:
        message = f"the graph uses {name!r} before it is computed"
        raise FormatError(message)
    return nodes[name]


def encode_target(node: fx.Node) -> str:
    """The name of what a node calls.

    Raises
    ------
    FormatError
        If it is not in the closed table.
    """
    if isinstance(node.target, torch._ops.OpOverload):
        name = str(node.target)
        if name.rpartition(".")[0] in operator_names():
            return name
    for name, function in PYTHON_FUNCTIONS.items():
        if node.target is function:
            return name
    where = node.meta.get("module") or node.name
    message = f"{where}: a saved model cannot hold the operator {node.target}; keep the model in memory instead"
    raise FormatError(message)


def decode_target(name: object) -> Callable[..., Any]:
    """The operator called `name`, from the closed table only."""
    if not isinstance(name, str):
        message = f"not an operator name: {name!r}"
        raise FormatError(message)
    if name in PYTHON_FUNCTIONS:
        return PYTHON_FUNCTIONS[name]
    packet, _, overload = name.rpartition(".")
    if packet not in operator_names():
        message = f"the file names the operator {name[:80]!r}, which is not in the table of known operators"
        raise FormatError(message)
    namespace, _, short = packet.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), short, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
        message = f"this version of PyTorch has no functional operator {name!r}"
        raise FormatError(message)
    return found


def encode_graph(graph: fx.Graph) -> list[dict[str, Any]]:
    """The nodes of a graph as JSON, in order."""
    encoded = []
    for node in graph.nodes:
        target = encode_target(node) if node.op == "call_function" else str(node.target)
        entry = {"op": node.op, "name": node.name, "target": target}
        entry["args"] = encode_argument(tuple(node.args))
        entry["kwargs"] = {key: encode_argument(value) for key, value in node.kwargs.items()}
        encoded.append(entry)
    return encoded


def decode_graph(entries: Any) -> fx.Graph:
    """The graph that `encode_graph` wrote.

    Raises
    ------
    FormatError
        If anything in it is not what a saved graph may hold.
    """
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for entry in _list(entries):
        _decode_node(entry, graph, nodes)
    if not nodes or next(reversed(nodes.values())).op != "output":
        message = "the saved graph has no output"
        raise FormatError(message)
    return graph


def _decode_node(entry: Any, graph: fx.Graph, nodes: dict[str, fx.Node]) -> None:
    try:
        op, name = entry["op"], str(entry["name"])
        args = decode_argument(entry["args"], nodes)
        kwargs = {str(key): decode_argument(value, nodes) for key, value in entry["kwargs"].items()}
        nodes[name] = _BUILDERS[op](graph, name, entry["target"], args, kwargs)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"not a node of a saved graph ({error!r}): {str(entry)[:120]}"
        raise FormatError(message) from error


def _list(entries: Any) -> list[Any]:
    if not isinstance(entries, list):
        message = "the saved graph is not a list of nodes"
        raise FormatError(message)
    return entries


_BUILDERS: Mapping[str, Callable[..., fx.Node]] = {
    "placeholder": lambda graph, name, target, args, kwargs: graph.placeholder(name),
    "get_attr": lambda graph, name, target, args, kwargs: graph.create_node("get_attr", str(target), name=name),
    "call_function": lambda graph, name, target, args, kwargs: graph.call_function(decode_target(target), args, kwargs),
    "output": lambda graph, name, target, args, kwargs: graph.output(args[0]),
}
"""Kind of node -> how to build it; other kinds do not occur in saved graphs."""
