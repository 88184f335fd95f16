"""What each family of rules finds out, before -> after, on the smallest example of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparta.tesa import TeSA
from tests.propagation.operators import backward, forward, full_known, make_call, rule_of, tesa

aten = torch.ops.aten
INF = math.inf


def full(need: Any, *shape: int) -> Any:
    """A compressed need at its true shape, as nested lists."""
    assert isinstance(need, Tensor)
    return need.expand(shape).tolist()


def test_functions_of_zero_keep_their_constant() -> None:
    dead = tesa([0.0, 0.0], [True, False])
    for op, constant in ((aten.relu, 0.0), (aten.sigmoid, 0.5), (aten.exp, 1.0), (aten.cos, 1.0), (aten.gelu, 0.0)):
        result = forward(op.default, dead)
        assert full_known(result) == [True, False]
        assert result.full_value()[0].item() == constant


def test_zero_absorbs_a_product_but_not_a_sum() -> None:
    left, right = tesa([0.0, 2.0, 0.0], [True, True, False]), tesa([0.0] * 3, False)
    assert full_known(forward(aten.mul.Tensor, left, right)) == [True, False, False]
    assert full_known(forward(aten.div.Tensor, left, right)) == [True, False, False]
    assert full_known(forward(aten.add.Tensor, left, right)) == [False, False, False]


def test_division_by_known_zero_is_not_zero() -> None:
    result = forward(aten.div.Tensor, tesa([0.0]), tesa([0.0]))
    assert math.isnan(result.value.item())


def test_minus_infinity_absorbs_a_sum() -> None:
    scores, mask = tesa([0.0, 0.0], False), tesa([-INF, 0.0])
    result = forward(aten.add.Tensor, scores, mask)
    assert full_known(result) == [True, False]
    assert result.full_value()[0].item() == -INF


def test_a_known_condition_selects_the_side_and_its_need() -> None:
    condition = tesa([True, False, False], [True, True, False], torch.bool)
    result = forward(aten.where.self, condition, tesa([1.0] * 3), tesa([2.0] * 3, False))
    assert full_known(result) == [True, False, False]
    needs = backward([True] * 3, aten.where.self, condition, tesa([1.0] * 3), tesa([2.0] * 3, False))
    assert full(needs["self"], 3) == [True, False, True]
    assert full(needs["other"], 3) == [False, True, True]


def test_false_absorbs_and_true_absorbs() -> None:
    flags = tesa([False, True, False], [True, True, False], torch.bool)
    unknown = tesa([False] * 3, False, torch.bool)
    assert full_known(forward(aten.logical_and.default, flags, unknown)) == [True, False, False]
    assert full_known(forward(aten.bitwise_or.Tensor, flags, unknown)) == [False, True, False]


def test_dead_rows_and_idle_columns_of_a_linear() -> None:
    data = tesa([[0.0, 0.0, 3.0]], [[False, True, True]])
    weight, bias = tesa([[0.0, 5.0, 1.0], [2.0, 0.0, 0.0]]), tesa([10.0, 20.0])
    result = forward(aten.linear.default, data, weight, bias)
    assert full_known(result) == [[True, False]]
    assert result.full_value()[0, 0].item() == 13.0
    needs = backward([[False, True]], aten.linear.default, data, weight, bias)
    assert full(needs["input"], 1, 3) == [[True, False, False]]
    assert full(needs["weight"], 2, 3) == [[False, False, False], [True, False, True]]
    assert full(needs["bias"], 2) == [False, True]


def test_a_product_keeps_an_infinite_sum_unknown() -> None:
    result = forward(aten.mm.default, tesa([[INF]]), tesa([[1.0]]))
    assert result.is_unknown


def test_a_constant_channel_through_a_padded_convolution_is_a_border_map() -> None:
    """Channel of ones, 3x3 filter of ones, padding 1: 4 in the corners, 6 on the edges, 9 inside."""
    result = forward(aten.conv2d.default, _ones(1, 1, 3, 3), _ones(1, 1, 3, 3), None, [1, 1], [1, 1])
    assert result.full_value()[0, 0].tolist() == [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    assert result.is_constant


def _ones(*shape: int) -> TeSA:
    return TeSA.constant(torch.ones(shape))


def _channels(*values: float | None, side: int = 4) -> TeSA:
    """An image whose channels are constants, or unknown where None."""
    known = torch.tensor([value is not None for value in values]).reshape(1, -1, 1, 1)
    value = torch.tensor([value or 0.0 for value in values]).reshape(1, -1, 1, 1)
    return TeSA.partial((2, len(values), side, side), torch.float32, known, value)


@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_of_known_and_unknown_channels(padding: int) -> None:
    weight = torch.randn(3, 2, 3, 3)
    weight[0, 0] = 0
    weight[2] = 0
    data = _channels(None, 2.0)
    result = forward(
        aten.conv2d.default, data, TeSA.constant(weight), TeSA.constant(torch.arange(3.0)), [1, 1], [padding] * 2
    )
    assert result.known.flatten().tolist() == [True, False, True]
    expected = functional.conv2d(torch.full((1, 1, 4, 4), 2.0), weight[:1, 1:], padding=padding)
    torch.testing.assert_close(result.full_value()[:1, :1], expected)
    assert result.full_value()[0, 2].eq(2.0).all()


def test_groups_do_not_see_each_other() -> None:
    weight = _ones(4, 1, 1, 1)
    result = forward(aten.conv2d.default, _channels(None, 0.0), weight, None, [1, 1], [0, 0], [1, 1], 2)
    assert result.known.flatten().tolist() == [False, False, True, True]
    need = torch.tensor([False, False, True, False]).reshape(1, 4, 1, 1)
    needs = backward(need, aten.conv2d.default, _channels(None, None), weight, None, [1, 1], [0, 0], [1, 1], 2)
    assert needs["input"].flatten().tolist() == [False, True]  # type: ignore[union-attr]
    assert full(needs["weight"], 4, 1, 1, 1) == need.reshape(4, 1, 1, 1).tolist()


def test_a_dead_channel_leaves_batch_norm_as_a_constant() -> None:
    parameters = [torch.tensor(values) for values in ([2.0, 0.0], [1.0, 3.0], [4.0, 5.0], [1.0, 1.0])]
    arguments = [TeSA.constant(parameter) for parameter in parameters]
    result = forward(aten.batch_norm.default, _channels(0.0, None), *arguments, False, 0.1, 0.0, False)
    assert result.is_constant
    assert result.value.flatten().tolist() == [1.0 - 4.0 * 2.0, 3.0]


def test_layer_norm_couples_a_row() -> None:
    data = tesa([[0.0, 0.0], [1.0, 3.0]], [[True, False], [True, True]])
    result = forward(aten.layer_norm.default, data, [2])
    assert full_known(result) == [[False, False], [True, True]]
    torch.testing.assert_close(result.full_value()[1], torch.tensor([-1.0, 1.0]), atol=1e-4, rtol=0)
    needs = backward([[True, False], [False, False]], aten.layer_norm.default, data, [2])
    assert full(needs["input"], 2, 2) == [[True, True], [False, False]]


def test_layer_norm_with_zero_scale_is_its_shift() -> None:
    result = forward(aten.layer_norm.default, tesa([[0.0, 0.0]], False), [2], tesa([0.0, 1.0]), tesa([7.0, 8.0]))
    assert full_known(result) == [[True, False]]
    assert result.full_value()[0, 0].item() == 7.0


def test_group_norm_couples_a_group() -> None:
    result = forward(aten.group_norm.default, _channels(1.0, 1.0, 0.0, None), 2)
    assert result.known.flatten().tolist() == [True, True, False, False]


def test_softmax_couples_a_row_and_excludes_minus_infinity() -> None:
    scores = tesa([[0.0, 0.0], [-INF, 0.0], [0.0, 0.0]], [[True, False], [True, False], [True, True]])
    result = forward(aten.softmax.int, scores, -1)
    assert full_known(result) == [[False, False], [True, False], [True, True]]
    assert result.full_value()[1, 0].item() == 0.0
    assert result.full_value()[2].tolist() == [0.5, 0.5]
    assert full(backward([[True, False]] * 3, aten.softmax.int, scores, -1)["self"], 3, 2) == [[True, True]] * 3


def _heads(heads: int, dead: list[int], tokens: int = 3, value: float = 0.0) -> TeSA:
    known = torch.zeros(1, heads, 1, 2, dtype=torch.bool)
    known[:, dead] = True
    return TeSA.partial((1, heads, tokens, 2), torch.float32, known, torch.full((1, 1, 1, 1), value))


def test_a_head_of_constant_values_needs_no_queries_and_keys() -> None:
    query, key, value = _heads(2, []), _heads(2, []), _heads(2, [0], value=4.0)
    op = aten.scaled_dot_product_attention.default
    result = forward(op, query, key, value)
    assert result.known[0, :, 0, 0].tolist() == [True, False]
    assert result.full_value()[0, 0].eq(4.0).all()
    needs = backward(~result.known, op, query, key, value)
    assert all(full(needs[name], 1, 2, 3, 2)[0][0] == [[False, False]] * 3 for name in ("query", "key", "value"))


def test_grouped_queries_share_a_head_of_values() -> None:
    op = aten.scaled_dot_product_attention.default
    arguments = _heads(4, []), _heads(2, []), _heads(2, [1])
    result = forward(op, *arguments, enable_gqa=True)
    assert result.known[0, :, 0, 0].tolist() == [False, False, True, True]
    need = torch.tensor([True, False, False, False]).reshape(1, 4, 1, 1)
    needs = backward(need, op, *arguments, enable_gqa=True)
    assert needs["value"][0, :, 0, 0].tolist() == [True, False]  # type: ignore[index]


@pytest.mark.parametrize(
    ("mask", "expected"), [([[True, False]], True), ([[True, True]], True), ([[False, False]], False)]
)
def test_values_survive_a_mask_that_leaves_something(mask: list[list[bool]], expected: bool) -> None:
    arguments = _heads(1, []), _heads(1, [], tokens=2), _heads(1, [0], tokens=2, value=4.0)
    result = forward(aten.scaled_dot_product_attention.default, *arguments, tesa(mask * 3, dtype=torch.bool))
    assert result.is_constant == expected


def test_an_average_with_padding_counted_is_a_border_map() -> None:
    result = forward(aten.avg_pool2d.default, _channels(9.0, None), [3, 3], [1, 1], [1, 1])
    assert result.known.flatten().tolist() == [True, False]
    assert result.full_value()[0, 0, 0].tolist() == [4.0, 6.0, 6.0, 4.0]


def test_a_mean_needs_all_it_averages() -> None:
    data = _channels(2.0, None)
    result = forward(aten.mean.dim, data, [2, 3])
    assert full_known(result) == [[True, False]] * 2
    needs = backward([[False, True]] * 2, aten.mean.dim, data, [2, 3])
    assert full(needs["self"], 2, 2, 4, 4)[0][0][0] == [False] * 4
    assert full(needs["self"], 2, 2, 4, 4)[0][1][0] == [True] * 4


def test_a_reshape_expands_only_what_varies() -> None:
    result = forward(aten.reshape.default, _channels(0.0, None), [2, 2, 16])
    assert tuple(result.known.shape) == (1, 2, 1)
    flat = forward(aten.reshape.default, _channels(0.0, None), [2, 32])
    assert full_known(flat)[0] == [True] * 16 + [False] * 16


def test_pieces_keep_their_offset() -> None:
    data = tesa([[0.0, 0.0, 1.0, 0.0]], [[True, False, True, False]])
    call = make_call(aten.split_with_sizes.default, data, [1, 3], 1)
    pieces = rule_of(call).forward(call)
    assert isinstance(pieces, tuple)
    assert [full_known(piece) for piece in pieces if piece] == [[[True]], [[False, True, False]]]
    joined = forward(aten.cat.default, [data, data], -1)
    assert full_known(joined) == [[True, False, True, False] * 2]


def test_a_table_column_that_is_the_same_in_all_rows() -> None:
    table = TeSA.constant(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    result = forward(aten.embedding.default, table, tesa([0, 0, 0], False, torch.int64))
    assert full_known(result) == [[True, False]] * 3


def test_known_positions_need_only_their_rows() -> None:
    index = tesa([2, 0], True, torch.int64)
    needs = backward([[True, False]] * 2, aten.embedding.default, TeSA.constant(torch.randn(3, 2)), index)
    assert full(needs["weight"], 3, 2) == [[True, False], [False, False], [True, False]]


def test_padding_is_known() -> None:
    result = forward(aten.constant_pad_nd.default, tesa([0.0, 0.0], False), [1, 0], 5.0)
    assert full_known(result) == [True, False, False]
    assert result.full_value()[0].item() == 5.0


X, SQUARE, HEADS = tesa([[0.0, 0.0]]), tesa([[0.0, 0.0]] * 2), _heads(2, [])
IMAGE, VECTOR = _channels(None, 0.0), tesa([0.0, 1.0])

DECLINED: list[tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]] = [
    (aten.addmm.default, (X, X, SQUARE), {"beta": 2}),
    (aten.matmul.default, (tesa([0.0, 0.0]), SQUARE), {}),
    (aten.dropout.default, (X, 0.5, True), {}),
    (aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS, None, 0.5), {}),
    (aten.batch_norm.default, (IMAGE, None, None, VECTOR, VECTOR, True, 0.1, 1e-5, True), {}),
    (aten.batch_norm.default, (IMAGE, tesa([0.0, 0.0], False), None, VECTOR, VECTOR, False, 0.1, 1e-5, True), {}),
    (aten.layer_norm.default, (X, [2], tesa([0.0, 0.0], False)), {}),
    (aten.group_norm.default, (IMAGE, 1, tesa([0.0, 0.0], False)), {}),
    (aten.prelu.default, (X, tesa([0.0], False)), {}),
    (aten.view.dtype, (X, torch.int32), {}),
    (aten.conv2d.default, (tesa([[[0.0]]]), TeSA.constant(torch.ones(1, 1, 1, 1))), {}),
    (aten.index_select.default, (X, 1, tesa([0], False, torch.int64)), {}),
]


@pytest.mark.parametrize(("target", "args", "kwargs"), DECLINED, ids=lambda value: str(value)[:40])
def test_a_rule_declines_what_it_cannot_treat(
    target: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = make_call(target, *args, **kwargs)
    assert rule_of(call).forward(call) is None


def test_an_index_map_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call(aten.roll.default, SQUARE, [1], [1])
    assert rule_of(call).forward(call) is not None
    monkeypatch.setattr("sparta.propagation.rules.movement.LARGEST_MAP", 3)
    assert rule_of(call).forward(call) is None
