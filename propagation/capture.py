"""Capture: a whole model as one functional ATen graph with the names of its tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sparta.propagation.normalize import normalize
from sparta.propagation.shadow import masked
from sparta.propagation.stages import Captured
from sparta.tesa.errors import CaptureError, InputError
from sparta.tesa.naming import alias_table, named_tensors, unwrap

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of one call of a model: positional and by keyword."""

log = logging.getLogger("sparta.propagation")


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
    >>> captured = capture(nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> [str(node.target) for node in captured.graph.nodes if node.op == "call_function"]
    ['aten.linear.default']
    >>> sorted(captured.names.values()), captured.dynamic
    (['bias', 'weight'], ((0,),))
    """
    model = unwrap(model)
    call = bind(signature(masked(model).forward), args, kwargs or {})
    _register_pytrees(call)
    program, call = _export(model, call, dynamic_batch)
    _refuse_mutation(program, type(model).__name__)
    return _captured(program, model, call)


def bind(forward: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """The one canonical form of a call: positional where the signature allows, keywords in its order.

    Examples
    --------
    >>> bind(signature(lambda x, y=1, *, z=2: 0), (), {"z": 5, "x": 3})
    ((3,), {'z': 5})
    """
    try:
        bound = forward.bind(*args, **kwargs)
    except TypeError as error:
        msg = f"the example does not fit forward{forward}: {error}. Pass every required argument"
        raise InputError(msg) from None
    return bound.args, bound.kwargs


def flatten_call(captured: Captured, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a canonical call, one for each of `captured.user_inputs`.

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
    >>> captured = capture(nn.Linear(4, 2), (torch.randn(3, 4),))
    >>> interpret(captured, captured.tensors, torch.randn(5, 4)).shape
    torch.Size([5, 2])
    """
    values = {**weights, **dict(zip(captured.user_inputs, flatten_call(captured, args, kwargs), strict=True))}
    inputs = [values[node.name] for node in captured.graph.find_nodes(op="placeholder")]
    leaves = fx.Interpreter(captured.root, graph=captured.graph).run(*inputs)  # type: ignore[no-untyped-call]
    return pytree.tree_unflatten(leaves, captured.out_spec)


def _register_pytrees(call: Call) -> None:
    """Teach torch's pytrees the containers of this call: dataclasses, and the caches of transformers if imported."""
    if "transformers.cache_utils" in sys.modules:
        from transformers.integrations.executorch import register_dynamic_cache_export_support

        register_dynamic_cache_export_support()
    _register_dataclasses(call)


def _register_dataclasses(value: Any) -> bool:
    """Register each dataclass among the leaves of `value`; whether there was any."""
    found = {type(leaf) for leaf in pytree.tree_leaves(value) if dataclasses.is_dataclass(leaf)}
    for cls in found:
        torch.export.register_dataclass(cls)
    if found:
        _register_dataclasses(value)
    return bool(found)


def _export(model: nn.Module, call: Call, dynamic_batch: bool) -> tuple[ExportedProgram, Call]:
    """The first export that works, most useful first: symbolic batch, static, then both by bytecode tracing."""
    batched = _batched(call) if dynamic_batch else None
    attempts = [(example, strict) for strict in (False, True) for example in (batched, call) if example is not None]
    failures: list[Exception] = []
    for example, strict in attempts:
        try:
            program = _attempt(masked(model), example, strict, symbolic=example is batched)
        except Exception as error:  # whatever user code and the tracer may raise
            log.debug("export (strict=%s) failed: %s", strict, type(error).__name__)
            if not failures and _register_output(model, call):
                return _export(model, call, dynamic_batch)
            failures.append(error)
        else:
            if _keeps_batch(program, example, call):
                return program, example
    raise CaptureError(explain(failures[0], model)) from failures[0]


def _attempt(shadow: nn.Module, call: Call, strict: bool, symbolic: bool) -> ExportedProgram:
    args, kwargs = call
    shapes = torch.export.ShapesCollection()
    for tensor in _batch_tensors(call) if symbolic else ():
        shapes[tensor] = {0: torch.export.Dim.AUTO}
    with _silence():
        dynamic = shapes.dynamic_shapes(shadow, args, kwargs) if symbolic else None
        program = torch.export.export(shadow, args, kwargs, dynamic_shapes=dynamic, strict=strict)
        # The empty table only functionalizes: linear, convolution, attention and LSTM stay whole.
        return program.run_decompositions({})


def _batch_tensors(call: Call) -> list[Tensor]:
    """The tensors of a call whose first dimension is the batch: as long as that of the first tensor."""
    tensors = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    return [tensor for tensor in tensors if tensor.shape[0] == tensors[0].shape[0]]


def _batched(call: Call) -> Call | None:
    """The call with a batch of at least 2 (an exported symbolic size cannot be 1); None where there is no batch."""
    tensors = _batch_tensors(call)
    if not tensors or tensors[0].shape[0] == 0:
        return None
    if tensors[0].shape[0] > 1:
        return call[0], call[1]
    twice = {id(tensor): torch.cat([tensor, tensor]) for tensor in tensors}
    doubled: Call = pytree.tree_map(lambda leaf: twice.get(id(leaf), leaf), call)
    return doubled


def _keeps_batch(program: ExportedProgram, example: Call, call: Call) -> bool:
    """Whether the program serves `call`: one captured with a doubled batch must have kept it symbolic."""
    doubled = [
        before.shape[0] != after.shape[0]
        for before, after in zip(pytree.tree_leaves(call), pytree.tree_leaves(example), strict=True)
        if isinstance(before, Tensor) and before.dim() > 0
    ]
    symbolic = [0 in dims for _, value, dims in _user_inputs(program) if isinstance(value, Tensor) and value.dim() > 0]
    return all(kept for kept, was_doubled in zip(symbolic, doubled, strict=True) if was_doubled)


def _user_inputs(program: ExportedProgram) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """(placeholder, example value, symbolic dimensions) of each argument of the call."""
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            value = placeholders[spec.arg.name].meta.get("val")
            sizes = value.shape if isinstance(value, Tensor) else ()
            yield spec.arg.name, value, tuple(d for d, size in enumerate(sizes) if not isinstance(size, int))


def _register_output(model: nn.Module, call: Call) -> bool:
    """Register the dataclasses that the model returns, found by running it; whether there was a new one."""
    try:
        with torch.no_grad():
            result = masked(model)(*call[0], **call[1])
    except Exception as error:  # user code; the export reports the same failure
        log.debug("the example call failed: %s", type(error).__name__)
        return False
    return _register_dataclasses(result)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the tracer's logs, prints and warnings, which may be megabytes, to itself."""
    disabled, sink = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


FIXES = {
    "GuardOnDataDependentSymNode": "the forward branches on values: use torch.where or torch.cond",
    "DataDependentOutputException": "the forward reads a tensor into Python (.item(), bool()): keep it a tensor",
    "Unsupported": "rewrite the Python feature named above, or capture a submodule",
}
"""Exception of the tracer -> advice."""


def explain(error: Exception, model: nn.Module) -> str:
    """A short message for a failed capture: what failed, where in the user's code, and what to do."""
    lines = str(error).strip().splitlines() or [""]
    library = str(Path(torch.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(library)]
    frames = [frame for frame in frames if frame.filename != __file__]
    where = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    kind = type(error).__name__
    fix = FIXES.get(kind, "run the model on the example first, or capture its submodules one by one")
    return f"cannot capture {type(model).__name__}{where}: {kind}: {lines[0][:300]}. Fix: {fix}"


def _refuse_mutation(program: ExportedProgram, model: str) -> None:
    """Raise where the graph writes to a buffer, a parameter or an argument."""
    changed = [
        spec.target or spec.arg.name
        for spec in program.graph_signature.output_specs
        if spec.kind.name.endswith("MUTATION")
    ]
    if changed:
        msg = f"{model}.forward changes {', '.join(changed)} in place; return the new value, or capture its submodules"
        raise CaptureError(msg)


def _captured(program: ExportedProgram, model: nn.Module, call: Call) -> Captured:
    graph, root = _detach(program)
    normalize(graph, root)
    aliases = alias_table(model)
    names = _deduplicate(graph, program, aliases)
    own = named_tensors(model)
    tensors = {placeholder: _tensor(name, own, model, program) for placeholder, name in names.items()}
    inputs = tuple(_user_inputs(program))
    spec = program.call_spec
    return Captured(
        graph=graph,
        root=root,
        tensors=tensors,
        names=names,
        aliases=aliases,
        user_inputs=tuple(name for name, _, _ in inputs),
        in_spec=spec.in_spec,
        out_spec=spec.out_spec,
        example=call,
        dynamic=tuple(dims for _, _, dims in inputs),
    )


def _detach(program: ExportedProgram) -> tuple[fx.Graph, nn.Module]:
    """A fresh copy of the program's graph, and a module with what its `get_attr` nodes name."""
    graph = fx.Graph()
    output = graph.graph_copy(program.graph, {})
    graph.output(output).meta.update(program.graph.output_node().meta)
    root = nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        setattr(root, node.target, getattr(program.graph_module, node.target))
    return graph, root


def _deduplicate(graph: fx.Graph, program: ExportedProgram, aliases: Mapping[str, str]) -> dict[str, str]:
    """Make the graph use one placeholder for each storage, and none for unused tensors; placeholder -> name."""
    first: dict[str, fx.Node] = {}
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.kind.name != "USER_INPUT"}
    for placeholder, target in targets.items():
        node = placeholders[placeholder]
        canonical = first.setdefault(aliases.get(target or "", target or placeholder), node)
        if canonical is not node:
            node.replace_all_uses_with(canonical)
    for placeholder in targets:
        if not placeholders[placeholder].users:
            graph.erase_node(placeholders[placeholder])
    return {node.name: name for name, node in first.items() if node.users}


def _tensor(name: str, own: Mapping[str, Tensor], model: nn.Module, program: ExportedProgram) -> Tensor:
    """The model's own tensor called `name`: a parameter, a buffer, or a plain attribute; else a constant of the code."""
    if name in own:
        return own[name]
    constant = program.constants[name]
    assert isinstance(constant, Tensor), f"constant {name} is a {type(constant).__name__}"
    return constant
