"""The frozen results that the propagation stages hand on: Captured, Annotated, Propagated, Folded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from sparta.tesa import TeSA


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """One whole model as a functional ATen graph, with the names of its tensors.

    Parameters
    ----------
    graph
        Placeholders (parameters, buffers, constants, then user inputs), `call_function` nodes, one output. Functional:
        no in-place operator, no `view` (all are `reshape`), no metadata assertions.
    root
        Module that owns what `get_attr` nodes name (bodies of higher-order operators).
    tensors
        Placeholder name -> tensor, for every parameter, buffer and constant of the graph; the model's own objects.
    names
        Placeholder name -> fully qualified name as in `model.named_parameters()` / `named_buffers()`.
    aliases
        Fully qualified name -> canonical name of the same storage (tied weights); every name of the model is a key.
    user_inputs
        Names of the placeholders that take the call's arguments, in flattened order.
    in_spec, out_spec
        Pytree structure of `(args, kwargs)` and of the result.
    example
        `(args, kwargs)` the graph was captured with (batch 1 may have been doubled to keep the batch symbolic).
    dynamic
        For each user input, the dimensions that are symbolic.
    guards
        Conditions on the symbolic sizes that capture assumed; a call that breaks one must not run the graph.
    """

    graph: fx.Graph
    root: torch.nn.Module
    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]
    aliases: Mapping[str, str]
    user_inputs: tuple[str, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    example: tuple[tuple[Any, ...], Mapping[str, Any]]
    dynamic: tuple[tuple[int, ...], ...]
    guards: tuple[sympy.Basic, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Annotated:
    """A captured model whose tensors carry their masks.

    Parameters
    ----------
    captured
        The graph.
    weights
        Placeholder name -> tensor with the mask multiplied in (the model's own object where there is no mask).
    masks
        Placeholder name -> bool mask, for the masked tensors only.
    """

    captured: Captured
    weights: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Barrier:
    """An operator without a propagation rule: its result is unknown, all its inputs are needed, PyTorch runs it."""

    op: str
    module: str
    node: str


@dataclass(frozen=True, slots=True, eq=False)
class Propagated:
    """The fixed point: an attribute for every tensor of the graph.

    Parameters
    ----------
    annotated
        What was propagated.
    tesa
        Node -> attribute, or a tuple of attributes for nodes with several results. Nodes without a tensor result
        (sizes, symbolic integers) have no entry.
    barriers
        Operators that had no rule, once each.
    """

    annotated: Annotated
    tesa: Mapping[fx.Node, TeSA | tuple[TeSA | None, ...]]
    barriers: tuple[Barrier, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The shrunken model: dead rows, columns, channels and heads are gone, constants are folded; plain PyTorch.

    Parameters
    ----------
    module
        Fresh `GraphModule`: placeholders are the user inputs only (same names and order as `captured.user_inputs`),
        weights are `get_attr` nodes, the output is the flat tuple of result leaves in `out_spec` order. Outputs keep
        their original shape. Every node that stands for an original one has `meta["source"]` (original node name) and
        `meta["module"]` (fully qualified module name); weights keep their original qualified name as buffer name with
        dots replaced by `__`, recorded in `names`.
    names
        Attribute name of a tensor in `module` -> original fully qualified name.
    propagated
        What was folded.
    removed
        Qualified weight name -> (original shape, folded shape), for the weights that shrank.
    """

    module: fx.GraphModule
    names: Mapping[str, str]
    propagated: Propagated
    removed: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
