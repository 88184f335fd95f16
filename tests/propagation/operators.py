"""One operator call with chosen attributes for its operands, to test rules one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import sparta.propagation.rules  # noqa: F401  (fills the table)
from sparta.propagation.call import Call, Result, bind
from sparta.propagation.registry import Needs, Rule, lookup
from sparta.tesa import TeSA


def tesa(value: Any, known: Any = True, dtype: torch.dtype = torch.float32) -> TeSA:
    """The attribute of a static tensor with these values where `known`, both as nested lists."""
    values = torch.as_tensor(value, dtype=dtype)
    mask = torch.as_tensor(known).expand(values.shape)
    return TeSA.partial(tuple(values.shape), dtype, mask, values)


def is_tesa(leaf: object) -> bool:
    return isinstance(leaf, TeSA)


def sample(attribute: TeSA, scale: float = 2.0) -> Tensor:
    """A random tensor that `attribute` describes."""
    shape = [int(size) for size in attribute.shape]
    noise = torch.randn(shape) * scale if attribute.dtype.is_floating_point else torch.randint(0, 2, shape)
    return torch.where(attribute.known.expand(shape), attribute.full_value(), noise.to(attribute.dtype))


def concretize(arguments: Any, draw: Callable[[TeSA], Tensor] = sample) -> Any:
    """`arguments` with a tensor in the place of every attribute."""
    return pytree.tree_map(lambda leaf: draw(leaf) if is_tesa(leaf) else leaf, arguments, is_leaf=is_tesa)


def make_call(target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Call:
    """A graph with the one call ``target(*args, **kwargs)``, its attributes given as `TeSA`, as the rules see it."""
    graph = fx.Graph()
    facts: dict[fx.Node, Result] = {}

    def place(leaf: Any) -> Any:
        if not is_tesa(leaf):
            return leaf
        node = graph.placeholder(f"x{len(facts)}")
        facts[node] = leaf
        return node

    placed_args, placed_kwargs = pytree.tree_map(place, (args, kwargs), is_leaf=is_tesa)
    node = graph.call_function(target, placed_args, placed_kwargs)
    node.meta["val"] = target(*concretize(args), **concretize(kwargs))
    call = bind(node, facts)
    assert call is not None
    return call


def rule_of(call: Call) -> Rule:
    found = lookup(call.node)
    assert found is not None
    return found


def forward(target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> TeSA:
    """The attribute of the one result of a call."""
    call = make_call(target, *args, **kwargs)
    result = rule_of(call).forward(call)
    assert isinstance(result, TeSA)
    return result


def backward(need: Any, target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Needs:
    """The needs of the operands of a call whose result is needed where `need` says, given as a nested list."""
    call = make_call(target, *args, **kwargs)
    mask = torch.as_tensor(need, dtype=torch.bool)
    needs = rule_of(call).backward(replace(call, needs=(mask,) * len(call.outputs)))
    assert needs is not None
    return needs


def full_known(result: TeSA) -> list[Any]:
    """`known` at the true shape, as nested lists."""
    shape = [int(size) for size in result.shape]
    return result.known.expand(shape).tolist()
