"""Graphs as JSON: round trips, and nothing but known operators comes back."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
import torch
from torch import fx

from sparta.runtime.graph_json import (
    decode_argument,
    decode_graph,
    decode_target,
    encode_argument,
    encode_graph,
    operator_names,
)
from sparta.tesa.errors import FormatError


def small_graph() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.relu.default, (x,))
    z = graph.call_function(torch.ops.aten.mean.dim, (y, [-1], True), {"dtype": torch.float32})
    w = graph.call_function(torch.ops.aten.split.Tensor, (z, 1))
    v = graph.call_function(operator.getitem, (w, 0))
    graph.output((v, (y, None)))
    return graph


def test_round_trip_computes_the_same() -> None:
    graph = small_graph()
    again = decode_graph(json.loads(json.dumps(encode_graph(graph))))
    x = torch.randn(3, 4)
    want, got = (fx.GraphModule(torch.nn.Module(), g)(x) for g in (graph, again))
    assert torch.equal(want[0], got[0])
    assert torch.equal(want[1][0], got[1][0])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -2.5, "tanh", [1, [2, 3]], (1, (None,)), float("inf"), torch.float32, torch.bfloat16,
        torch.strided, torch.contiguous_format, torch.device("cpu"),
    ],
)  # fmt: skip
def test_arguments_round_trip(value: Any) -> None:
    assert decode_argument(json.loads(json.dumps(encode_argument(value))), {}) == value


@pytest.mark.parametrize("value", [object(), 1 + 2j, {"a": 1}, torch.ones(1)])
def test_what_cannot_be_said_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match="cannot hold"):
        encode_argument(value)


@pytest.mark.parametrize(
    "name",
    ["os.system", "operator.attrgetter", "aten.from_file.default", "aten.set_.source_Storage", "builtins.eval", "", 3,
     "aten.relu", "aten.relu.nonsense", "aten.as_strided.default", "aten.relu_.default", "aten.__class__.default",
     "aten.relu.out", "aten.topk.values"],
)  # fmt: skip
def test_targets_outside_the_table_are_refused(name: object) -> None:
    with pytest.raises(FormatError):
        decode_target(name)


def test_the_table_names_operators_that_exist() -> None:
    for name in operator_names():
        namespace, _, short = name.partition(".")
        assert short.startswith("__") or not short.endswith("_"), f"{name} works in place"
        assert getattr(getattr(torch.ops, namespace), short, None) is not None, f"PyTorch has no {name}"


@pytest.mark.parametrize(
    "entries",
    [
        None, {}, [], [{}], [{"op": "call_module", "name": "a", "target": "b", "args": {"tuple": []}, "kwargs": {}}],
        [{"op": "output", "name": "o", "target": "output", "args": {"tuple": [{"node": "ghost"}]}, "kwargs": {}}],
        [{"op": "placeholder", "name": "x", "target": "x", "args": {"tuple": []}, "kwargs": {}}],
        [{"op": "call_function", "name": "f", "target": "os.system", "args": {"tuple": ["ls"]}, "kwargs": {}}],
        [{"op": "output", "name": "o", "target": "output", "args": {"tuple": [{"device": "moon"}]}, "kwargs": {}}],
        [{"op": "output", "name": "o", "target": "output", "args": {"tuple": [{"dtype": "float7"}]}, "kwargs": {}}],
    ],
)  # fmt: skip
def test_damaged_graphs_are_refused(entries: Any) -> None:
    with pytest.raises(FormatError):
        decode_graph(entries)
