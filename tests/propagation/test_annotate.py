"""Annotating multiplies the masks in, exactly and only where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from sparta.propagation import annotate, capture, interpret, masked, masked_weights, unused_masks
from sparta.tesa import MaskError, normalize_masks
from tests.propagation.fake_nni import wrap


class Net(nn.Module):
    """Two layers, one of them tied to a third, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.idle = (nn.Linear(4, 4) for _ in range(4))
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def half(*shape: int) -> Tensor:
    """A mask that prunes every second element."""
    return (torch.arange(int(torch.tensor(shape).prod())) % 2).reshape(shape).float()


def test_pruned_weights_are_plus_zero_whatever_they_were() -> None:
    net = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[float("nan"), float("inf"), -1.0, 2.0]]))
    captured = capture(net, (torch.randn(2, 4),))
    weight = annotate(captured, {"weight": torch.tensor([[0, 0, 0, 1]])}).weights["p_weight"]
    assert weight.tolist() == [[0.0, 0.0, 0.0, 2.0]]
    assert not torch.signbit(weight).any()
    assert net.weight[0, 0].isnan()


def test_only_masked_tensors_are_new() -> None:
    net = Net()
    captured = capture(net, (torch.randn(2, 4),))
    annotated = annotate(captured, {"a": {"weight": half(4, 4), "bias": torch.ones(4)}, "b": {"bias": None}})
    assert annotated.masks.keys() == {"p_a_weight"}
    assert annotated.weights["p_a_bias"] is net.a.bias
    assert annotated.weights["p_b_weight"] is net.b.weight
    assert annotated.weights.keys() == captured.tensors.keys()
    assert net.a.weight.all()


@pytest.mark.parametrize("name", ["b.weight", "c.weight"])
def test_the_graph_and_the_shadow_agree(name: str) -> None:
    net = Net()
    x = torch.randn(5, 4)
    captured = capture(net, (torch.randn(2, 4),))
    annotated = annotate(captured, {name: half(4, 4), "a.bias": half(4)})
    shadow = masked(net, masked_weights(annotated))
    assert torch.equal(shadow.b.weight, net.b.weight * half(4, 4))
    assert shadow.c.weight is shadow.b.weight
    assert torch.allclose(interpret(captured, annotated.weights, x), shadow(x), atol=1e-6)
    assert not torch.allclose(shadow(x), masked(net)(x), atol=1e-3)


def test_any_form_and_the_normalized_one_agree(tmp_path: Path) -> None:
    net = Net()
    captured = capture(net, (torch.randn(2, 4),))
    nested = {"a": {"weight": half(4, 4)}}
    torch.save(nested, tmp_path / "masks.pt")
    forms = (nested, {"module.a.weight": half(4, 4).bool()}, tmp_path / "masks.pt", normalize_masks(nested, net))
    for form in forms:
        assert torch.equal(annotate(captured, form).weights["p_a_weight"], net.a.weight * half(4, 4))


def test_masks_of_unused_layers_are_named_not_applied() -> None:
    net = Net()
    captured = capture(net, (torch.randn(2, 4),))
    masks = normalize_masks({"idle.weight": half(4, 4), "c.weight": half(4, 4)}, net)
    assert unused_masks(captured, masks) == ("idle.weight",)
    assert annotate(captured, masks).masks.keys() == {"p_b_weight"}


def test_masks_that_do_not_fit_are_refused() -> None:
    captured = capture(Net(), (torch.randn(2, 4),))
    with pytest.raises(MaskError, match=r"(?s)a\.weight: mask has shape.*d\.weight: the model has no parameter"):
        annotate(captured, {"a.weight": half(4, 3), "d.weight": half(4, 4)})


@pytest.mark.parametrize("masks", [None, {}])
def test_prune_leftovers_count(masks: dict[str, Tensor] | None) -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    prune.ln_structured(net[0], "weight", 0.5, n=2, dim=0)
    annotated = annotate(capture(net, (torch.randn(2, 4),)), masks)
    assert torch.equal(annotated.weights["p_0_weight_orig"], net[0].weight_orig * net[0].weight_mask)
    x = torch.randn(3, 4)
    assert torch.allclose(interpret(annotated.captured, annotated.weights, x), net(x))


def test_masks_of_an_nni_pruner_are_found_in_the_model() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    wrap(net[0], half(4, 4))
    x = torch.randn(3, 4)
    annotated = annotate(capture(net, (x,)), normalize_masks(None, net))
    assert torch.allclose(interpret(annotated.captured, annotated.weights, x), net(x))
    plain = annotate(capture(net, (x,)), normalize_masks({}, net))
    assert not plain.masks


@pytest.mark.nni
@pytest.mark.filterwarnings("ignore")
def test_a_real_nni_pruner() -> None:
    pruning = pytest.importorskip("nni.compression.pruning")
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4, bias=False))
    _, masks = pruning.L1NormPruner(net, [{"op_types": ["Conv2d", "Linear"], "sparse_ratio": 0.5}]).compress()
    x = torch.randn(2, 3, 4, 4)
    annotated = annotate(capture(net, (x,)), normalize_masks(masks, net))
    assert torch.allclose(interpret(annotated.captured, annotated.weights, x), net(x), atol=1e-6)
    assert annotated.captured.names["p_0_weight"] == "0.weight"
