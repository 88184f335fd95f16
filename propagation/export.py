"""`torch.export` of any model and call: the attempts, their failures, and what is exported."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparta.propagation.binding import Call
from sparta.propagation.guards import guards_of, violated
from sparta.propagation.shadow import isolated, masked
from sparta.tesa.compressed import shape_of
from sparta.tesa.errors import CaptureError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

INNER = "model"
"""Name of the user's model inside the exported one; a prefix of every name in the program."""

log = logging.getLogger("sparta.propagation")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A functional program over flat arguments and results, and how the user's call maps onto them.

    Parameters
    ----------
    program
        Takes the leaves of `call`, returns the leaves of the result; names start with `INNER`.
    call
        What it was exported with.
    in_spec, out_spec
        Structure of the call and of the result.
    """

    program: ExportedProgram
    call: Call
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


class _Structure:
    """Where the flat model leaves the structure of its result; opaque to the tracer."""

    spec: pytree.TreeSpec


class _Flat(nn.Module):
    """The user's model over leaves: containers such as caches are taken apart and built outside of torch.export,
    whose functionalization loses constants that their constructors make."""

    def __init__(self, model: nn.Module, in_spec: pytree.TreeSpec, result: _Structure) -> None:
        super().__init__()
        self.add_module(INNER, model)
        self._in_spec = in_spec
        self._result = result

    def forward(self, *leaves: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self._in_spec)
        flat, self._result.spec = pytree.tree_flatten(self.get_submodule(INNER)(*args, **kwargs))
        return flat


def export(model: nn.Module, call: Call, dynamic_batch: bool) -> Exported:
    """The first export that works, most useful first: symbolic batch, static, then both by bytecode tracing.

    Raises
    ------
    CaptureError
        If none works; says what failed first, where, and what to do.
    """
    _register_pytrees(call)
    batched = _batched(call) if dynamic_batch else None
    attempts = [(example, strict) for strict in (False, True) for example in (batched, call) if example is not None]
    failure: Exception | None = None
    for example, strict in attempts:
        result = _attempt(masked(model), example, strict, symbolic=example is batched)
        if isinstance(result, Exception):
            log.debug("export (strict=%s) failed: %s", strict, type(result).__name__)
            if failure is None and _register_result(model, call):
                return export(model, call, dynamic_batch)
            failure = failure or result
        elif _serves(result, call):
            return result
    assert failure is not None, "a static program serves its own example"
    raise CaptureError(explain(failure, model)) from failure


def symbolic_dims(value: Any) -> tuple[int, ...]:
    """The dimensions of an example value that the graph keeps symbolic; none for what is not a tensor."""
    shape = shape_of(value) if isinstance(value, Tensor) else ()
    return tuple(dim for dim, size in enumerate(shape) if not isinstance(size, int))


def is_argument(spec: Any) -> bool:
    """Whether an input of the program is an argument of the call, not a tensor of the model."""
    return bool(spec.kind.name == "USER_INPUT")


def _attempt(shadow: nn.Module, call: Call, strict: bool, symbolic: bool) -> Exported | Exception:
    """The exported program, or whatever user code or the tracer raised."""
    try:
        with _silence():
            return _export_once(shadow, call, strict, symbolic)
    except Exception as error:
        return error


def _export_once(shadow: nn.Module, call: Call, strict: bool, symbolic: bool) -> Exported:
    leaves, in_spec = pytree.tree_flatten(call)
    batch = {id(tensor) for tensor in _batch_tensors(call)} if symbolic else set()
    dims = tuple({0: torch.export.Dim.AUTO} if id(leaf) in batch else None for leaf in leaves)
    result = _Structure()
    flat = _Flat(shadow, in_spec, result).eval()
    program = torch.export.export(flat, tuple(leaves), dynamic_shapes={"leaves": dims}, strict=strict)
    # The empty table only functionalizes: linear, convolution, attention and LSTM stay whole.
    return Exported(program.run_decompositions({}), call, in_spec, result.spec)


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


def _serves(exported: Exported, call: Call) -> bool:
    """Whether the program can run `call`: one captured with a doubled batch must have kept that symbolic and free."""
    placeholders = exported.program.graph.find_nodes(op="placeholder")
    specs = exported.program.graph_signature.input_specs
    values = [node.meta.get("val") for node, spec in zip(placeholders, specs, strict=True) if is_argument(spec)]
    leaves = zip(pytree.tree_leaves(call), pytree.tree_leaves(exported.call), values, strict=True)
    doubled = [value for before, after, value in leaves if before is not after]
    if not all(0 in symbolic_dims(value) for value in doubled):
        return False
    return violated(guards_of(exported.program), {shape_of(value)[0]: 1 for value in doubled}) is None


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


def _register_result(model: nn.Module, call: Call) -> bool:
    """Register the dataclasses that the model returns, found by running it; whether there was a new one."""
    try:
        with torch.no_grad():
            result = isolated(model)(*call[0], **call[1])
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
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    where = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    kind = type(error).__name__
    fix = FIXES.get(kind, "run the model on the example first, or capture its submodules one by one")
    return f"cannot capture {type(model).__name__}{where}: {kind}: {lines[0][:300]}. Fix: {fix}"
