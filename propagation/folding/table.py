"""The closed table of fold rules: how each operator runs on shrunken operands, one place per operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from sparta.propagation.folding.layout import Layout
from sparta.propagation.registry import operator_name as operator_name

if TYPE_CHECKING:
    from sparta.propagation.folding.folder import Folder

Rule = Callable[["Folder", fx.Node], bool]
"""Places the folded form of a node and returns True, or declines: PyTorch then runs the node on whole operands."""

Pull = Callable[["Folder", fx.Node, fx.Node, Layout], Layout]
"""(folder, operand, user, layout demanded of the user) -> the layout in which the user will take the operand."""

ItemRule = Callable[["Folder", fx.Node, fx.Node, int], bool]
"""The same for one result (node, its producer, its index) of an operator that has several."""

RULES: dict[str, Rule] = {}
ITEM_RULES: dict[str, ItemRule] = {}
PULLS: dict[str, Pull] = {}


def folds(*names: str) -> Callable[[Rule], Rule]:
    """Decorator that registers the fold rule of the named operators."""

    def add(rule: Rule) -> Rule:
        _register(RULES, names, rule)
        return rule

    return add


def folds_item(*names: str) -> Callable[[ItemRule], ItemRule]:
    """Decorator that registers the fold rule of each result of the named operators."""

    def add(rule: ItemRule) -> ItemRule:
        _register(ITEM_RULES, names, rule)
        return rule

    return add


def pulls(*names: str) -> Callable[[Pull], Pull]:
    """Decorator that registers how the named operators pass on the layout that is demanded of them."""

    def add(pull: Pull) -> Pull:
        for name in names:
            assert name not in PULLS, f"two pulls for {name}"
            PULLS[name] = pull
        return pull

    return add


def _register(table: dict[str, Any], names: tuple[str, ...], rule: Any) -> None:
    for name in names:
        assert name not in RULES and name not in ITEM_RULES, f"two fold rules for {name}"
        table[name] = rule


def arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments of an operator by their name in its schema, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    bound = {argument.name: argument.default_value if argument.has_default_value() else None for argument in schema}
    bound.update(zip((argument.name for argument in schema), node.args, strict=False))
    bound.update(node.kwargs)
    return bound
