"""`OptimizedModule`: what `sparta.optimize` returns; compiles on the first call, one program for each input shape."""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sparta.propagation.binding import Call, bind
from sparta.reporting.report import Report
from sparta.runtime.inputs import autocast_type, copied, flatten
from sparta.runtime.program import Program
from sparta.runtime.reference import buffers_restored
from sparta.runtime.runner import Runner
from sparta.tesa.errors import SpartaError

log = logging.getLogger("sparta.runtime")

Compile = Callable[[nn.Module, Call, bool], Program]
"""Compiles the masked dense model for a call; the flag allows a symbolic batch."""

Kind = tuple[torch.dtype | None, tuple[tuple[type, Any, Any], ...]]
"""The autocast of a call; type, element type and shape of each of its positional arguments."""

MOST_KINDS = 256
"""How many kinds of calls are remembered with their programs; a symbolic batch makes one program serve many."""


class OptimizedModule(nn.Module):
    """The optimized model: same call, same result structure, measured report.

    Made by `sparta.optimize` and `sparta.load`. Always in eval mode: `train()` raises. Weights it did not change are
    shared with the original model, which must not be trained on while this is in use. `state_dict()` holds the plain
    tensors of the first compiled program under the model's own names (sparse weights as `<name>__csr.values`, ...).

    Examples
    --------
    >>> import torch, sparta
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    >>> fast = sparta.optimize(model, {"0.weight": torch.eye(8)})
    >>> fast(torch.ones(2, 8)).shape
    torch.Size([2, 8])
    """

    _reference: nn.Module | None

    def __init__(
        self,
        reference: nn.Module | None,
        compile: Compile | None,
        *,
        max_shapes: int = 8,
        signature: inspect.Signature | None = None,
        dynamic_batch: bool = True,
    ) -> None:
        super().__init__()
        self._hold(reference)
        self._compile = compile
        self._runners = OrderedDict[int, Runner]()
        self._recent: dict[Kind, Runner] = {}
        self._lock = threading.RLock()
        self._max_shapes = max_shapes
        self._dynamic_batch = dynamic_batch
        self._signature = signature or inspect.signature(_required(reference).forward)
        self.training = False
        if reference is not None:
            self._own(reference)

    def _hold(self, reference: nn.Module | None) -> None:
        # Not through nn.Module: as a submodule, state_dict() would list the dense weights beside the sparse ones.
        self.__dict__["_reference"] = reference

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the masked dense model for this call.

        Raises
        ------
        InputError
            If the arguments do not bind to the model's forward.
        """
        if not kwargs:
            runner = self._recent.get(_kind(args))
            if runner is not None:
                return _without_grad(runner, (args, kwargs), args)
        call = bind(self._signature, args, kwargs)
        leaves, spec = flatten(call)
        found = self._find(leaves, spec) or self._compiled(call)
        if found.takes(args) and not kwargs:
            self._remember(_kind(args), found)
        return _without_grad(found, call, leaves)

    def _remember(self, kind: Kind, runner: Runner) -> None:
        """Find the program of calls like this one at once from now on."""
        if len(self._recent) >= MOST_KINDS:
            self._recent.clear()
        self._recent[kind] = runner

    def _find(self, leaves: list[Any], spec: Any) -> Runner | None:
        for runner in list(self._runners.values()):  # a copy: another thread may compile meanwhile
            program = runner.program
            if program.accepts(leaves, spec) and (self._compile is None or program.autocast == autocast_type()):
                return runner
        return None

    def compile(self, *args: Any, **kwargs: Any) -> Program:  # type: ignore[override]
        """Compile now for calls like this one; the least recently compiled shape is dropped beyond the limit."""
        return self._compiled(bind(self._signature, args, kwargs)).program

    def _compiled(self, call: Call) -> Runner:
        """The program for a call, compiled unless another thread has just done it; the call itself stays as it is."""
        leaves, spec = flatten(call)
        with self._lock:
            found = self._find(leaves, spec)
            if found is not None:
                return found
            if self._compile is None or self._reference is None:
                self._refuse_shape(leaves)
            with buffers_restored(self._reference):
                program = self._compile(self._reference, copied(call), self._dynamic_batch)
                if not program.accepts(leaves, spec):
                    program = self._compile(self._reference, copied(call), False)
            runner = self.adopt(replace(program, autocast=autocast_type()))
            self._drop_oldest()
            return runner

    def _drop_oldest(self) -> None:
        """Keep to `max_shapes` programs; the tensors shown are always those of the oldest one kept."""
        while len(self._runners) > self._max_shapes:
            dropped, _ = self._runners.popitem(last=False)
            self._recent.clear()
            self._own(self._first().module)
            log.info("dropped compiled shape %d: more than %d shapes in use", dropped, self._max_shapes)

    def _refuse_shape(self, leaves: list[Any]) -> NoReturn:
        shapes = [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        known = ["; ".join(str(leaf.shape) for leaf in program.leaves or ()) for program in self.programs]
        message = (
            f"this loaded model was not compiled for inputs {shapes}; it accepts {' or '.join(known)} (names stand for "
            "any size). Optimize the original model with such an example and save it again."
        )
        raise SpartaError(message)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The compiled programs, oldest first."""
        return tuple(runner.program for runner in self._runners.values())

    def adopt(self, program: Program) -> Runner:
        """What runs a program from now on; the tensors of the first one become this module's."""
        if not self._runners:
            self._own(program.module)
        runner = self._runners[max(self._runners, default=-1) + 1] = Runner(program)
        return runner

    def report(self) -> Report:
        """What was done and what it gained, for the first compiled shape.

        Raises
        ------
        SpartaError
            Before the first call, when nothing has been compiled yet.
        """
        return self._first().report

    def _first(self) -> Program:
        if not self._runners:
            message = "nothing is compiled yet: call the model once, or give example_inputs to sparta.optimize"
            raise SpartaError(message)
        return next(iter(self._runners.values())).program

    def save(self, path: str | Path) -> None:
        """Write the compiled programs to one file that `sparta.load` reads: JSON and safetensors, no pickle.

        Raises
        ------
        SpartaError
            If nothing is compiled yet, or the model could not be captured as graphs.
        FormatError
            If the graph holds something the format cannot say.
        """
        from sparta.runtime.files import save

        self._first()
        save(self, Path(path))

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the model's forward."""
        return self._signature

    def train(self, mode: bool = True) -> OptimizedModule:
        """Return self for eval mode.

        Raises
        ------
        SpartaError
            For training mode: constants are folded and dead weights are gone, so this module cannot be trained.
        """
        if mode:
            message = "an optimized module cannot be trained: train the original model and optimize it again"
            raise SpartaError(message)
        return self

    def _own(self, module: nn.Module) -> None:
        """Show the tensors of `module` as this module's own, under the same names: the very same dictionaries."""
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = module.__dict__[name]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy tensors into the first program; kernels are packed again at the next call.

        Raises
        ------
        SpartaError
            If names or shapes differ, as for the state of a model pruned in another way.
        """
        try:
            result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            message = (
                f"{error}\nThis is not the state of a model optimized with the same masks; see OptimizedModule.save."
            )
            raise SpartaError(message) from error
        self._recent.clear()
        for key, runner in self._runners.items():
            self._runners[key] = Runner(runner.program)  # `assign` replaces tensors, which runners hold
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OptimizedModule:
        """Convert the dense weights and compile again at the next call (`.half()`, `.to(...)`, `.double()`)."""
        if self._reference is None:
            message = "a loaded model keeps its type and device: convert the original model and optimize it again"
            raise SpartaError(message)
        from sparta.propagation.shadow import masked

        tensors: dict[str, Tensor] = dict(self._reference.named_buffers(remove_duplicate=False))
        tensors.update(self._reference.named_parameters(remove_duplicate=False))
        converted = {name: fn(tensor) for name, tensor in tensors.items()}
        if all(converted[name] is tensors[name] for name in tensors):
            return self
        self._hold(masked(self._reference, converted))
        self._runners.clear()
        self._recent.clear()
        self._own(_required(self._reference))
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        """A copy with its own tensors; the masked dense model behind it is shared, as it never changes."""
        twin = OptimizedModule(
            self._reference,
            self._compile,
            max_shapes=self._max_shapes,
            signature=self._signature,
            dynamic_batch=self._dynamic_batch,
        )
        memo[id(self)] = twin
        for program in self.programs:
            twin.adopt(replace(program, module=copy.deepcopy(program.module, memo)) if program.out_spec else program)
        return twin


def _required(reference: nn.Module | None) -> nn.Module:
    assert reference is not None, "only a loaded model has no masked dense model, and it has programs"
    return reference


def _kind(args: tuple[Any, ...]) -> Kind:
    kinds = [(type(arg), getattr(arg, "dtype", None), getattr(arg, "shape", None)) for arg in args]
    return autocast_type(), tuple(kinds)


def _without_grad(runner: Runner, call: Call, leaves: Sequence[Any]) -> Any:
    if not torch.is_grad_enabled():
        return runner.run(call, leaves)
    with torch.no_grad():
        return runner.run(call, leaves)
