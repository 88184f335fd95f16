"""The experiment that checks propagations notices wrong rules, and names the nodes they hit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sparta.propagation import annotate
from sparta.propagation.call import Call, Result
from sparta.propagation.engine import propagate
from sparta.propagation.registry import RULES, Needs, Rule
from sparta.propagation.stages import Propagated
from sparta.propagation.verify import bisect, garbage_injection
from sparta.tesa import TeSA
from tests.propagation.random_nets import randomize_norms
from tests.propagation.tracing import trace

DEAD = torch.arange(6) < 3
"""Output rows that are pruned in every net below."""


def unchanged(call: Call) -> Result:
    """The wrong rule of earlier tools: the mask passes as if the operator kept zeros."""
    data = next(call.tensors())[1]
    first = call.partial(data.known, data.value)
    return first if len(call.outputs) == 1 else (first, *call.outputs[1:])


def unchanged_need(call: Call) -> Needs:
    return {next(call.tensors())[0]: call.need}


def borderless(call: Call) -> Result | None:
    """A constant channel through a padded convolution taken as if it had no borders: the value of the center."""
    right = RULES_BEFORE["aten.conv2d"].forward(call)
    if not isinstance(right, TeSA) or right.value.shape[-1] == 1:
        return right
    center = right.value[..., 2:3, 2:3]
    return replace(right, value=center.contiguous())


RULES_BEFORE = dict(RULES)

MUTATIONS: dict[str, tuple[str, Rule, Callable[[], nn.Module]]] = {
    "sigmoid": ("aten.sigmoid", Rule(unchanged, unchanged_need), nn.Sigmoid),
    "batch_norm": ("aten.batch_norm", Rule(unchanged, unchanged_need), lambda: nn.BatchNorm2d(6)),
    "layer_norm": ("aten.layer_norm", Rule(unchanged, unchanged_need), lambda: nn.LayerNorm([6, 5, 5])),
    "softmax": ("aten.softmax", Rule(unchanged, unchanged_need), lambda: nn.Softmax(1)),
    "border": (
        "aten.conv2d",
        Rule(borderless, RULES["aten.conv2d"].backward),
        lambda: nn.Sequential(nn.Sigmoid(), nn.Conv2d(6, 6, 3, padding=1)),
    ),
}


def net(middle: nn.Module) -> Propagated:
    """Conv with dead rows -> the operator in question -> conv whose last three input channels are pruned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 1), middle, nn.Conv2d(6, 2, 1)).eval()
    randomize_norms(model)
    dead = {"weight": ~DEAD.reshape(6, 1, 1, 1).expand(6, 4, 1, 1), "bias": ~DEAD}
    masks = {"0": dead}
    if isinstance(middle, nn.Sequential):
        columns = DEAD.reshape(1, 6, 1, 1).expand(6, 6, 3, 3)
        masks["1.1"] = {"weight": columns}
    else:
        masks["2"] = {"weight": (torch.arange(6) < 5).reshape(1, 6, 1, 1).expand(2, 6, 1, 1)}
    return propagate(annotate(trace(model, torch.randn(2, 4, 5, 5)), masks))


CALL = (torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, wrong, middle = MUTATIONS[name]
    assert garbage_injection(net(middle()), CALL, {}) < 1e-4
    monkeypatch.setitem(RULES, op, wrong)
    broken = net(middle())
    assert garbage_injection(broken, CALL, {}) > 1e-3
    suspects = bisect(broken, CALL, {})
    assert any(op.removeprefix("aten.") in node or "conv2d" in node for node in suspects)


def test_bisect_names_only_the_wrong_node() -> None:
    right = net(nn.ReLU())
    relu = next(node for node in right.tesa if node.name == "relu")
    tesa = right.tesa[relu]
    assert isinstance(tesa, TeSA)
    wrong = {**right.tesa, relu: tesa.with_need(torch.zeros_like(tesa.need))}
    broken = replace(right, tesa=wrong)
    assert bisect(right, CALL, {}) == ()
    assert bisect(broken, CALL, {}) == ("relu",)


def test_a_weight_called_unused_is_noticed() -> None:
    right = net(nn.ReLU())
    names = right.annotated.captured.names
    weight = next(node for node in right.tesa if names.get(node.name) == "2.weight")
    tesa = right.tesa[weight]
    assert isinstance(tesa, TeSA)
    broken = replace(right, tesa={**right.tesa, weight: tesa.with_need(torch.zeros_like(tesa.need))})
    assert bisect(broken, CALL, {}) == (weight.name,)


class Nan(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sqrt(), x > 0, torch.full_like(x, -torch.inf)


def test_not_a_number_equals_itself() -> None:
    result = propagate(annotate(trace(Nan(), torch.randn(3)), {}))
    assert garbage_injection(result, (torch.tensor([-1.0, 0.0, 1.0]),), {}) == 0.0


def test_a_value_known_on_one_side_only_is_an_infinite_error() -> None:
    right = propagate(annotate(trace(nn.ReLU(), torch.randn(3)), {}))
    relu = next(node for node in right.tesa if node.name == "relu")
    everywhere = TeSA.partial((3,), torch.float32, torch.ones(1, dtype=torch.bool), torch.full((1,), torch.nan))
    assert garbage_injection(replace(right, tesa={**right.tesa, relu: everywhere}), (torch.randn(3),), {}) == torch.inf
