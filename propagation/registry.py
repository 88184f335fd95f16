"""The table of rules: what every operator does to attributes, forward and backward.

Two ways to add an operator. If its algebra is one of the known classes, a row is enough:

    elementwise(*aten("relu gelu"))

Otherwise write its forward function, and say which function carries the need back to its arguments:

    @rule("aten.layer_norm", backward=whole_row)
    def layer_norm(call: Call) -> TeSA | None: ...

A function returns None when it cannot treat the call at hand (a symbolic size, a rare option); the engine then
assumes that the result is unknown and every argument needed, which is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from sparta.propagation.call import Call, Result

Needs = Mapping[str, Tensor | Sequence[Tensor]]
"""Tensor argument name -> which of its elements matter. An argument that is not named is needed whole."""

Forward = Callable[[Call], Result | None]
Backward = Callable[[Call], Needs | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """What one operator does to attributes.

    Parameters
    ----------
    forward
        Attribute of the result from those of the arguments.
    backward
        Need of the arguments from the need of the result. It may rely on known facts only, never on other needs.
    foldable
        With every argument known, the operator may be run once at compile time.
    """

    forward: Forward
    backward: Backward
    foldable: bool = True


def aten(names: str) -> tuple[str, ...]:
    """The full names of ATen operators given as words.

    Examples
    --------
    >>> aten("relu gelu")
    ('aten.relu', 'aten.gelu')
    """
    return tuple(f"aten.{name}" for name in names.split())


RULES: dict[str, Rule] = {}
"""Operator name -> rule; filled when `sparta.propagation.rules` is imported."""


def register(name: str, entry: Rule) -> None:
    """Add the rule of operator `name`; two rules for one operator are a programming error."""
    assert name not in RULES, f"operator {name} has two propagation rules"
    RULES[name] = entry


def rule(*names: str, backward: Backward) -> Callable[[Forward], Forward]:
    """Decorator that registers a forward function, with its backward, for the operators `names`."""

    def add(forward: Forward) -> Forward:
        for name in names:
            register(name, Rule(forward, backward))
        return forward

    return add


def opaque(*names: str) -> None:
    """Rows of operators that nothing is known about by design, not even with known arguments (memory, random)."""
    for name in names:
        register(name, Rule(lambda call: None, lambda call: None, foldable=False))


def operator_name(node: fx.Node) -> str:
    """Name of what `node` calls without its overload, such as "aten.linear"."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.partition('::')[2]}"
    return str(getattr(target, "__name__", target))


def lookup(node: fx.Node) -> Rule | None:
    """The rule of what `node` calls, or None if it has none."""
    return RULES.get(operator_name(node))
