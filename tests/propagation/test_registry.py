"""The table of rules."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import sparta.propagation.rules  # noqa: F401  (fills the table)
from sparta.propagation.registry import RULES, lookup, operator_name, register, rule


def node_of(target: object) -> fx.Node:
    return fx.Graph().call_function(target, ())  # type: ignore[arg-type]


def test_names_have_no_overload() -> None:
    assert operator_name(node_of(torch.ops.aten.add.Tensor)) == "aten.add"
    assert operator_name(node_of(torch.ops.higher_order.cond)) == "cond"


def test_all_overloads_of_an_operator_share_a_rule() -> None:
    assert lookup(node_of(torch.ops.aten.conv2d.padding)) is RULES["aten.conv2d"]
    assert lookup(node_of(torch.ops.aten.conv2d.default)) is RULES["aten.conv2d"]


def test_an_operator_without_a_rule_has_none() -> None:
    assert lookup(node_of(torch.ops.aten.topk.default)) is None


def test_a_second_rule_for_an_operator_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"aten\.relu has two"):
        register("aten.relu", RULES["aten.relu"])
    with pytest.raises(AssertionError, match=r"aten\.linear has two"):
        rule("aten.linear", backward=RULES["aten.linear"].backward)(RULES["aten.linear"].forward)


@pytest.mark.parametrize("name", ["aten.rand_like", "aten.empty_like", "aten.randn"])
def test_random_and_uninitialized_tensors_are_never_folded(name: str) -> None:
    assert not RULES[name].foldable
