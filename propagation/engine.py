"""The fixed point: facts forward through the graph, needs backward.

Facts (`known`, `value`) are properties of the masked program alone. Needs are justified by facts and by the outputs,
never by other needs: "weight w is idle because x is unused" and "x is unused because w is idle" together would drop
a term that neither fact allows to drop. So facts do not depend on needs, the graph has no cycle, and one sweep in
each direction reaches the fixed point: a second one would find every node as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx

from sparta.propagation import rules as rules  # fills the registry
from sparta.propagation.call import Call, Facts, Result, bind, run_operator, unknown_results
from sparta.propagation.registry import Needs, Rule, lookup, operator_name
from sparta.propagation.stages import Annotated, Barrier, Propagated
from sparta.tesa import TeSA
from sparta.tesa.compressed import anywhere, compress, uniform

LARGEST_FOLD = 1 << 26
"""Elements a tensor may have for an operator without a precise rule to be run at compile time."""

SIZE_QUERIES = frozenset({"aten.sym_size", "aten.sym_numel", "aten.sym_stride", "aten.sym_storage_offset", "aten.size"})
"""Operators that read the shape of a tensor, none of its elements."""


@dataclass(slots=True)
class _State:
    """What both sweeps share.

    `silent` holds the nodes without a rule for their call; `parametric` the nodes that are functions of weights only.
    """

    facts: dict[fx.Node, Result] = field(default_factory=dict)
    needs: dict[fx.Node, list[Tensor]] = field(default_factory=dict)
    silent: set[fx.Node] = field(default_factory=set)
    parametric: set[fx.Node] = field(default_factory=set)


@torch.no_grad()
def propagate(annotated: Annotated) -> Propagated:
    """Attributes of every tensor of the graph: what is constant, and what some output may depend on.

    Operators without a rule are barriers: their result is unknown, their inputs are needed, and they are listed.

    Parameters
    ----------
    annotated
        A captured model with its masked weights.

    Examples
    --------
    A dead row of the first layer is a known zero, and the column that reads it is not needed:

    >>> from sparta.propagation import annotate, capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    >>> mask = torch.tensor([[True, True, True], [False, False, False]])
    >>> result = propagate(annotate(capture(model, (torch.randn(4, 3),)), {"0.weight": mask}))
    >>> attributes = {node.name: attribute for node, attribute in result.tesa.items()}
    >>> attributes["relu"].known.tolist(), attributes["p_2_weight"].need.tolist()
    ([[False, True]], [[True, False]])
    """
    graph = annotated.captured.graph
    state = _State()
    for node in graph.nodes:
        _forward(node, state, annotated.weights)
    for node in reversed(graph.nodes):
        _backward(node, state)
    tesa = {node: _with_needs(fact, state.needs.get(node)) for node, fact in state.facts.items()}
    return Propagated(annotated, tesa, tuple(_barriers(state)))


def nothing_known(annotated: Annotated) -> Propagated:
    """The weakest attributes, under which nothing may be removed: weights are constants, the rest may be anything."""
    state = _State()
    for node in annotated.captured.graph.nodes:
        if node.op == "placeholder" and node.name in annotated.weights:
            state.facts[node] = TeSA.constant(annotated.weights[node.name])
        elif _has_tensor(node):
            state.facts[node] = _unknown(node)
    return Propagated(annotated, state.facts, ())


# ------------------------------------------------------------------------------------------------ forward


def _forward(node: fx.Node, state: _State, weights: Mapping[str, Tensor]) -> None:
    if node.op == "placeholder" and node.name in weights:
        state.facts[node] = TeSA.constant(weights[node.name])
        state.parametric.add(node)
    elif node.op in ("placeholder", "call_function") and _has_tensor(node):
        state.facts[node] = _result(node, state)
        if node.all_input_nodes and all(n in state.parametric for n in node.all_input_nodes):
            state.parametric.add(node)


def _has_tensor(node: fx.Node) -> bool:
    return any(tesa is not None for tesa in unknown_results(node))


def _unknown(node: fx.Node) -> Result:
    results = unknown_results(node)
    if isinstance(node.meta.get("val"), list | tuple):
        return results
    assert results[0] is not None
    return results[0]


def _result(node: fx.Node, state: _State) -> Result:
    if node.target is operator.getitem:
        return _item(node, state.facts)
    if node.op == "placeholder":
        return _unknown(node)
    rule, call = lookup(node), bind(node, state.facts)
    result = rule.forward(call) if rule is not None and call is not None else None
    if call is not None and not _all_known(result) and _is_foldable(call, rule):
        return _fold(call)
    if result is None:
        state.silent.add(node)
        return _unknown(node)
    return result


def _item(node: fx.Node, facts: Facts) -> Result:
    source, index = node.args
    assert isinstance(source, fx.Node)
    fact = facts.get(source)
    item = fact[index] if isinstance(fact, tuple) and isinstance(index, int) else None
    return _unknown(node) if item is None else item


def _all_known(result: Result | None) -> bool:
    return result is not None and all(r is not None and r.is_constant for r in _as_tuple(result))


def _as_tuple(result: Result) -> tuple[TeSA | None, ...]:
    return result if isinstance(result, tuple) else (result,)


def _is_foldable(call: Call, rule: Rule | None) -> bool:
    """A deterministic ATen operator with one result, all of whose operands are known, and which is not too large."""
    target = call.node.target
    assert isinstance(target, torch._ops.OpOverload)
    operands = list(call.operands())
    return (
        target.namespace == "aten"
        and torch.Tag.nondeterministic_seeded not in target.tags
        and (rule is None or rule.foldable)
        and isinstance(call.node.meta["val"], Tensor)
        and not call.is_symbolic
        and all(tesa.is_static and _elements(tesa) <= LARGEST_FOLD for tesa in (*operands, call.unknown()))
        and all(operand.is_constant for operand in operands)
    )


def _elements(tesa: TeSA) -> int:
    return torch.Size([int(size) for size in tesa.shape]).numel()


def _fold(call: Call) -> TeSA:
    """The constant that the operator gives for its known operands."""
    return TeSA.constant(run_operator(call.node, call.full_values()))


# ----------------------------------------------------------------------------------------------- backward


def _backward(node: fx.Node, state: _State) -> None:
    """Pass the need of `node` on to its inputs; a node that is constant or not needed asks for nothing."""
    if node.op == "output" or (node not in state.facts and not _reads_sizes_only(node)):
        _need_everything(node, state)
    elif node.target is operator.getitem:
        _need_item(node, state)
    elif node.op == "call_function" and node in state.facts:
        _need_arguments(node, state)


def _reads_sizes_only(node: fx.Node) -> bool:
    return operator_name(node) in SIZE_QUERIES


def _need_everything(node: fx.Node, state: _State) -> None:
    for source in node.all_input_nodes:
        for index, tesa in enumerate(_as_tuple(state.facts.get(source, ()))):
            if tesa is not None:
                _add(source, index, uniform(len(tesa.shape), True), state)


def _need_item(node: fx.Node, state: _State) -> None:
    source, index = node.args
    assert isinstance(source, fx.Node)
    if node in state.needs:
        if isinstance(index, int) and isinstance(state.facts.get(source), tuple):
            _add(source, index, state.needs[node][0], state)
        else:
            _need_everything(node, state)


def _need_arguments(node: fx.Node, state: _State) -> None:
    live = _live(node, state)
    if not any(anywhere(need) for need in live):
        return
    rule, call = lookup(node), bind(node, state.facts)
    needs = None
    if rule is not None and call is not None and node not in state.silent:
        needs = rule.backward(Call(call.node, call.sources, call.args, call.outputs, tuple(live)))
    if needs is None or call is None:
        _need_everything(node, state)
    else:
        _distribute(call, needs, state)


def _live(node: fx.Node, state: _State) -> list[Tensor]:
    """What must be computed of each result. Functions of weights count as computed, so that the need of a weight
    is seen through its transposes and products although these are constants."""
    fact, needs = _as_tuple(state.facts[node]), _needs_of(node, state)
    if node in state.parametric:
        return needs
    return [need if tesa is None else need & ~tesa.known for tesa, need in zip(fact, needs, strict=True)]


def _needs_of(node: fx.Node, state: _State) -> list[Tensor]:
    """The needs of the results of `node` collected so far, none at first."""
    if node not in state.needs:
        state.needs[node] = [uniform(len(t.shape) if t else 0, False) for t in _as_tuple(state.facts[node])]
    return state.needs[node]


def _add(node: fx.Node, index: int, need: Tensor, state: _State) -> None:
    needs = _needs_of(node, state)
    needs[index] = needs[index] | need


def _distribute(call: Call, needs: Needs, state: _State) -> None:
    """Give every argument node its need; one that appears twice is needed where either place needs it."""
    for name, source in call.sources.items():
        sources = source if isinstance(source, list | tuple) else [source]
        for position, item in enumerate(sources):
            fact = state.facts.get(item) if isinstance(item, fx.Node) else None
            if isinstance(fact, TeSA):
                need = needs.get(name, uniform(len(fact.shape), True))
                _add(item, 0, need if isinstance(need, Tensor) else need[position], state)


# ------------------------------------------------------------------------------------------------- result


def _with_needs(fact: Result, needs: list[Tensor] | None) -> Result:
    """`fact` with the collected needs, none if nothing asked for the node."""
    if isinstance(fact, TeSA):
        return fact.with_need(uniform(len(fact.shape), False) if needs is None else compress(needs[0]))
    collected = needs or [uniform(0 if tesa is None else len(tesa.shape), False) for tesa in fact]
    return tuple(
        None if tesa is None else tesa.with_need(compress(need)) for tesa, need in zip(fact, collected, strict=True)
    )


def _barriers(state: _State) -> Iterator[Barrier]:
    """The nodes without a rule for their call that a fact or a need could have passed through."""
    for node in state.facts:
        if node in state.silent and any(source in state.facts for source in node.all_input_nodes):
            yield Barrier(operator_name(node), _module_of(node), node.name)


def _module_of(node: fx.Node) -> str:
    """Qualified name of the innermost module whose forward made `node`."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((path for path, _ in reversed(list(stack.values()))), "")
