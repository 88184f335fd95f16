"""Optimized models on disk: one safetensors file whose header carries the programs as JSON. No pickle, no code.

The header's ``sparta`` entry holds the format version, the signature of forward, every program (graph, input and output
structure, report) and a digest over all of it and the tensors. Loading checks everything before use; kernels are
generated again on the loading machine.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparta.reporting.report import LayerReport, Report
from sparta.runtime import ops  # noqa: F401  (registers the operators)
from sparta.runtime.executor import executor_for
from sparta.runtime.graph_json import decode_argument, decode_graph, encode_argument, encode_graph
from sparta.runtime.inputs import Leaf
from sparta.runtime.module import OptimizedModule
from sparta.runtime.program import Program
from sparta.runtime.rewrite import OPERATORS
from sparta.runtime.tensors import place
from sparta.tesa.errors import FormatError, SpartaError
from sparta.version import __version__

FORMAT_VERSION = 1
HEADER = "sparta"


def save(model: OptimizedModule, path: Path) -> None:
    """Write all compiled programs of `model` to `path`, replacing it at once or not at all.

    Raises
    ------
    SpartaError
        If a program is not one graph.
    FileNotFoundError
        If the directory of `path` does not exist.
    FormatError
        If a graph or a structure cannot be said in the format.
    """
    tensors: dict[str, Tensor] = {}
    programs = [_encode_program(program, tensors) for program in model.programs]
    content = {
        "format_version": FORMAT_VERSION,
        "sparta": __version__,
        "signature": _encode_signature(model.signature),
        "programs": programs,
    }
    content["digest"] = _digest(content, tensors)
    if not path.parent.is_dir():
        message = f"cannot write {path}: there is no directory {path.parent}"
        raise FileNotFoundError(message)
    temporary = path.with_name(path.name + ".partial")
    try:
        safetensors.torch.save_file(tensors, temporary, metadata={HEADER: json.dumps(content)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> OptimizedModule:
    """The model that `save` wrote.

    Raises
    ------
    FormatError
        If the file is not a sparta model, of another version, damaged, or holds anything that is not allowed.
    """
    content, tensors = _read(path)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        message = f"{path} has format version {version!r}, this version of sparta reads {FORMAT_VERSION}; save it again"
        raise FormatError(message)
    if content.pop("digest", None) != _digest(content, tensors):
        message = f"{path} is damaged: its digest does not fit its content"
        raise FormatError(message)
    try:
        model = OptimizedModule(None, None, signature=_decode_signature(content["signature"]))
        for entry in content["programs"]:
            model.adopt(_decode_program(entry, tensors))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        message = f"{path} is not a valid sparta model: {error!r}"
        raise FormatError(message) from error
    return model


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        content = json.loads(metadata[HEADER])
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        message = f"{path} is not a sparta model: {error!r}"
        raise FormatError(message) from error
    if not isinstance(content, dict):
        message = f"{path} is not a sparta model: its header is not an object"
        raise FormatError(message)
    return content, tensors


def _digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    whole = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(tensor.flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _encode_program(program: Program, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if program.out_spec is None or not isinstance(program.module, fx.GraphModule) or program.leaves is None:
        how = "in parts" if program.leaves is None else "as the masked dense model, which is no graph"
        why = "; ".join(program.report.notes) or program.report.capture
        message = f"this model cannot be saved: it runs {how} ({why}). Save the original model with torch instead."
        raise SpartaError(message)
    names = {name: _store(tensors, name, tensor) for name, tensor in program.module.state_dict().items()}
    return {
        "graph": encode_graph(program.module.graph),
        "tensors": names,
        "in_spec": encode_spec(program.in_spec),
        "out_spec": encode_spec(program.out_spec),
        "leaves": [
            [encode_argument(leaf.dtype), list(leaf.shape), encode_argument(leaf.value)] for leaf in program.leaves
        ],
        "report": asdict(program.report),
    }


def _store(tensors: dict[str, Tensor], name: str, tensor: Tensor) -> str:
    """Keep a tensor once, under its own name or that name with a number; the name it is kept under."""
    tensor = tensor.detach()
    for kept, other in tensors.items():
        same = other.data_ptr() == tensor.data_ptr() and other.shape == tensor.shape and other.dtype == tensor.dtype
        if same and other.stride() == tensor.stride() and tensor.numel():
            return kept
    unique, count = name, 1
    while unique in tensors:
        unique, count = f"{name}#{count}", count + 1
    tensors[unique] = tensor if tensor.is_contiguous() else tensor.contiguous()
    return unique


def _decode_program(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Program:
    graph = decode_graph(entry["graph"])
    module = _module(graph, {str(name): tensors[str(kept)] for name, kept in entry["tensors"].items()})
    leaves = tuple(_decode_leaf(*leaf) for leaf in entry["leaves"])
    if len(graph.find_nodes(op="placeholder")) != len(leaves):
        message = "the saved program takes another number of inputs than its graph"
        raise FormatError(message)
    _check_sparse(module)
    return Program(
        module, decode_spec(entry["in_spec"]), leaves, decode_spec(entry["out_spec"]), _report(entry["report"])
    )


def _module(graph: fx.Graph, tensors: Mapping[str, Tensor]) -> fx.GraphModule:
    root = nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        if node.target not in tensors:
            message = f"the saved graph reads {node.target!r}, which the file does not hold"
            raise FormatError(message)
        place(root, str(node.target), tensors[str(node.target)])
    return fx.GraphModule(root, graph).eval()


def _check_sparse(module: fx.GraphModule) -> None:
    """Validate the components of every sparse operator: sizes, types, pointers and index ranges."""
    stored = dict(module.named_buffers(remove_duplicate=False))
    for node in module.graph.nodes:
        if node.target in OPERATORS.values():
            components = [stored[str(part.target)] for part in node.args[1]]
            executor_for(components, node.args[4])


def _decode_leaf(dtype: Any, shape: Any, value: Any) -> Leaf:
    kind = decode_argument(dtype, {})
    sizes = tuple(size if isinstance(size, str) else int(size) for size in shape)
    return Leaf(kind if isinstance(kind, torch.dtype) else None, sizes, decode_argument(value, {}))


def _report(data: Mapping[str, Any]) -> Report:
    """The report a file carries: plain facts, with tuples back where JSON has lists."""
    layers = [{**layer, "shape": tuple(layer["shape"])} for layer in data["layers"]]
    return Report(
        layers=tuple(LayerReport(**layer) for layer in layers),
        barriers=tuple((str(op), str(module)) for op, module in data["barriers"]),
        removed={str(name): (tuple(a), tuple(b)) for name, (a, b) in data["removed"].items()},
        notes=tuple(map(str, data["notes"])),
        **{key: data[key] for key in ("capture", "error", "dense_ms", "optimized_ms", "stages", "machine")},
    )


ALLOWED_NODES = ("builtins.", "collections.OrderedDict", "transformers.modeling_outputs.", "transformers.cache_utils.")
"""Structures a file may name: containers and the outputs of transformers, as torch's pytree registry calls them."""


def encode_spec(spec: pytree.TreeSpec) -> str:
    """A structure as JSON.

    Raises
    ------
    FormatError
        If it holds a type that a file cannot name.
    """
    try:
        text = pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError) as error:
        message = f"the structure {spec} cannot be saved: {error}. Return tuples, lists and dicts from forward."
        raise FormatError(message) from error
    _check_spec(json.loads(text)[1])
    return text


def decode_spec(text: Any) -> pytree.TreeSpec:
    """The structure that `encode_spec` wrote; only registered containers are accepted."""
    if not isinstance(text, str):
        message = "a structure of the file is not text"
        raise FormatError(message)
    _check_spec(json.loads(text)[1])
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, KeyError) as error:
        message = f"{error}: import the library that defines this structure before loading"
        raise FormatError(message) from error


def _check_spec(data: Any) -> None:
    kind = data["type"]
    if kind is not None and not str(kind).startswith(ALLOWED_NODES):
        message = (
            f"a saved model cannot hold the structure {str(kind)[:80]!r}; return tuples, lists and dicts from forward"
        )
        raise FormatError(message)
    for child in data["children_spec"]:
        _check_spec(child)


def _encode_signature(signature: inspect.Signature) -> list[list[Any]]:
    return [[p.name, p.kind.name, _encode_default(p.default)] for p in signature.parameters.values()]


def _encode_default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return {"required": True}
    simple = default is None or isinstance(default, (bool, int, float, str))
    return default if simple else {"required": False}


def _decode_signature(entries: list[Any]) -> inspect.Signature:
    """The signature; a default that is no plain value becomes `...`, which no program accepts."""
    defaults: dict[bool, Any] = {True: inspect.Parameter.empty, False: ...}
    return inspect.Signature(
        [
            inspect.Parameter(
                str(name),
                inspect._ParameterKind[str(kind)],
                default=defaults[bool(default["required"])] if isinstance(default, dict) else default,
            )
            for name, kind, default in entries
        ]
    )
