"""A shadow computes the masked dense model and leaves the original exactly as it was."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from sparta.propagation import masked
from sparta.tesa import CaptureError, MaskError
from tests.propagation.fake_nni import wrap


def snapshot(model: nn.Module) -> list[object]:
    """Everything a shadow could have changed: identities of attributes, flags, versions and registries."""
    state: list[object] = []
    for name, module in model.named_modules():
        state += [name, type(module), module.training]
        state += [(key, id(value)) for key, value in module.__dict__.items() if key != "training"]
        for registry in (module._parameters, module._buffers, module._modules, module._forward_pre_hooks):
            state += [(key, id(value)) for key, value in registry.items()]
        state += [parameter._version for parameter in module.parameters(recurse=False)]
    return state


def halve(weight: Tensor) -> Tensor:
    """`weight` with every second element pruned."""
    return weight.detach() * (torch.arange(weight.numel()) % 2).reshape(weight.shape)


def test_a_shadow_shares_all_but_what_it_replaces() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    before, weight = snapshot(net), halve(net[0].weight)
    shadow = masked(net, {"0.weight": weight})
    assert torch.equal(shadow[0].weight, weight)
    assert isinstance(shadow[0].weight, nn.Parameter)
    assert shadow[0].bias is net[0].bias
    assert shadow[1].running_mean is net[1].running_mean
    assert not any(module.training for module in shadow.modules())
    shadow(torch.randn(2, 3))
    assert snapshot(net) == before


def test_ties_shared_modules_and_plain_attributes_follow() -> None:
    net = nn.Module()
    net.a, net.b = nn.Linear(3, 3), nn.Linear(3, 3)
    net.b.weight = net.a.weight
    net.again = net.a
    net.listed, net.tensors = [net.a, {"b": net.b}], (net.a.weight, 3)
    shadow = masked(net, {"b.weight": torch.zeros(3, 3)})
    assert shadow.a.weight is shadow.b.weight
    assert not shadow.a.weight.any()
    assert shadow.again is shadow.a is shadow.listed[0]
    assert shadow.listed[1]["b"] is shadow.b
    assert shadow.tensors[0] is shadow.a.weight
    assert net.listed[0] is net.a
    assert net.a.weight.all()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_transformer_fast_path_is_masked(batch_first: bool, grad: bool) -> None:
    torch.manual_seed(0)
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=batch_first)
    names = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear1.bias")
    shadow = masked(net, {name: halve(net.get_parameter(name)) for name in names})
    reference = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=batch_first).eval()
    reference.load_state_dict({**net.state_dict(), **{name: halve(net.get_parameter(name)) for name in names}})
    x = torch.randn(5, 4, 8)
    with torch.set_grad_enabled(grad):
        assert torch.allclose(shadow(x), reference(x), atol=1e-6)


@pytest.mark.parametrize("build", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_nets_use_the_replacement(build: type[nn.RNNBase]) -> None:
    net = build(4, 3)
    shadow = masked(net, {"weight_hh_l0": torch.zeros_like(net.weight_hh_l0)})
    reference = build(4, 3).eval()
    reference.load_state_dict({**net.state_dict(), "weight_hh_l0": torch.zeros_like(net.weight_hh_l0)})
    x = torch.randn(5, 2, 4)
    assert torch.equal(shadow(x)[0], reference(x)[0])
    assert net.weight_hh_l0.all()


def test_pruned_modules_recompute_their_weight() -> None:
    net = nn.Linear(4, 4)
    prune.l1_unstructured(net, "weight", 0.5)
    old = net.weight
    shadow = masked(net, {"weight_orig": torch.ones(4, 4)})
    assert torch.equal(shadow(torch.ones(1, 4))[0], net.weight_mask.sum(1) + net.bias)
    assert net.weight is old


def test_weight_norm_and_parametrizations_recompute_their_weight() -> None:
    new = parametrizations.weight_norm(nn.Linear(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.utils.weight_norm(nn.Linear(4, 4))
    old(torch.randn(1, 4))  # leaves a tensor with a history behind, which cannot be deep-copied
    for net, length in ((new, "parametrizations.weight.original0"), (old, "weight_g")):
        shadow = masked(net, {length: torch.zeros(4, 1)})
        assert torch.equal(shadow(torch.randn(1, 4))[0], net.bias)
        assert net.weight.any()


def test_hooks_and_non_leaf_attributes_survive() -> None:
    net, seen = nn.Linear(2, 2), []
    net.history = net.weight * 2
    net.register_forward_hook(lambda module, _, out: seen.append(module) or out + 1)
    shadow = masked(net, {"weight": torch.zeros(2, 2)})
    assert torch.equal(shadow(torch.ones(1, 2))[0], net.bias + 1)
    assert seen == [shadow]
    assert shadow.history is net.history


def patch_by_method(net: nn.Module) -> Callable[..., Tensor]:
    """A forward bound to the module."""
    return types.MethodType(lambda self, x: nn.Linear.forward(self, x) + 1, net)


def patch_by_partial(net: nn.Module) -> Callable[..., Tensor]:
    """A forward that gets the module as argument, as accelerate installs."""
    return functools.partial(lambda module, x: nn.Linear.forward(module, x) + 1, net)


def patch_by_closure(net: nn.Module) -> Callable[..., Tensor]:
    """A forward that calls the old one."""
    old = net.forward

    def forward(x: Tensor) -> Tensor:
        return old(x) + 1

    return forward


@pytest.mark.parametrize("patch", [patch_by_method, patch_by_partial, patch_by_closure])
def test_patched_forwards_run_on_the_shadow(patch: Callable[[nn.Module], Callable[..., Tensor]]) -> None:
    net = nn.Linear(2, 2)
    net.forward = patch(net)
    shadow = masked(net, {"weight": torch.zeros(2, 2)})
    assert torch.equal(shadow(torch.ones(1, 2))[0], net.bias + 1)


def test_what_a_forward_stores_stays_in_the_shadow() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache: dict[str, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            self.cache["x"] = self.last = x
            return x

    net = Caching()
    shadow = masked(net)
    shadow(torch.ones(1))
    assert shadow.cache.keys() == {"x"}
    assert not net.cache
    assert not hasattr(net, "last")


def test_nni_wrappers_are_taken_off() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    plain = masked(net)
    wrap(net[0], torch.zeros(3, 3))
    wrap(net[2], torch.zeros(2, 3))
    x = torch.randn(4, 3)
    assert not net(x).any()
    before = snapshot(net)
    shadow = masked(net)
    assert sorted(name for name, _ in shadow.named_parameters()) == ["0.bias", "0.weight", "2.weight"]
    assert torch.equal(shadow(x), plain(x))
    assert torch.equal(masked(net, {"0.weight": torch.eye(3)})[0](x), x + shadow[0].bias)
    assert snapshot(net) == before


def test_compiled_calls_are_not_inherited() -> None:
    net = nn.Linear(2, 2)
    net.compile(backend="eager")
    shadow = masked(net, {"weight": torch.zeros(2, 2)})
    assert torch.equal(shadow(torch.ones(1, 2))[0], net.bias)


def test_replacements_that_do_not_fit_are_all_named() -> None:
    with pytest.raises(MaskError, match=r"(?s)weights: no such tensor.*bias: shape \(2,\)"):
        masked(nn.Linear(2, 2), {"weights": torch.zeros(2, 2), "bias": torch.zeros(3)})


def test_torchscript_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(CaptureError, match="pass the original"):
        masked(nn.Sequential(scripted))
