"""What `fold` makes of the structures that networks are built from, always with the outputs compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparta.tesa.patterns import find_pattern
from tests.propagation.folds import (
    HALF,
    IMAGE,
    TOKENS,
    Chain,
    conv,
    dead_rows,
    fold_captured,
    fold_traced,
    norm,
    operators,
    shapes,
)
from tests.propagation.random_nets import Concatenate, Multiply, Residual, randomize_norms


def test_a_dead_residual_branch_disappears() -> None:
    model = nn.Sequential(conv(3, 8), Residual(conv(8, 8), nn.ReLU(), conv(8, 8)))
    folded = fold_traced(model, {"1.body.2": dead_rows(model[1].body[2], range(8))}, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d"]


def test_a_residual_branch_computes_the_stream_rather_than_scattering_little() -> None:
    model = Residual(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    folded = fold_traced(model, {"body.2": dead_rows(model.body[2], HALF)}, torch.randn(TOKENS))
    assert operators(folded) == ["linear", "relu", "linear", "add"]


@pytest.mark.parametrize("keep", [8, 64])
def test_layer_norm_over_a_shrunk_dimension(keep: int) -> None:
    model = nn.Sequential(nn.Linear(8, 96), nn.LayerNorm(96), nn.Linear(96, 4))
    randomize_norms(model)
    folded = fold_captured(model, {"0": dead_rows(model[0], range(keep, 96), bias=False)}, torch.randn(TOKENS))
    assert ("layer_norm" in operators(folded)) == (keep == 64), "few survivors: statistics are written out"


def test_layer_norm_of_far_constants_is_not_cancelled() -> None:
    model = nn.Sequential(nn.Linear(8, 96), nn.LayerNorm(96, eps=1e-12), nn.Linear(96, 4))
    model[0].bias.data += 30.0
    fold_traced(model, {"0": dead_rows(model[0], range(8, 96), bias=False)}, torch.randn(TOKENS))


class RootMeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("after", [nn.Softmax(-1), nn.LogSoftmax(-1), RootMeanSquare(), nn.RMSNorm(8)])
def test_reductions_see_the_dropped_constants(after: nn.Module) -> None:
    model = Chain(nn.Linear(8, 8), nn.Sigmoid(), after, nn.Linear(8, 4))
    fold_captured(model, model.masks, torch.randn(TOKENS))


@pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.amax, torch.var])
@pytest.mark.parametrize("dims", [(1,), (2,), (1, 2)])
def test_reductions_over_shrunk_dimensions(function: Any, dims: tuple[int, ...]) -> None:
    class Reduce(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.sigmoid(self.layer(x))
            return function(y, dims), function(y, dims, keepdim=True)

    model = Reduce()
    fold_captured(model, {"layer": dead_rows(model.layer, HALF)}, torch.randn(TOKENS))


class Heads(nn.Module):
    """Fused self-attention with four heads of eight dimensions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 4, 8).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, **self.options)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.randn(6, 6)}])
def test_heads_disappear(options: dict[str, Any]) -> None:
    model = Heads(**options)
    folded = fold_captured(model, {"value": dead_rows(model.value, range(8, 24))}, torch.randn(3, 6, 32))
    kept = shapes(folded)
    assert kept["query.weight"] == kept["key.weight"] == kept["value.weight"] == (16, 32)
    assert kept["out.weight"] == (32, 16)


def test_query_and_key_dimensions_shrink_with_the_old_scale() -> None:
    model = Heads()
    dead = [row for row in range(32) if row % 8 < 5]
    folded = fold_captured(model, {"query": dead_rows(model.query, dead)}, torch.randn(3, 6, 32))
    assert shapes(folded)["query.weight"] == shapes(folded)["key.weight"] == (12, 32)
    assert shapes(folded)["value.weight"] == (32, 32)


def test_a_mask_that_masks_nothing_is_dropped() -> None:
    folded = fold_captured(Heads(attn_mask=torch.ones(6, 6, dtype=torch.bool)), {}, torch.randn(3, 6, 32))
    attention = next(node for node in folded.module.graph.nodes if "scaled_dot" in str(node.target))
    assert attention.args[3] is None


def test_only_the_token_that_is_read_goes_on() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.out = Heads(), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.heads(x)[:, 0])

    folded = fold_traced(First(), {}, torch.randn(3, 6, 32))
    attention = next(node for node in folded.module.graph.nodes if "scaled_dot" in str(node.target))
    assert isinstance(attention.args[0], fx.Node)
    assert "slice" in str(attention.args[0].target), "one query"


def test_concatenation_offsets_and_dead_parts() -> None:
    branches = Concatenate(conv(3, 8), conv(3, 8, 1))
    model = nn.Sequential(branches, nn.ReLU(), conv(16, 4))
    first, second = branches.branches
    masks = {"0.branches.0": dead_rows(first, HALF), "0.branches.1": dead_rows(second, range(8))}
    folded = fold_traced(model, masks, torch.randn(IMAGE))
    assert operators(folded) == ["conv2d", "relu", "conv2d"]
    assert shapes(folded)["2.weight"] == (4, 4, 3, 3)


class Pieces(nn.Module):
    def __init__(self, cut: Any) -> None:
        super().__init__()
        self.conv, self.left, self.right, self.cut = conv(3, 8), conv(4, 4), conv(4, 4), cut

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.cut(torch.relu(self.conv(x)))
        return self.left(first) + self.right(second)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x.chunk(2, 1),
        lambda x: x.split([4, 4], 1),
        lambda x: (x[:, :4], x[:, 4:]),
        lambda x: x.unflatten(1, (2, 4)).unbind(1),
        lambda x: (x.unflatten(1, (2, 4))[:, 0], x[:, 1::2]),
    ],
    ids=["chunk", "split", "slice", "unbind", "select"],
)
def test_parts_keep_their_own_indices(cut: Any) -> None:
    model = Pieces(cut)
    folded = fold_captured(model, {"conv": dead_rows(model.conv, (0, 1, 4, 5))}, torch.randn(IMAGE))
    assert shapes(folded)["conv.weight"] == (4, 3, 3, 3)


def test_flatten_keeps_the_positions_of_kept_channels() -> None:
    model = Chain(conv(3, 8), nn.ReLU(), nn.Flatten(1), nn.Linear(8 * 81, 5))
    folded = fold_captured(model, model.masks, torch.randn(IMAGE))
    assert shapes(folded)["3.weight"] == (5, 4 * 81)


def test_depthwise_channels_go_with_their_filter() -> None:
    model = Chain(conv(3, 8), norm(8), nn.ReLU(), conv(8, 8, groups=8), norm(8), nn.ReLU(), conv(8, 4, 1))
    folded = fold_traced(model, model.masks, torch.randn(IMAGE))
    assert shapes(folded)["3.weight"] == (4, 1, 3, 3)
    assert shapes(folded)["0.weight"] == (4, 3, 3, 3)


@pytest.mark.parametrize(("dead", "left"), [(range(4), 4), ((0, 1, 4, 5), 8)])
def test_only_whole_groups_go(dead: Any, left: int) -> None:
    grouped = conv(8, 8, groups=2)
    model = nn.Sequential(conv(3, 8), grouped, nn.ReLU(), conv(8, 4))
    folded = fold_traced(model, {"1": dead_rows(grouped, dead)}, torch.randn(IMAGE))
    assert shapes(folded)["1.weight"] == (left, 4, 3, 3)


def test_squeeze_and_excite() -> None:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(8, 4, 1), nn.ReLU(), conv(4, 8, 1), nn.Sigmoid())
    model = nn.Sequential(conv(3, 8), Multiply(nn.ReLU(), gate), conv(8, 4))
    masks = {"0": dead_rows(model[0], HALF), "1.right.3": dead_rows(gate[3], (1, 2), bias=False)}
    folded = fold_captured(model, masks, torch.randn(IMAGE))
    assert shapes(folded)["2.weight"] == (4, 4, 3, 3)


def test_free_parameters_are_sliced() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.scale, self.b = conv(3, 8), nn.Parameter(torch.randn(1, 8, 1, 1)), conv(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x) * self.scale)

    model = Scaled()
    folded = fold_traced(model, {"a": dead_rows(model.a, HALF)}, torch.randn(IMAGE))
    assert folded.removed["scale"] == ((1, 8, 1, 1), (1, 4, 1, 1))


def test_tied_weights_stay_one_tensor() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(torch.relu(self.a(x)), self.a.weight)

    model = Tied()
    folded = fold_traced(model, {}, torch.randn(TOKENS))
    assert list(folded.names.values()).count("a.weight") == 1
    assert folded.module.get_buffer("a__weight").data_ptr() == model.a.weight.data_ptr(), "nothing is copied"


def test_an_operator_without_a_rule_gets_whole_operands() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.sort(torch.sigmoid(self.a(x)), -1)[0])

    model = Sorted()
    folded = fold_captured(model, {"a": dead_rows(model.a, HALF)}, torch.randn(TOKENS))
    assert "sort" in operators(folded)


def test_an_addition_with_a_factor_is_no_identity() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zero = nn.Parameter(torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.add(self.zero, x, alpha=2)

    fold_traced(Doubled(), {}, torch.randn(TOKENS))


def test_bodies_of_control_flow_are_carried_over() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sigmoid(self.a(x))
            return torch.cond(x.sum() > 0, lambda z: self.b(z), lambda z: z * 2, (y,))

    model = Branch()
    fold_captured(model, {"a": dead_rows(model.a, HALF)}, torch.randn(TOKENS))


def test_sizes_that_are_expressions_are_computed() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.cat([self.a(x), self.b(x)], 0)
            return y.reshape(y.shape[0] * 5, 8) + self.a(x).new_zeros(1)

    model = Pairs()
    fold_captured(model, {name: dead_rows(getattr(model, name), range(8)) for name in "ab"}, torch.randn(TOKENS))
    fold_captured(model, {"a": dead_rows(model.a, HALF)}, torch.randn(TOKENS))


@pytest.mark.parametrize("name", ["graph", "code", "recompile"])
def test_parameters_may_be_called_like_attributes_of_a_graph_module(name: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.randn(8)))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.get_parameter(name)

    folded = fold_traced(Named(), {}, torch.randn(TOKENS))
    assert list(folded.names.values()) == [name]


def test_block_sparse_weights_keep_whole_blocks() -> None:
    """Rows nobody reads stay where dropping them alone would cut blocks, and go where whole blocks go."""
    first, second = nn.Linear(32, 64), nn.Linear(64, 8)
    blocks = (torch.rand(16, 32) < 0.4).repeat_interleave(4, 0)
    reads = torch.ones(8, 64)
    reads[:, 5] = 0.0  # one row of the second block of `first`
    reads[:, 40:48] = 0.0  # two whole blocks
    masks = {"0": {"weight": blocks}, "2": {"weight": reads.bool()}}
    folded = fold_traced(nn.Sequential(first, nn.GELU(), second), masks, torch.randn(512, 32))
    weights = {name: getattr(folded.module, attr) for attr, name in folded.names.items()}
    assert weights["0.weight"].shape == (56, 32)
    assert str(find_pattern(weights["0.weight"])) == "block 4x1"
