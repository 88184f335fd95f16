"""The Dynamo backend: ``torch.compile(model, backend="sparta")``, whose body is the same line of stages.

Dynamo hands over one graph for each stretch between graph breaks; every graph is optimized as a model of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.weak import WeakIdKeyDictionary

from sparta.propagation.binding import Call
from sparta.runtime.module import Compile, OptimizedModule
from sparta.runtime.program import Program
from sparta.runtime.reference import masked_model
from sparta.settings import Settings
from sparta.tesa import normalize_masks
from sparta.tesa.errors import OptionError
from sparta.tesa.naming import named_tensors

_ATTACHED: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Parameter -> its mask, as long as the parameter lives."""


def attach_masks(model: nn.Module, masks: Any = None) -> None:
    """Bind masks to a model's parameters for ``torch.compile(model, backend="sparta")``; nothing is changed.

    Parameters
    ----------
    model
        The model that will be compiled.
    masks
        Any form `sparta.optimize` takes; binding again replaces what was bound.

    Raises
    ------
    MaskError
        Listing every mask that does not fit the model.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(4, 4)
    >>> attach_masks(model, {"weight": torch.eye(4)})
    """
    named = named_tensors(model)
    for name, mask in normalize_masks(masks, model).items():
        _ATTACHED[named[name]] = mask


def sparta_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A callable for one Dynamo graph: `OptimizedModule` over the graph, compiled at its first call.

    Parameters
    ----------
    gm, example_inputs
        As Dynamo gives them: parameters are among the inputs, by identity.
    options
        ``masks`` (flat or nested, by the compiled model's names) and any option of `sparta.optimize`.

    Raises
    ------
    OptionError
        For an unknown option.
    """
    from sparta.api import compile_program

    options = dict(options or {})
    masks = options.pop("masks", None)
    settings = Settings.checked(options=options)

    def compile_part(model: nn.Module, call: Call, dynamic: bool) -> Program:
        return compile_program(model, call, settings, dynamic_batch=dynamic)

    run, _ = optimized_graph(gm, example_inputs, masks, compile_part, settings)
    return run


def optimized_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], masks: Any, compile_part: Compile, settings: Settings
) -> tuple[Callable[..., Any], OptimizedModule]:
    """What Dynamo calls for one graph, and the optimized module behind it."""
    graph = _Graph(gm, example_inputs)
    reference = masked_model(graph, _graph_masks(graph, masks))
    optimized = OptimizedModule(
        reference, compile_part, max_shapes=settings.max_shapes, dynamic_batch=settings.dynamic_batch
    )
    return graph.caller(optimized), optimized


def _graph_masks(graph: _Graph, given: Any) -> dict[str, Tensor]:
    """The masks of this graph's parameters: attached ones, and those of the options by name."""
    attached = {name: _ATTACHED[tensor] for name, tensor in graph.originals.items() if tensor in _ATTACHED}
    if given is None:
        return attached
    if not isinstance(given, Mapping):
        message = (
            f"options['masks'] must be a mapping here, got {type(given).__name__}; use sparta.load_masks for files"
        )
        raise OptionError(message)
    return {**attached, **{name: mask for name, mask in _flat(given) if name in graph.originals}}


def _flat(masks: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pairs = []
    for name, value in masks.items():
        nested = value if isinstance(value, Mapping) else {None: value}
        pairs += [(name if leaf is None else f"{name}.{leaf}", mask) for leaf, mask in nested.items()]
    return [(name, mask) for name, mask in pairs if mask is not None]


class _Graph(nn.Module):
    """A Dynamo graph whose parameters are its own attributes again, under the model's names."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        super().__init__()
        self.body = gm
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.fixed: dict[int, tuple[nn.Module, str]] = {}
        self.originals: dict[str, Tensor] = {}
        for position, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
            name = _source_name(node)
            if isinstance(value, nn.Parameter) or (name is not None and isinstance(value, Tensor)):
                self._own(position, name or f"parameter_{position}", value)
        self.free = [position for position in range(len(placeholders)) if position not in self.fixed]
        self.count = len(placeholders)

    def _own(self, position: int, name: str, value: Tensor) -> None:
        *path, leaf = name.split(".")
        owner: nn.Module = self
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        if isinstance(value, nn.Parameter):
            owner.register_parameter(leaf, value)
        else:
            owner.register_buffer(leaf, value)
        self.fixed[position] = owner, leaf
        self.originals[name] = value

    def forward(self, *inputs: Any) -> Any:
        """The graph's results for the inputs that are not parameters."""
        values: list[Any] = [None] * self.count
        for position, (owner, leaf) in self.fixed.items():
            values[position] = getattr(owner, leaf)
        for position, value in zip(self.free, inputs, strict=True):
            values[position] = value
        return self.body(*values)

    def caller(self, optimized: OptimizedModule) -> Callable[..., Any]:
        """What Dynamo calls with all inputs: passes on those that are not parameters."""
        free = self.free

        def call(*inputs: Any) -> Any:
            return optimized(*(inputs[position] for position in free))

        disabled: Callable[..., Any] = torch.compiler.disable(call)
        return disabled


_PART = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]|\.(?!_modules|_parameters|_buffers)(\w+)")


def _source_name(node: fx.Node) -> str | None:
    """The qualified name of the module tensor a placeholder stands for, or None for an argument of the call.

    Dynamo writes ``L['self']._modules['fc']._parameters['weight']``.
    """
    source = getattr(getattr(node, "_dynamo_source", None), "name", None)
    text = source() if callable(source) else source
    if not isinstance(text, str) or not re.search(r"_(?:parameters|buffers)\[", text):
        return None
    return ".".join(indexed or dotted for indexed, dotted in _PART.findall(text))
