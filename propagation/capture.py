"""Capture: a whole model as one functional ATen graph with the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import bind
from sparta.propagation.export import INNER, Exported, export, is_argument, symbolic_dims
from sparta.propagation.guards import guards_of
from sparta.propagation.normalize import normalize
from sparta.propagation.shadow import masked
from sparta.propagation.stages import Captured
from sparta.tesa.errors import CaptureError, InputError
from sparta.tesa.naming import alias_table, named_tensors, unwrap

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import InputSpec


def capture(
    model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None, *, dynamic_batch: bool = True
) -> Captured:
    """The graph that `model(*args, **kwargs)` computes in eval mode; the model is not modified.

    Parameters
    ----------
    model
        Any module; training mode, NNI wrappers and `torch.compile` are seen through.
    args, kwargs
        An example call. Any pytree of tensors and constants; constants are baked in.
    dynamic_batch
        Keep the first dimension of the tensor arguments symbolic, where the model allows. An example with batch 1 is
        doubled for it, since a symbolic dimension cannot be 1 at capture.

    Raises
    ------
    InputError
        If the arguments do not fit `model.forward`.
    CaptureError
        If the model cannot be one functional graph: data-dependent Python, state that changes, unknown output types.

    Examples
    --------
    >>> import torch
    >>> captured = capture(nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> [str(node.target) for node in captured.graph.nodes if node.op == "call_function"]
    ['aten.linear.default']
    >>> sorted(captured.names.values()), captured.dynamic
    (['bias', 'weight'], ((0,),))
    """
    model = unwrap(model)
    forward = signature(masked(model).forward)
    exported = export(model, bind(forward, args, kwargs or {}), dynamic_batch)
    _refuse_mutation(exported.program, type(model).__name__)
    return _captured(exported, model, forward)


def flatten_call(captured: Captured, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a canonical call (see `bind`), one for each of `captured.user_inputs`.

    Raises
    ------
    InputError
        If the call has another structure than the captured one.
    """
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    if spec != captured.in_spec:
        msg = f"the call has structure {spec}, captured was {captured.in_spec}"
        raise InputError(msg)
    return leaves


def interpret(captured: Captured, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """What the captured graph computes for one call with the given `weights` (placeholder -> tensor), node by node.

    Examples
    --------
    >>> import torch
    >>> captured = capture(nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> interpret(captured, captured.tensors, torch.randn(5, 4)).shape
    torch.Size([5, 2])
    """
    values = {**weights, **dict(zip(captured.user_inputs, flatten_call(captured, args, kwargs), strict=True))}
    inputs = [values[node.name] for node in captured.graph.find_nodes(op="placeholder")]
    leaves = fx.Interpreter(captured.root, graph=captured.graph).run(*inputs)
    return pytree.tree_unflatten(leaves, captured.out_spec)


def _refuse_mutation(program: ExportedProgram, model: str) -> None:
    """Raise where the graph writes to a buffer, a parameter or an argument."""
    specs = program.graph_signature.output_specs
    changed = [
        "an argument" if spec.kind.name == "USER_INPUT_MUTATION" else _outer(spec.target or "")
        for spec in specs
        if spec.kind.name.endswith("MUTATION")
    ]
    if changed:
        msg = f"{model}.forward changes {', '.join(changed)} in place; return the new value, or capture its submodules"
        raise CaptureError(msg)


def _captured(exported: Exported, model: nn.Module, forward: Signature) -> Captured:
    graph, root = _detach(exported.program)
    normalize(graph, root)
    specs = exported.program.graph_signature.input_specs
    inputs = list(zip(graph.find_nodes(op="placeholder"), specs, strict=True))
    arguments = [node for node, spec in inputs if is_argument(spec)]
    _rename(arguments, _argument_names(exported, forward))
    aliases = alias_table(model)
    names = _deduplicate(graph, inputs, aliases)
    own = named_tensors(model)
    return Captured(
        graph=graph,
        root=root,
        tensors={placeholder: _tensor(name, own, exported.program) for placeholder, name in names.items()},
        names=names,
        aliases=aliases,
        user_inputs=tuple(node.name for node in arguments),
        in_spec=exported.in_spec,
        out_spec=exported.out_spec,
        example=exported.call,
        dynamic=tuple(symbolic_dims(node.meta.get("val")) for node in arguments),
        guards=guards_of(exported.program),
    )


def _outer(name: str) -> str:
    """A name inside the exported model as the user knows it."""
    return name.removeprefix(INNER).removeprefix(".")


def _detach(program: ExportedProgram) -> tuple[fx.Graph, nn.Module]:
    """A fresh copy of the program's graph, and a module with what its `get_attr` nodes name."""
    graph = fx.Graph()
    output = graph.graph_copy(program.graph, {})
    graph.output(output).meta.update(program.graph.output_node().meta)
    root = nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        setattr(root, node.target, getattr(program.graph_module, node.target))
    bodies = [module.graph for module in root.modules() if isinstance(module, fx.GraphModule)]
    for node in (node for body in (graph, *bodies) for node in body.nodes):
        if "nn_module_stack" in node.meta:
            node.meta["nn_module_stack"] = _outer_stack(node.meta["nn_module_stack"])
    return graph, root


def _outer_stack(stack: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """The stack of modules a node comes from, without the flat wrapper and the marks of the tracer."""
    return {key: (_outer(path), cls) for key, (path, cls) in stack.items() if path.split(".")[0] == INNER}


def _argument_names(exported: Exported, forward: Signature) -> list[str]:
    """Names like ``x`` or ``cache_key_cache_0`` for the leaves of the call."""
    args, kwargs = exported.call
    leaves, _ = pytree.tree_flatten_with_path(dict(forward.bind(*args, **kwargs).arguments))
    return ["_".join(map(_key_text, path)) for path, _ in leaves]


def _key_text(key: Any) -> str:
    """One step of a path through a pytree: a dictionary key, an index, or an attribute."""
    return str(next(getattr(key, kind) for kind in ("key", "idx", "name") if hasattr(key, kind)))


def _rename(nodes: Iterable[fx.Node], names: Iterable[str]) -> None:
    for node, name in zip(nodes, names, strict=True):
        node._rename(name)
        node.target = node.name


def _deduplicate(
    graph: fx.Graph, inputs: Sequence[tuple[fx.Node, InputSpec]], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Make the graph use one placeholder for each storage, and none for unused tensors; placeholder -> name."""
    first: dict[str, fx.Node] = {}
    for node, spec in inputs:
        if not is_argument(spec):
            target = _outer(spec.target or node.name)
            canonical = first.setdefault(aliases.get(target, target), node)
            if canonical is not node:
                node.replace_all_uses_with(canonical)
    for node, spec in inputs:
        if not is_argument(spec) and not node.users:
            graph.erase_node(node)
    names = {name: node for name, node in first.items() if node.users}
    _rename(names.values(), [node.name.replace(f"_{INNER}_", "_", 1) for node in names.values()])
    return {node.name: name for name, node in names.items()}


def _tensor(name: str, own: Mapping[str, Tensor], program: ExportedProgram) -> Tensor:
    """The model's own parameter or buffer called `name`, else a constant of the code or a plain attribute."""
    if name in own:
        return own[name]
    constant = program.constants.get(f"{INNER}.{name}", program.constants.get(name))
    assert isinstance(constant, Tensor), f"constant {name} is a {type(constant).__name__}"
    return constant
