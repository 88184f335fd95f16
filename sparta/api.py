"""`optimize`, the whole line of sparta as one list of stages, and `load`."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sparta.propagation import annotate, capture
from sparta.propagation.binding import Call
from sparta.propagation.engine import propagate
from sparta.propagation.folding import fold
from sparta.propagation.stages import Captured
from sparta.runtime.fallback import compile_by_dynamo, compile_by_modules
from sparta.runtime.gate import Gate, NeedsStaticBatch
from sparta.runtime.module import OptimizedModule
from sparta.runtime.program import Program
from sparta.runtime.reference import masked_model
from sparta.runtime.rewrite import specialize
from sparta.runtime.verify import run_reference
from sparta.settings import Settings
from sparta.tesa import normalize_masks
from sparta.tesa.errors import CaptureError, InputError, QuantizationError
from sparta.transformation import transform

log = logging.getLogger("sparta")


def optimize(
    model: nn.Module,
    masks: Any = None,
    example_inputs: tuple[Any, ...] | Tensor | Mapping[str, Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    quantization: Any = None,
    target: str = "auto",
    threads: int | None = None,
    dynamic_batch: bool = True,
    verify: bool | str = True,
    strict: bool = False,
    progress: bool | Callable[[str], None] = False,
    options: Mapping[str, Any] | None = None,
) -> OptimizedModule:
    """The model compiled for its sparsity: same results as the masked dense model in eval mode, never slower.

    Parameters
    ----------
    model
        Any module; not modified.
    masks
        ``{module: {"weight": mask, "bias": mask or None}}`` (NNI), ``{"module.weight": mask}``, the path of a ``.pth``
        or ``.safetensors`` file, or None for the zeros already in the weights. True or 1 = keep.
    example_inputs, example_kwargs
        Arguments of one call; compile now instead of at the first call.
    quantization
        Reserved for quantized models; must be None in this version.
    target
        "auto" or "cpu".
    threads
        Threads of the native kernels; None follows `torch.get_num_threads()` at call time.
    dynamic_batch
        One program for all batch sizes, where the model allows it.
    verify
        Compare with the masked dense model on fresh inputs; "full" also certifies the propagation node by node.
    strict
        Raise where the default falls back: uncapturable model, barrier, failed kernel, mismatch.
    progress
        True shows the stages on standard error; a callable is given each stage's name.
    options
        ``sample_inputs`` (callable returning fresh ``(args, kwargs)``), ``max_shapes`` (programs kept, 8), ``kernels``
        (names of the only kernels allowed), ``measure`` (False trusts estimates).

    Returns
    -------
    OptimizedModule
        Called like the model; has `report()` and `save()`.

    Raises
    ------
    MaskError
        Listing every mask that does not fit the model.
    InputError
        If `model` is no module, or the example does not bind to its forward.
    OptionError, UnsupportedTargetError
        For arguments out of range.
    QuantizationError
        If `quantization` is given.
    CaptureError, UnsupportedOpError, KernelCompileError, VerificationError
        In strict mode, instead of falling back.

    Examples
    --------
    >>> import torch, sparta
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).eval()
    >>> masks = {"0": {"weight": torch.rand(64, 64) > 0.9}}
    >>> fast = sparta.optimize(model, masks, example_inputs=(torch.randn(4, 64),))
    >>> fast(torch.randn(16, 64)).shape
    torch.Size([16, 8])
    """
    if quantization is not None:
        message = "quantization is not supported by this version; leave it None (fp32, bf16 and fp16 models work)"
        raise QuantizationError(message)
    if not isinstance(model, nn.Module):
        message = f"model must be a torch.nn.Module, got {type(model).__name__}"
        raise InputError(message)
    settings = Settings.checked(
        target=target, threads=threads, dynamic_batch=dynamic_batch, verify=verify, strict=strict, options=options
    )
    kept = normalize_masks(masks, model)
    reference = masked_model(model, kept)
    notify = _notifier(progress)

    def compile_call(model: nn.Module, call: Call, dynamic: bool) -> Program:
        return compile_program(model, call, settings, dynamic_batch=dynamic, notify=notify, masked=kept)

    optimized = OptimizedModule(
        reference, compile_call, max_shapes=settings.max_shapes, dynamic_batch=settings.dynamic_batch
    )
    if example_inputs is not None or example_kwargs is not None:
        args, kwargs = _example(example_inputs, example_kwargs)
        optimized.compile(*args, **kwargs)
    return optimized


def compile_program(
    reference: nn.Module,
    call: Call,
    settings: Settings,
    *,
    dynamic_batch: bool = True,
    notify: Callable[[str], None] | None = None,
    masked: Collection[str] = (),
) -> Program:
    """The program of a masked dense model for one call: the whole model, else graph by graph, else module by module."""
    clock = _Clock(notify)
    try:
        with clock.stage("capture"):
            captured = capture(reference, *call, dynamic_batch=dynamic_batch)
    except CaptureError as error:
        if settings.strict:
            raise
        log.info("the model is not one graph: %s", error)
        return _in_parts(reference, call, settings, error)
    _warn_unused(captured, masked)
    try:
        return run_stages(captured, reference, call, settings, clock)
    except NeedsStaticBatch:
        return compile_program(reference, call, settings, dynamic_batch=False, notify=notify)
    except Exception as error:
        run_reference(reference, call)  # raises the model's own error where the call, not sparta, is at fault
        if settings.strict:
            raise
        return _after_failure(reference, call, settings, clock, error)


def _after_failure(reference: nn.Module, call: Call, settings: Settings, clock: _Clock, error: Exception) -> Program:
    """The masked dense model, after a fault of sparta itself: a user's model never stops because of one."""
    note = f"{clock.current} failed with {error!r}, runs the masked dense model; please report it"
    log.error("%s", note, exc_info=error)
    warnings.warn(note, RuntimeWarning, stacklevel=2)
    return Gate(reference, call, settings).dense(note)


def _warn_unused(captured: Captured, masked: Collection[str]) -> None:
    unused = sorted(set(masked) - set(captured.names.values()))
    if unused:
        message = f"the forward never uses {', '.join(unused)}: their masks have no effect"
        warnings.warn(message, UserWarning, stacklevel=2)


def _in_parts(reference: nn.Module, call: Call, settings: Settings, reason: CaptureError) -> Program:
    """The program of a model that is not one graph."""

    def compile_part(model: nn.Module, call: Call, dynamic: bool) -> Program:
        return compile_program(model, call, settings, dynamic_batch=dynamic)

    for compile_parts in (compile_by_dynamo, compile_by_modules):
        program = compile_parts(reference, call, settings, compile_part)
        if program is not None:
            return program.reported(notes=(*program.report.notes, f"optimized in parts: {reason}"))
    return Gate(reference, call, settings).dense(f"not captured, runs dense: {reason}")


def run_stages(captured: Captured, reference: nn.Module, call: Call, settings: Settings, clock: _Clock) -> Program:
    """The stages from a captured graph to a verified, measured program."""
    with clock.stage("annotate"):
        annotated = annotate(captured, {})
    with clock.stage("propagate"):
        propagated = propagate(annotated)
    with clock.stage("fold"):
        folded = fold(propagated)
    with clock.stage("transform"):
        planned = transform(folded, settings, pytree.tree_leaves(call))
    with clock.stage("specialize"):
        specialized = specialize(planned)
    gate = Gate(reference, call, settings)
    with clock.stage("verify"):
        verified = gate.verify(specialized)
    with clock.stage("measure"):
        program = gate.measure(verified)
    return program.reported(stages=clock.seconds)


def load(path: str | Path) -> OptimizedModule:
    """The optimized model that `OptimizedModule.save` wrote; kernels are compiled again for this machine.

    Raises
    ------
    FormatError
        If the file is damaged, hostile, or of another format version. Nothing in it is executed.
    """
    from sparta.runtime.files import load as read

    return read(Path(path))


def _example(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example as positional and keyword arguments: a lone tensor is one argument, a mapping is keywords."""
    named = dict(kwargs or {})
    if inputs is None:
        return (), named
    if isinstance(inputs, Mapping):
        return (), {**inputs, **named}
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), named


def _notifier(progress: bool | Callable[[str], None]) -> Callable[[str], None] | None:
    if callable(progress):
        return progress
    if not progress:
        return None
    from rich.console import Console

    return Console(stderr=True).log


@dataclass(slots=True)
class _Clock:
    """Times, names and announces the stages."""

    notify: Callable[[str], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    current: str = "capture"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current = name
        if self.notify is not None:
            self.notify(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            log.debug("%s took %.3f s", name, self.seconds[name])
