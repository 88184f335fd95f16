"""Every rule, on random attributes: what it calls known is, and what it calls unneeded does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sparta.propagation.call import Call, run_operator
from sparta.propagation.registry import RULES, operator_name
from sparta.tesa import TeSA
from tests.propagation.operators import concretize, is_tesa, make_call, rule_of, sample

aten = torch.ops.aten


class Data(NamedTuple):
    """A placeholder for a random attribute of this shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    infinities: bool = False


class Constant(NamedTuple):
    """A placeholder for an operand known everywhere."""

    value: Tensor


class Case(NamedTuple):
    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def case(target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Case:
    return Case(target, args, kwargs)


def weight(*shape: int) -> Constant:
    """A constant with zero rows and zero elements."""
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator)
    values[torch.rand(shape, generator=generator) < 0.3] = 0
    values[: shape[0] // 3] = 0
    return Constant(values)


X, ROW, SQUARE = Data((2, 4, 3)), Data((4, 1)), Data((3, 3))
SCORES = Data((2, 4, 3), infinities=True)
SIGNAL, IMAGE, VOLUME = Data((2, 4, 6)), Data((2, 4, 6, 6)), Data((1, 2, 4, 4, 4))
FLAGS, HEADS = Data((2, 4, 3), torch.bool), Data((2, 4, 3, 5))
VARIANCE = Constant(torch.rand(4, generator=torch.Generator().manual_seed(0)) + 0.5)
INDEX = Constant(torch.tensor([2, 0, 2]))
MASK = Constant(torch.tensor([[True, False, True], [True, True, True], [False, True, False]]))

UNARY = """
relu relu6 gelu silu mish tanh hardswish leaky_relu elu celu selu hardshrink softshrink hardtanh sigmoid
hardsigmoid softplus log_sigmoid logit erf erfc neg abs sign square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10
log1p sin cos tan asin acos atan sinh cosh asinh floor ceil round trunc frac nan_to_num isnan isinf isfinite clone
contiguous alias detach lift_fresh_copy lift_fresh _to_copy zeros_like ones_like squeeze mT
"""
TENSOR_BINARY = "mul multiply div divide true_divide add sub fmod remainder rsub eq ne lt le gt ge"
PLAIN_BINARY = "maximum minimum atan2 floor_divide"
LOGICAL = "logical_and logical_or logical_xor"
BITWISE = "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__"

ELEMENTWISE = [
    *(case(getattr(aten, name).default, X) for name in UNARY.split()),
    *(case(getattr(aten, name).Tensor, X, ROW) for name in TENSOR_BINARY.split()),
    *(case(getattr(aten, name).default, X, ROW) for name in PLAIN_BINARY.split()),
    *(case(getattr(aten, name).default, FLAGS, Data((3,), torch.bool)) for name in LOGICAL.split()),
    *(case(getattr(aten, name).Tensor, FLAGS, Data((3,), torch.bool)) for name in BITWISE.split()),
    *(case(getattr(aten, name).default, X, -0.5) for name in ("clamp", "clip", "clamp_min")),
    *(case(getattr(aten, name).default, FLAGS) for name in ("logical_not", "bitwise_not")),
    case(aten.clamp_max.default, X, 0.5),
    *(case(op, SCORES, ROW) for op in (aten.add.Tensor, aten.sub.Tensor, aten.maximum.default)),
    case(aten.sub.Tensor, X, Data((3,), infinities=True)),
    case(aten.pow.Tensor_Tensor, X, ROW),
    case(aten.pow.Tensor_Scalar, X, 2),
    case(aten.pow.Scalar, 2.0, X),
    case(aten.threshold.default, X, 0.1, 2.0),
    case(aten.to.dtype, X, torch.float64),
    case(aten.lerp.Tensor, X, ROW, X),
    case(aten.addcmul.default, X, ROW, X),
    case(aten.addcdiv.default, X, ROW, X),
    case(aten.mul.Scalar, X, 0.0),
    case(aten.div.Scalar, X, 2.0),
    case(aten.add.Scalar, X, -float("inf")),
    case(aten.floor_divide.default, Data((4,), torch.int64), Constant(torch.tensor(2))),
    case(aten.prelu.default, IMAGE, weight(4)),
    case(aten.prelu.default, X, weight(1)),
    case(aten._prelu_kernel.default, X, Constant(torch.tensor([0.5]))),
    case(aten.dropout.default, X, 0.5, False),
    case(aten.where.self, FLAGS, X, ROW),
    case(aten.where.ScalarOther, FLAGS, X, 1.0),
    case(aten.masked_fill.Scalar, X, FLAGS, -float("inf")),
    case(aten.masked_fill.Tensor, X, FLAGS, Constant(torch.tensor(2.0))),
    *(case(getattr(aten, f"new_{name}").default, X, [2, 3]) for name in ("zeros", "ones")),
    *(case(getattr(aten, name).default, [2, 3]) for name in ("zeros", "ones")),
    case(aten.new_full.default, X, [2, 3], 7.0),
    case(aten.full_like.default, X, 3),
    case(aten.full.default, [2, 3], 1.5),
    case(aten.scalar_tensor.default, 2.5),
]
CONTRACTIONS = [
    case(aten.linear.default, X, weight(6, 3), weight(6)),
    case(aten.linear.default, Data((3,)), weight(6, 3)),
    case(aten.linear.default, X, Data((6, 3)), Data((6,))),
    case(aten.addmm.default, weight(5), Data((4, 3)), weight(3, 5)),
    case(aten.addmm.default, Data((4, 5)), Data((4, 3)), Data((3, 5))),
    case(aten.baddbmm.default, Data((2, 4, 5)), X, Data((2, 3, 5))),
    case(aten.mm.default, SQUARE, Data((3, 4))),
    case(aten.bmm.default, X, Data((2, 3, 5))),
    case(aten.matmul.default, HEADS, Data((5, 4))),
    case(aten.matmul.default, HEADS, Data((2, 1, 5, 4))),
    case(aten.matmul.default, SQUARE, weight(3, 3)),
]
CONVOLUTIONS = [
    case(aten.conv1d.default, SIGNAL, weight(6, 4, 3), weight(6), [1], [1]),
    case(aten.conv2d.default, IMAGE, weight(6, 4, 3, 3), weight(6), [1, 1], [1, 1]),
    case(aten.conv2d.default, IMAGE, weight(6, 2, 3, 3), None, [2, 2], [2, 0], [1, 2], 2),
    case(aten.conv2d.default, IMAGE, weight(8, 1, 3, 3), weight(8), [1, 1], [1, 1], [1, 1], 4),
    case(aten.conv2d.padding, IMAGE, weight(6, 4, 3, 3), weight(6), [1, 1], "same"),
    case(aten.conv2d.padding, IMAGE, Data((6, 4, 3, 3)), None, [1, 1], "valid"),
    case(aten.conv3d.default, VOLUME, weight(3, 2, 2, 2, 2), weight(3), [1, 1, 1], [1, 1, 1]),
]
NORMS = [
    case(
        aten._native_batch_norm_legit_no_training.default, IMAGE, weight(4), weight(4), weight(4), VARIANCE, 0.1, 1e-5
    ),
    case(aten.batch_norm.default, X, weight(4), weight(4), weight(4), VARIANCE, False, 0.1, 1e-5, True),
    case(aten.batch_norm.default, X, None, None, weight(4), VARIANCE, False, 0.1, 1e-5, True),
    case(aten.layer_norm.default, X, [3], weight(3), weight(3)),
    case(aten.layer_norm.default, X, [4, 3]),
    case(aten.rms_norm.default, X, [3], weight(3)),
    case(aten.group_norm.default, IMAGE, 2, weight(4), weight(4)),
    case(aten.softmax.int, SCORES, -1),
    case(aten._softmax.default, SCORES, 1, False),
    case(aten.log_softmax.int, X, 1),
    case(aten._log_softmax.default, X, 2, False),
]
ATTENTIONS = [
    case(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS),
    case(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS, is_causal=True),
    case(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS, MASK),
    case(aten.scaled_dot_product_attention.default, HEADS, HEADS, HEADS, Data((3, 3), infinities=True)),
    case(aten.scaled_dot_product_attention.default, HEADS, Data((2, 2, 6, 5)), Data((2, 2, 6, 7)), enable_gqa=True),
    case(aten.scaled_dot_product_attention.default, HEADS, Data((2, 1, 6, 5)), Data((2, 1, 6, 7)), enable_gqa=True),
    case(aten.scaled_dot_product_attention.default, X, X, X),
]
POOLS = [
    *(case(getattr(aten, f"{kind}_pool1d").default, SIGNAL, [2]) for kind in ("max", "avg", "adaptive_avg")),
    *(case(getattr(aten, f"{kind}_pool3d").default, VOLUME, [2, 2, 2]) for kind in ("max", "avg", "adaptive_avg")),
    case(aten.max_pool2d.default, IMAGE, [3, 3], [1, 1], [1, 1]),
    case(aten.avg_pool2d.default, IMAGE, [3, 3], [2, 2], [1, 1]),
    case(aten.adaptive_avg_pool2d.default, IMAGE, [1, 1]),
    case(aten._adaptive_avg_pool2d.default, IMAGE, [2, 3]),
    case(aten.upsample_bilinear2d.vec, IMAGE, [9, 9], False, None),
    case(aten.upsample_bicubic2d.vec, IMAGE, [9, 9], False, None),
    case(aten.upsample_nearest2d.vec, IMAGE, [12, 12], None),
    case(aten.mean.dim, IMAGE, [2, 3]),
    case(aten.mean.default, X),
    case(aten.sum.dim_IntList, X, [1], True),
    case(aten.amax.default, X, [-1]),
    case(aten.amin.default, X, [0, 2], True),
]
SHAPES = [
    *(case(getattr(aten, name).default, X, [2, 2, 6]) for name in ("reshape", "view", "_unsafe_view")),
    case(aten.flatten.using_ints, HEADS, 1, 2),
    case(aten.unflatten.int, IMAGE, 1, [2, 2]),
    case(aten.squeeze.dim, Data((2, 1, 3)), 1),
    case(aten.unsqueeze.default, X, 1),
    case(aten.permute.default, HEADS, [2, 0, 3, 1]),
    *(case(getattr(aten, name).int, HEADS, 1, 3) for name in ("transpose", "movedim", "moveaxis")),
    *(case(getattr(aten, name).default, HEADS, 1, 3) for name in ("swapaxes", "swapdims")),
    *(case(getattr(aten, name).default, SQUARE) for name in ("t", "numpy_T")),
    case(aten.expand.default, ROW, [2, 4, 3]),
    case(aten.broadcast_to.default, ROW, [4, 5]),
    case(aten.embedding.default, weight(7, 4), Data((2, 3), torch.int64)),
    case(aten.embedding.default, weight(7, 4), INDEX),
]
MOVES = [
    case(aten.slice.Tensor, X, 1, 1, 4, 2),
    case(aten.slice.Tensor, X, -1, -2),
    case(aten.select.int, X, 1, -1),
    case(aten.roll.default, X, [1, 2], [1, 2]),
    case(aten.flip.default, X, [1]),
    case(aten.rot90.default, X, 1, [0, 1]),
    case(aten.pixel_shuffle.default, IMAGE, 2),
    case(aten.pixel_unshuffle.default, IMAGE, 2),
    case(aten.channel_shuffle.default, IMAGE, 2),
    *(case(getattr(aten, name).default, X, [1, 2, 3]) for name in ("repeat", "tile")),
    case(aten.repeat_interleave.self_int, X, 3, 1),
    case(aten.index.Tensor, X, [None, INDEX]),
    case(aten.index_select.default, X, 1, INDEX),
    case(aten.gather.default, X, 1, Constant(torch.ones(2, 2, 3, dtype=torch.int64))),
    case(aten.take_along_dim.default, X, Constant(torch.tensor([[[0, 2, 1]]])), 1),
    case(aten.diagonal.default, X, 0, 1, 2),
    case(aten.unfold.default, SIGNAL, 2, 3, 2),
    case(aten.im2col.default, IMAGE, [3, 3], [1, 1], [1, 1], [2, 2]),
    case(aten.pad.default, X, [1, 2], "constant", 2.0),
    case(aten.pad.default, SIGNAL, [1, 2], "reflect"),
    case(aten.constant_pad_nd.default, X, [1, 0, 0, 2], -1.0),
    *(case(getattr(aten, f"{kind}_pad1d").default, SIGNAL, [1, 2]) for kind in ("reflection", "replication")),
    *(case(getattr(aten, f"{kind}_pad2d").default, IMAGE, [1, 0, 2, 1]) for kind in ("reflection", "replication")),
    *(case(getattr(aten, f"{kind}_pad3d").default, VOLUME, [1] * 6) for kind in ("reflection", "replication")),
    *(case(getattr(aten, name).default, [X, Data((2, 1, 3)), X], 1) for name in ("cat", "concat", "concatenate")),
    case(aten.cat.default, [Constant(torch.zeros(0)), X], -1),
    case(aten.stack.default, [X, X], -1),
    case(aten.split.Tensor, X, 3, 1),
    case(aten.split_with_sizes.default, X, [1, 0, 3], 1),
    case(aten.chunk.default, X, 3, 1),
    case(aten.tensor_split.indices, X, [1, 2], -1),
    case(aten.unbind.int, X, -1),
]
CASES = [*ELEMENTWISE, *CONTRACTIONS, *CONVOLUTIONS, *NORMS, *ATTENTIONS, *POOLS, *SHAPES, *MOVES]


def flags_like(shape: Sequence[int]) -> Tensor:
    """Random compressed flags: uniform along a random choice of dimensions."""
    return torch.rand([size if torch.rand(()) < 0.6 else 1 for size in shape]) < 0.5


def randomize(leaf: Any) -> Any:
    """The attribute a placeholder of a case stands for this time."""
    if isinstance(leaf, Constant):
        return TeSA.constant(leaf.value)
    if not isinstance(leaf, Data):
        return leaf
    values = torch.randn(leaf.shape) * (torch.rand(leaf.shape) < 0.6)
    if leaf.infinities:
        values[torch.rand(leaf.shape) < 0.2] = -torch.inf
    values = values if leaf.dtype.is_floating_point else (values != 0).to(leaf.dtype)
    return TeSA.partial(leaf.shape, leaf.dtype, flags_like(leaf.shape), values)


def random_call(row: Case) -> Call:
    args, kwargs = pytree.tree_map(
        randomize, (row.args, row.kwargs), is_leaf=lambda leaf: isinstance(leaf, Data | Constant)
    )
    return make_call(row.target, *args, **kwargs)


def results_of(call: Call, args: Any) -> list[Tensor]:
    result = run_operator(call.node, args)
    return list(result) if isinstance(result, list | tuple) else [result]


def attributes_of(call: Call) -> tuple[TeSA, ...]:
    result = rule_of(call).forward(call)
    assert result is not None
    return result if isinstance(result, tuple) else (result,)  # type: ignore[return-value]


def agree(left: Tensor, right: Tensor, where: Tensor) -> bool:
    chosen = where.expand(left.shape)
    return torch.allclose(left[chosen].double(), right[chosen].double(), rtol=1e-4, atol=1e-4, equal_nan=True)


def case_name(row: Case) -> str:
    return str(row.target).removeprefix("aten.")


@pytest.mark.parametrize("row", CASES, ids=case_name)
def test_known_elements_have_their_value(row: Case) -> None:
    for _ in range(6):
        call = random_call(row)
        for got, tesa in zip(results_of(call, concretize(dict(call.args))), attributes_of(call), strict=True):
            assert tuple(got.shape) == tesa.shape
            assert got.dtype == tesa.dtype
            assert agree(got, tesa.full_value(), tesa.known)


def disturb(attribute: TeSA, tensor: Tensor, need: Tensor, *, known: bool) -> Tensor:
    """`tensor` with other numbers where it is not needed, and not known unless `known` says so; positions stay."""
    if not attribute.dtype.is_floating_point:
        return tensor
    fixed = need.expand(tensor.shape) if known else (need | attribute.known).expand(tensor.shape)
    return torch.where(fixed, tensor, sample(TeSA.unknown(attribute.shape, attribute.dtype)))


@pytest.mark.parametrize("row", CASES, ids=case_name)
def test_unneeded_elements_do_not_matter(row: Case) -> None:
    for _ in range(6):
        call = random_call(row)
        live = [flags_like(tuple(map(int, t.shape))) & ~t.known for t in attributes_of(call)]
        needs = rule_of(call).backward(replace(call, needs=tuple(live)))
        assert needs is not None
        tensors = concretize(dict(call.args))
        expected = results_of(call, tensors)
        pairs = {name: (arg, needs[name]) for name, arg in call.args.items() if is_tesa(arg) and name in needs}
        together = {name: disturb(arg, tensors[name], need, known=False) for name, (arg, need) in pairs.items()}
        alone = [{name: disturb(arg, tensors[name], need, known=True)} for name, (arg, need) in pairs.items()]
        for changed in (together, *alone):
            actual = results_of(call, {**tensors, **changed})
            assert all(agree(*results) for results in zip(expected, actual, live, strict=True))


def test_there_is_a_case_for_every_rule() -> None:
    tested = {operator_name(random_call(row).node) for row in CASES}
    opaque = {name for name, rule in RULES.items() if not rule.foldable}
    assert set(RULES) - opaque == tested - opaque


def test_needs_of_lists_follow_their_pieces() -> None:
    call = random_call(case(aten.cat.default, [Data((2,)), Data((3,))]))
    needs = rule_of(call).backward(replace(call, needs=(torch.tensor([True, False, False, False, True]),)))
    assert needs is not None
    assert [need.tolist() for need in needs["tensors"]] == [[True, False], [False, False, True]]
