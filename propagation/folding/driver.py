"""`fold`: rebuild the graph with dead rows, columns, channels and heads gone and known constants folded."""

from __future__ import annotations

import logging
import operator
from typing import Any

import torch
from torch import fx

from sparta.propagation.folding import attention as attention
from sparta.propagation.folding import contraction as contraction
from sparta.propagation.folding import convolution as convolution
from sparta.propagation.folding import norm as norm
from sparta.propagation.folding import pooling as pooling
from sparta.propagation.folding import reduction as reduction
from sparta.propagation.folding import selection as selection
from sparta.propagation.folding import shape as shape
from sparta.propagation.folding.demand import demands
from sparta.propagation.folding.elementwise import fold_elementwise, is_elementwise
from sparta.propagation.folding.folder import Folder
from sparta.propagation.folding.table import ITEM_RULES, RULES, operator_name
from sparta.propagation.stages import Folded, Propagated
from sparta.tesa.compressed import anywhere

_log = logging.getLogger("sparta.propagation.folding")


@torch.no_grad()
def fold(propagated: Propagated) -> Folded:
    """The shrunken model, in plain PyTorch: computes exactly the masked model with fewer rows, columns and channels.

    Nodes are rebuilt in order. Each asks its fold rule to run on operands in the layouts they are in; an operator
    without a rule gets whole operands (known constants filled in) and runs unchanged.

    Parameters
    ----------
    propagated
        The attributes of all tensors of the graph.

    Returns
    -------
    Folded
        A `GraphModule` over the user inputs; outputs keep their shape.

    Examples
    --------
    >>> from sparta.propagation import annotate, capture
    >>> from sparta.propagation.engine import propagate
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> masks = {"0.weight": torch.tensor([[True], [False], [True], [False]]).expand(4, 4)}
    >>> masks["0.bias"] = masks["0.weight"][:, 0]
    >>> folded = fold(propagate(annotate(capture(model, (torch.randn(3, 4),)), masks)))
    >>> folded.removed
    {'0.weight': ((4, 4), (2, 4)), '0.bias': ((4,), (2,)), '2.weight': ((2, 4), (2, 2))}
    """
    folder = Folder(propagated)
    folder.demands = demands(folder)
    for node in propagated.annotated.captured.graph.nodes:
        _STEPS[node.op](folder, node)
    folder.graph.eliminate_dead_code()
    folder.graph.lint()
    folder.constants.prune()
    _note_removed(folder)
    module = fx.GraphModule(folder.root, folder.graph)
    return Folded(module.eval(), dict(folder.constants.names), propagated, dict(folder.removed))


def _placeholder(folder: Folder, node: fx.Node) -> None:
    if node.name not in folder.captured.user_inputs:
        return
    folder.place(node, folder.graph.placeholder(node.name))


def _get_attr(folder: Folder, node: fx.Node) -> None:
    """Carry over the bodies of higher-order operators, and tensors that the graph itself owns."""
    target = str(node.target)
    if folder.is_constant(node):
        return
    owned = operator.attrgetter(target)(folder.captured.root)
    if isinstance(owned, torch.nn.Module):
        folder.root.add_module(target, owned)
        folder.place(node, folder.graph.get_attr(target))
    else:
        folder.place(node, folder.emit(owned, target))


def _call(folder: Folder, node: fx.Node) -> None:
    if folder.placed(node) or not folder.is_live(node) or operator_name(node) in ITEM_RULES or folder.is_size(node):
        return
    if not _rule(folder, node):
        fallback(folder, node)


def _rule(folder: Folder, node: fx.Node) -> bool:
    """Whether a fold rule placed the node."""
    if not folder.is_tensor(node):
        return False
    if node.target is operator.getitem:
        parent, index = node.args
        assert isinstance(parent, fx.Node)
        assert isinstance(index, int)
        item_rule = ITEM_RULES.get(operator_name(parent))
        return item_rule is not None and item_rule(folder, node, parent, index)
    rule = fold_elementwise if is_elementwise(node) else RULES.get(operator_name(node))
    return rule is not None and rule(folder, node)


def fallback(folder: Folder, node: fx.Node) -> None:
    """Run an operator unchanged on whole operands: always correct."""
    _log.debug("no fold rule applies to %s (%s)", node, operator_name(node))

    for operand in node.all_input_nodes:
        if isinstance(folder.propagated.tesa.get(operand), tuple) and not folder.placed(operand):
            fallback(folder, operand)
    args, kwargs = fx.map_arg(node.args, folder.operand), fx.map_arg(node.kwargs, folder.operand)
    folder.place(node, folder.again(node, *args, **kwargs))


def _output(folder: Folder, node: fx.Node) -> None:
    leaves: Any = fx.map_arg(node.args[0], folder.operand)
    folder.graph.output(tuple(leaves))


def _note_removed(folder: Folder) -> None:
    """Record the matrices that nothing is left of, because no output needs them."""
    for node in folder.captured.graph.find_nodes(op="placeholder"):
        name = folder.captured.names.get(node.name)
        if name is not None and len(folder.tesa(node).shape) > 1 and not anywhere(folder.tesa(node).need):
            before = tuple(folder.tensor(node).shape)
            folder.removed[name] = (before, (0,) * len(before))


_STEPS = {"placeholder": _placeholder, "get_attr": _get_attr, "call_function": _call, "output": _output}
