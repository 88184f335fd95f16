"""Capture: a whole model as one functional ATen graph with the names of its tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    from torch.export.graph_signature import InputSpec

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
    leaves = fx.Interpreter(captured.root, graph=captured.graph).run(*inputs)
    return pytree.tree_unflatten(leaves, captured.out_spec)


def _register_pytrees(call: Call) -> None:
    """Teach torch's pytrees the containers of this call: dataclasses, and the caches of transformers if imported."""
    if "transformers.cache_utils" in sys.modules:
        from transformers.integrations.executorch import register_dynamic_cache_export_support

        register_dynamic_cache_export_support()  # type: ignore[no-untyped-call]
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
    failure: Exception | None = None
    for example, strict in attempts:
        program = _attempt(masked(model), example, strict, symbolic=example is batched)
        if isinstance(program, Exception):
            log.debug("export (strict=%s) failed: %s", strict, type(program).__name__)
            if failure is None and _register_output(model, call):
                return _export(model, call, dynamic_batch)
            failure = failure or program
        elif _keeps_batch(program, example, call):
            return program, example
    assert failure is not None, "a static program serves its own example"
    raise CaptureError(explain(failure, model)) from failure


def _attempt(shadow: nn.Module, call: Call, strict: bool, symbolic: bool) -> ExportedProgram | Exception:
    """The exported program, or what user code or the tracer raised."""
    try:
        return _export_once(shadow, call, strict, symbolic)
    except Exception as error:
        return error


def _export_once(shadow: nn.Module, call: Call, strict: bool, symbolic: bool) -> ExportedProgram:
    args, kwargs = call
    shapes = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in _batch_tensors(call) if symbolic else ():
        shapes[tensor] = {0: torch.export.Dim.AUTO}
    with _silence():
        dynamic = shapes.dynamic_shapes(shadow, args, kwargs) if symbolic else None  # type: ignore[no-untyped-call]
        program = torch.export.export(shadow, args, kwargs, dynamic_shapes=dynamic, strict=strict)
        # The empty table only functionalizes: linear, convolution, attention and LSTM stay whole.
        functional: ExportedProgram = program.run_decompositions({})
        return functional


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
    inputs = [node.meta.get("val") for node, spec in _signature(program, program.graph) if _is_argument(spec)]
    leaves = zip(pytree.tree_leaves(call), pytree.tree_leaves(example), inputs, strict=True)
    return all(0 in _symbolic_dims(value) for before, after, value in leaves if before is not after)


def _signature(program: ExportedProgram, graph: fx.Graph) -> list[tuple[fx.Node, InputSpec]]:
    """The placeholders of `graph`, the program's or a copy, with what each stands for."""
    placeholders = graph.find_nodes(op="placeholder")
    return list(zip(placeholders, program.graph_signature.input_specs, strict=True))


def _is_argument(spec: InputSpec) -> bool:
    return spec.kind.name == "USER_INPUT"


def _symbolic_dims(value: Any) -> tuple[int, ...]:
    """The dimensions of an example value that the graph keeps symbolic; none for what is not a tensor."""
    sizes = value.shape if isinstance(value, Tensor) else ()
    return tuple(dim for dim, size in enumerate(sizes) if not isinstance(size, int))


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
    arguments = [node for node, spec in _signature(program, graph) if _is_argument(spec)]
    names = _deduplicate(graph, _signature(program, graph), aliases)
    own = named_tensors(model)
    return Captured(
        graph=graph,
        root=root,
        tensors={placeholder: _tensor(name, own, program) for placeholder, name in names.items()},
        names=names,
        aliases=aliases,
        user_inputs=tuple(node.name for node in arguments),
        in_spec=program.call_spec.in_spec,
        out_spec=program.call_spec.out_spec,
        example=call,
        dynamic=tuple(_symbolic_dims(node.meta.get("val")) for node in arguments),
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


def _deduplicate(
    graph: fx.Graph, inputs: Sequence[tuple[fx.Node, InputSpec]], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Make the graph use one placeholder for each storage, and none for unused tensors; placeholder -> name."""
    first: dict[str, fx.Node] = {}
    for node, spec in inputs:
        if not _is_argument(spec):
            target = spec.target or node.name
            canonical = first.setdefault(aliases.get(target, target), node)
            if canonical is not node:
                node.replace_all_uses_with(canonical)
    for node, spec in inputs:
        if not _is_argument(spec) and not node.users:
            graph.erase_node(node)
    return {node.name: name for name, node in first.items() if node.users}


def _tensor(name: str, own: Mapping[str, Tensor], program: ExportedProgram) -> Tensor:
    """The model's own parameter or buffer called `name`, else a constant of the code or a plain attribute."""
    if name in own:
        return own[name]
    constant = program.constants[name]
    assert isinstance(constant, Tensor), f"constant {name} is a {type(constant).__name__}"
    return constant
