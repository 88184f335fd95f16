"""A captured graph computes what the model computes in eval mode, and names the model's own tensors."""

from __future__ import annotations

import dataclasses
import warnings
from collections import namedtuple
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from sparta.propagation import Captured, bind, capture, flatten_call, interpret, mismatch
from sparta.tesa import InputError
from tests.propagation.captures import assert_same, calls, check
from tests.propagation.fake_nni import wrap


class Net(nn.Module):
    """BatchNorm, dropout, a tie, a non-persistent buffer, a constant, in-place code, views, and a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.fc, self.tied = nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied.weight = self.fc.weight
        self.register_buffer("scale", torch.rand(16), persistent=False)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, image: Tensor, *, flag: bool = True, bias: Tensor | None = None) -> dict[str, Any]:
        hidden = nn.functional.dropout(self.norm(self.conv(image)).relu_(), training=self.training)
        hidden = hidden.transpose(1, 2).contiguous().view(image.shape[0], -1)
        with torch.no_grad():
            fixed = self.fc(hidden) * self.scale
        out = self.tied(hidden) + torch.tensor([1.0]) if flag else hidden
        return {"out": out if bias is None else out + bias, "fixed": fixed, "flag": flag, "none": None}


@pytest.fixture(scope="module")
def net() -> Net:
    """A model for tests that only look."""
    return Net()


@pytest.fixture(scope="module")
def captured_net(net: Net) -> Captured:
    """The graph of `net`, compared with it."""
    return check(net, torch.randn(2, 3, 4, 4))


def test_names_ties_and_own_tensors(net: Net, captured_net: Captured) -> None:
    captured = captured_net
    assert captured.aliases["tied.weight"] == captured.aliases["fc.weight"] == "fc.weight"
    assert captured.aliases.keys() == {*dict(net.state_dict()), "scale"}
    assert captured.names["p_fc_weight"] == "fc.weight"
    assert captured.names["b_norm_running_mean"] == "norm.running_mean"
    assert "tied.weight" not in captured.names.values()
    assert captured.tensors["p_fc_weight"] is net.fc.weight
    assert captured.tensors["b_scale"] is net.scale
    assert captured.tensors.keys() == captured.names.keys()
    assert captured.user_inputs == ("image",)


def test_the_graph_is_functional_and_without_views_and_no_ops(captured_net: Captured) -> None:
    found = calls(captured_net)
    assert "aten.reshape.default" in found
    assert "aten.relu.default" in found
    gone = ("view", "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "_assert_tensor_metadata", "dropout")
    assert not [op for op in found if op.split(".")[1] in gone]


def test_modules_of_nodes_have_the_users_names(captured_net: Captured) -> None:
    node = next(node for node in captured_net.graph.nodes if str(node.target) == "aten.conv2d.default")
    assert [path for path, _ in node.meta["nn_module_stack"].values()] == ["", "conv"]


def test_arguments_by_position_and_keyword_are_one_call(net: Net) -> None:
    image, bias = torch.randn(2, 3, 4, 4), torch.randn(16)
    by_keyword = capture(net, (), {"bias": bias, "image": image, "flag": False})
    assert by_keyword.user_inputs == ("image", "flag", "bias")
    canonical = bind(signature(net.forward), (image,), {"flag": False, "bias": bias})
    assert len(flatten_call(by_keyword, *canonical)) == 3
    assert by_keyword.dynamic == ((0,), (), ())
    assert_same(net, by_keyword, (torch.randn(17, 3, 4, 4),), {"flag": False, "bias": bias})


def test_calls_that_do_not_bind_say_so(net: Net, captured_net: Captured) -> None:
    with pytest.raises(InputError, match="missing argument 'image'"):
        capture(net, ())
    with pytest.raises(InputError, match="structure"):
        interpret(captured_net, captured_net.tensors, torch.randn(2, 3, 4, 4), flag=True)


@dataclasses.dataclass
class Result:
    """An output class that torch does not know."""

    y: Tensor
    count: int


Pair = namedtuple("Pair", ["first", "second"])


class Returns(nn.Module):
    """Returns what a function makes of its argument."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: y,
        lambda y: [y, (y + 1, None)],
        lambda y: {"a": y, "b": {"c": 3}},
        lambda y: Pair(y, y - 1),
        lambda y: Result(y, 3),
    ],
)
def test_any_structure_of_results(make: Any) -> None:
    check(Returns(make), torch.randn(3, 2))


def test_any_structure_of_arguments() -> None:
    class Nested(nn.Module):
        def forward(self, pair: Any, *rest: Tensor, **named: Tensor) -> Tensor:
            return pair[0] + pair[1]["x"] + sum(rest) + named["z"]

    x = torch.randn(3, 2)
    captured = check(Nested(), (x, {"x": x + 1}), x + 2, z=x + 3)
    assert captured.user_inputs == ("pair_0", "pair_1_x", "rest_0", "named_z")


@pytest.mark.parametrize("batch", [1, 2, 17])
def test_the_batch_is_symbolic_whatever_the_example(batch: int) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    captured = check(net, torch.randn(batch, 4))
    assert captured.dynamic == ((0,),)
    assert captured.example[0][0].shape[0] == max(batch, 2)
    for other in (1, 2, 5, 17):
        assert_same(net, captured, (torch.randn(other, 4),), {})


def test_a_static_batch_on_request() -> None:
    captured = capture(nn.Linear(4, 4), (torch.randn(1, 4),), dynamic_batch=False)
    assert captured.dynamic == ((),)
    assert captured.example[0][0].shape == (1, 4)
    assert mismatch(captured, [torch.randn(2, 4)]) == "input_1 has size 2 in dimension 0, captured 1"


def test_a_first_dimension_that_is_no_batch_stays_static() -> None:
    captured = check(nn.Conv2d(1, 4, 3), torch.randn(1, 8, 8))
    assert captured.dynamic == ((),)
    assert captured.example[0][0].shape == (1, 8, 8)


class Product(nn.Module):
    """A batch times a matrix without one."""

    def forward(self, x: Tensor, matrix: Tensor, scale: Tensor) -> Tensor:
        return x @ matrix * scale


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_tensors_without_the_batch_do_not_break_it(batch: int) -> None:
    net, matrix, scale = Product(), torch.randn(4, 4), torch.tensor(2.0)
    captured = capture(net, (torch.randn(batch, 4), matrix, scale))
    assert captured.dynamic == ((0,), (), ())
    for other in (batch, 2, 7):
        assert_same(net, captured, (torch.randn(other, 4), matrix, scale), {})


class Halves(nn.Module):
    """Code that assumes something about the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, -1, 4).sum(0) if x.shape[0] > 5 else x


def test_what_tracing_assumed_about_the_batch_is_checked() -> None:
    captured = capture(Halves(), (torch.randn(8, 4),))
    assert mismatch(captured, [torch.randn(10, 4)]) is None
    for batch in (4, 9):
        assert "the call breaks" in str(mismatch(captured, [torch.randn(batch, 4)]))


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (3, "is a int, captured a tensor"),
        (torch.randn(2, 4).double(), "is 2-d torch.float64 on cpu"),
        (torch.randn(2, 4, 1), "is 3-d"),
        (torch.randn(2, 3), "has size 3 in dimension 1"),
    ],
)
def test_other_calls_are_told_apart(leaf: Any, reason: str) -> None:
    captured = capture(Returns(lambda y: y), (torch.randn(2, 4),))
    assert reason in str(mismatch(captured, [leaf]))


def test_symbolic_sizes_that_were_equal_must_stay_equal_and_constants_constant() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor, flag: bool) -> Tensor:
            return x + y if flag else x

    captured = capture(Sum(), (torch.randn(3, 2), torch.randn(3, 2), True))
    assert mismatch(captured, [torch.randn(5, 2), torch.randn(5, 2), True]) is None
    assert mismatch(captured, [torch.randn(5, 2), torch.randn(4, 2), True]) == "y has size 4 in dimension 0, captured 5"
    assert mismatch(captured, [torch.randn(5, 2), torch.randn(5, 2), False]) == "flag is False, captured True"


def weight_normed() -> nn.Module:
    """A linear with the old, hook-based weight norm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 4))


@pytest.mark.parametrize(
    "build",
    [
        lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5),
        lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
        weight_normed,
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        lambda: nn.LSTM(4, 4, batch_first=True),
        lambda: nn.Linear(4, 4).to(torch.bfloat16),
        lambda: nn.Linear(4, 4).double(),
    ],
)
def test_kinds_of_models(build: Any) -> None:
    net = build()
    check(net, torch.randn(2, 3, 4, dtype=next(net.parameters()).dtype))


def test_wrapped_models_are_seen_through() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4)
    plain = capture(net, (x,))
    compiled = capture(torch.compile(net, backend="eager"), (x,))
    weight = net[0].weight
    wrap(net[0], torch.zeros(4, 4))
    wrapped = capture(net, (x,))
    assert plain.names == compiled.names == wrapped.names
    assert compiled.tensors["p_0_weight"] is plain.tensors["p_0_weight"] is wrapped.tensors["p_0_weight"] is weight
    assert hasattr(net[0], "_nni_wrapper")


def test_a_result_that_is_an_argument_is_copied_where_the_model_copies() -> None:
    captured = capture(Returns(lambda y: y.detach().clone()), (torch.randn(2, 2),))
    assert calls(captured)[-1] == "aten.clone.default"


def test_empty_parts_of_concatenations_are_dropped() -> None:
    captured = check(
        Returns(lambda y: (torch.cat([torch.tensor([]), y]) + 1, torch.cat([torch.tensor([]), y]))), torch.randn(3, 2)
    )
    assert calls(captured) == ["aten.mul.Tensor", "aten.add.Tensor", "aten.clone.default"]
    assert not captured.tensors


def test_stride_sensitive_graphs_keep_their_copies() -> None:
    captured = check(Returns(lambda y: y.t().contiguous().as_strided((2,), (1,)) + 1), torch.randn(3, 2))
    assert "aten.clone.default" in calls(captured)
