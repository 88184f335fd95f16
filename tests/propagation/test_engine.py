"""The sweeps over whole graphs: facts forward, needs backward, barriers, folding, symbolic batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparta.propagation import annotate, capture
from sparta.propagation.engine import nothing_known, propagate
from sparta.propagation.stages import Propagated
from sparta.propagation.verify import garbage_injection
from sparta.tesa import TeSA
from tests.propagation.random_nets import Masks, randomize_norms
from tests.propagation.tracing import trace


def rows(layer: nn.Linear | nn.Conv2d, dead: list[int]) -> dict[str, Tensor]:
    """Masks that prune output rows of a layer, bias included."""
    keep = torch.ones(layer.weight.shape[0], dtype=torch.bool)
    keep[dead] = False
    masks = {"weight": keep.reshape(-1, *[1] * (layer.weight.dim() - 1)).expand_as(layer.weight).clone()}
    return masks if layer.bias is None else {**masks, "bias": keep}


def propagated(model: nn.Module, *args: Tensor, masks: Masks | None = None) -> Propagated:
    randomize_norms(model)
    result = propagate(annotate(trace(model.eval(), *args), masks or {}))
    assert garbage_injection(result, tuple(torch.randn_like(arg) for arg in args), {}) < 1e-4
    return result


def by_name(result: Propagated) -> dict[str, TeSA]:
    """Weights by qualified name, other tensors by node name."""
    names = result.annotated.captured.names
    return {names.get(node.name, node.name): tesa for node, tesa in result.tesa.items() if isinstance(tesa, TeSA)}


def needed(tesa: TeSA) -> list[Any]:
    return tesa.need.expand([int(size) for size in tesa.shape]).tolist()


def needed_rows(tesa: TeSA) -> list[bool]:
    full = tesa.need.expand([int(size) for size in tesa.shape])
    return full.flatten(1).any(1).tolist()


def needed_columns(tesa: TeSA) -> list[bool]:
    return needed_rows(
        TeSA(
            tesa.shape[1::-1] + tesa.shape[2:],
            tesa.dtype,
            tesa.known,
            tesa.value.transpose(0, 1),
            tesa.need.transpose(0, 1),
        )
    )


def test_a_dead_row_frees_a_column_and_a_dead_column_frees_a_row() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    column = torch.ones(2, 3, dtype=torch.bool)
    column[:, 2] = False
    attributes = by_name(
        propagated(model, torch.randn(5, 4), masks={"0": rows(model[0], [0]), "2": {"weight": column}})
    )
    assert needed_rows(attributes["0.weight"]) == [False, True, False]
    assert needed(attributes["0.bias"]) == [False, True, False]
    assert needed_columns(attributes["2.weight"]) == [False, True, True]
    assert needed(attributes["2.bias"]) == [True, True]


def test_outputs_are_needed_whole_even_where_they_are_constant() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    attributes = by_name(propagated(model, torch.randn(5, 4), masks={"0": rows(model[0], [1])}))
    assert all(all(row) for row in needed(attributes["linear"]))
    assert attributes["linear"].known.tolist() == [[False, True, False]]


def test_a_dead_channel_stays_alive_as_a_constant_behind_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    attributes = by_name(propagated(model, torch.randn(2, 3, 8, 8), masks={"0": rows(model[0], [0, 3])}))
    assert attributes["relu"].known.flatten().tolist() == [True, False, False, True]
    shift = model[1].bias - model[1].running_mean * model[1].weight * torch.rsqrt(model[1].running_var + 1e-5)
    torch.testing.assert_close(attributes["relu"].value.flatten()[[0, 3]], shift.detach().relu()[[0, 3]])
    assert attributes["conv2d_1"].is_unknown


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(x) + self.b(x))


def test_a_sum_is_dead_only_where_both_branches_are() -> None:
    model = Residual()
    masks = {"a": rows(model.a, [0, 1]), "b": rows(model.b, [1, 2])}
    attributes = by_name(propagated(model, torch.randn(2, 3, 5, 5), masks=masks))
    assert attributes["add"].known.flatten().tolist() == [False, True] + [False] * 6


class TwiceTheSame(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        return self.c(torch.cat([y, y], 1))


def test_a_tensor_that_is_joined_with_itself_is_needed_where_either_copy_is() -> None:
    model = TwiceTheSame()
    column = torch.ones(2, 8, 1, 1, dtype=torch.bool)
    column[:, [0, 1, 4]] = False
    attributes = by_name(propagated(model, torch.randn(2, 3, 5, 5), masks={"c": {"weight": column}}))
    assert needed_rows(attributes["a.weight"]) == [False, True, True, True]


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        p, q = self.a(x).chunk(2, 1)
        return self.b(p) + self.c(q)


def test_chunks_keep_their_channels_apart() -> None:
    model = Halves()
    attributes = by_name(propagated(model, torch.randn(2, 3, 5, 5), masks={"a": rows(model.a, [0, 1, 6])}))
    assert needed_columns(attributes["b.weight"]) == [False, False, True, True]
    assert needed_columns(attributes["c.weight"]) == [True, True, False, True]


class Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.squeeze, self.excite = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.scale = nn.Parameter(torch.randn(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).relu()
        gate = self.excite(self.squeeze(F.adaptive_avg_pool2d(y, 1)).relu()).sigmoid()
        return y * gate * self.scale


def test_a_gate_is_not_needed_where_what_it_scales_is_dead() -> None:
    model = Excited()
    masks = {
        "a": rows(model.a, [0, 1]),
        "squeeze": rows(model.squeeze, [3]),
        "": {"scale": torch.arange(8).reshape(8, 1, 1) > 2},
    }
    attributes = by_name(propagated(model, torch.randn(2, 3, 5, 5), masks=masks))
    assert needed_rows(attributes["excite.weight"]) == [False] * 3 + [True] * 5
    assert needed_columns(attributes["excite.weight"]) == [True] * 3 + [False]
    assert needed_columns(attributes["squeeze.weight"]) == [False, False] + [True] * 6
    assert needed_rows(attributes["scale"]) == [False] * 3 + [True] * 5


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Linear(4 * 9, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu().view(-1, 36))


def test_a_dead_channel_frees_a_block_of_columns_after_a_view() -> None:
    model = Flat()
    attributes = by_name(propagated(model, torch.randn(2, 3, 3, 3), masks={"a": rows(model.a, [2])}))
    assert needed_columns(attributes["b.weight"]) == [True] * 18 + [False] * 9 + [True] * 9


def test_a_layer_without_any_weight_is_a_constant() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 2, 1))
    masks = {"0": {"weight": torch.zeros(4, 3, 3, 3, dtype=torch.bool), "bias": None}}
    result = propagated(model, torch.randn(2, 3, 6, 6), masks=masks)
    attributes = by_name(result)
    assert attributes["conv2d_1"].is_constant
    assert not any(needed_rows(attributes["0.weight"]))
    assert not bool(attributes[result.annotated.captured.user_inputs[0]].need.any())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(F.linear(x, self.layer.weight)), self.layer.weight.t())


def test_a_tied_weight_is_needed_where_either_use_needs_it() -> None:
    attributes = by_name(propagated(Tied(), torch.randn(2, 6)))
    assert all(needed_rows(attributes["layer.weight"]))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(x, self.weight.t()).relu())


def test_need_is_seen_through_functions_of_parameters() -> None:
    model = Transposed()
    column = torch.ones(2, 4, dtype=torch.bool)
    column[:, 1] = False
    attributes = by_name(propagated(model, torch.randn(5, 3), masks={"head": {"weight": column}}))
    assert needed_columns(attributes["weight"]) == [True, False, True, True]


class Barrier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).cumsum(-1))


def test_an_operator_without_a_rule_is_a_barrier() -> None:
    model = Barrier()
    result = propagate(annotate(capture(model, (torch.randn(3, 4),)), {"first": rows(model.first, [0])}))
    assert [(barrier.op, barrier.module, barrier.node) for barrier in result.barriers] == [
        ("aten.cumsum", "", "cumsum")
    ]
    attributes = by_name(result)
    assert attributes["cumsum"].is_unknown
    assert bool(attributes["linear"].need.all())
    assert garbage_injection(result, (torch.randn(3, 4),), {}) < 1e-4


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x.sum() > 0, lambda y: self.layer(y), lambda y: y.sin(), (x,))
        return result


def test_control_flow_is_a_barrier() -> None:
    result = propagate(annotate(capture(Conditional(), (torch.randn(3, 4),)), {}))
    assert [barrier.op for barrier in result.barriers] == ["cond"]
    assert all(needed_rows(by_name(result)["layer.weight"]))


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + torch.rand_like(self.zero), x + torch.full_like(x, 2.0)


def test_random_numbers_are_not_folded_and_filled_tensors_are_known() -> None:
    attributes = by_name(propagate(annotate(capture(Noise(), (torch.randn(3, 4),)), {})))
    assert attributes["rand_like"].is_unknown
    assert attributes["full_like"].is_constant


class Positions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(4).cumsum(0).float().sqrt()


def test_functions_of_constants_are_run_even_without_a_rule() -> None:
    result = propagate(annotate(capture(Positions(), (torch.randn(3, 4),)), {}))
    assert result.barriers == ()
    assert by_name(result)["cumsum"].full_value().tolist() == [0, 1, 3, 6]


def test_folding_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    annotated = annotate(trace(Positions(), torch.randn(3, 4)), {})
    assert propagate(annotated).barriers == ()
    monkeypatch.setattr("sparta.propagation.engine.LARGEST_FOLD", 3)
    assert by_name(propagate(annotated))["cumsum"].is_unknown


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, 8))


def test_a_symbolic_batch_keeps_heads_apart() -> None:
    """Pruning the values of head 0 frees its queries, its keys, and its columns of the output projection."""
    model = Heads()
    captured = capture(model, (torch.randn(2, 5, 8),))
    result = propagate(annotate(captured, {"qkv": rows(model.qkv, list(range(16, 20)))}))
    assert captured.dynamic == ((0,),)
    assert result.barriers == ()
    attributes = by_name(result)
    assert needed_rows(attributes["qkv.weight"]) == [row % 8 >= 4 for row in range(24)]
    assert needed_columns(attributes["out.weight"]) == [False] * 4 + [True] * 4
    for batch in (1, 17):
        assert garbage_injection(result, (torch.randn(batch, 5, 8),), {}) < 1e-4


class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pixel_shuffle(self.a(x).roll(1, 1), 2)
        return self.b(F.pad(y.flip(0), (1, 1, 1, 1), value=2.0))


def test_data_movement_works_with_a_symbolic_batch() -> None:
    model = Moved()
    result = propagate(annotate(capture(model, (torch.randn(2, 3, 4, 4),)), {"a": rows(model.a, [0, 1, 2, 7])}))
    assert result.annotated.captured.dynamic == ((0,),)
    assert result.barriers == ()
    padded = by_name(result)["pad"]
    assert padded.known[0, 0, 1:-1, 1:-1].all()
    assert not padded.known[0, 1, 1:-1, 1:-1].any()
    assert padded.value[0, :, 0].eq(2.0).all()
    assert garbage_injection(result, (torch.randn(5, 3, 4, 4),), {}) < 1e-4


ACTIVATIONS: list[Callable[[], nn.Module]] = [nn.Sigmoid, nn.Softplus, nn.Tanh, nn.Hardsigmoid, nn.ELU, nn.Mish]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_an_activation_makes_of_zero_reaches_the_next_layer(activation: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), activation(), nn.Conv2d(4, 2, 3, padding=1))
    attributes = by_name(propagated(model, torch.randn(2, 3, 6, 6), masks={"0": rows(model[0], [0, 1, 2, 3])}))
    assert attributes["conv2d_1"].is_constant
    expected = model[2](activation()(torch.zeros(1, 4, 6, 6)))
    torch.testing.assert_close(attributes["conv2d_1"].full_value()[:1], expected.detach())


def test_propagating_again_changes_nothing() -> None:
    model = Residual()
    annotated = annotate(trace(model, torch.randn(2, 3, 5, 5)), {"a": rows(model.a, [0])})
    first, second = by_name(propagate(annotated)), by_name(propagate(annotated))
    assert all(torch.equal(first[name].known, second[name].known) for name in first)
    assert all(torch.equal(first[name].need, second[name].need) for name in first)


def test_nothing_known_is_the_weakest_propagation() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    result = nothing_known(annotate(trace(model, torch.randn(2, 4)), {"0": rows(model[0], [0])}))
    attributes = by_name(result)
    assert attributes["relu"].is_unknown
    assert all(bool(tesa.need.all()) for tesa in attributes.values())
