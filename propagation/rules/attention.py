"""Fused attention: ``softmax(q @ k.T * scale + mask) @ v`` over heads, grouped queries included."""

from __future__ import annotations

import torch
from torch import Tensor

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import all_over, any_over, anywhere, reduce_to


def _to_query_heads(part: Tensor, call: Call, source: TeSA) -> Tensor:
    """`part` of a key or value with its heads repeated as the query heads that share them."""
    if not call.args["enable_gqa"] or part.shape[-3] == 1:
        return part
    return part.repeat_interleave(int(call["query"].shape[-3]) // int(source.shape[-3]), -3)


def _from_query_heads(need: Tensor, call: Call, source: TeSA) -> Tensor:
    """The need of a key or value: any of the query heads that share a head."""
    if call.args["enable_gqa"] and need.shape[-3] != 1:
        need = any_over(need.unflatten(-3, (int(source.shape[-3]), -1)), [-3]).squeeze(-3)
    return reduce_to(need, source.shape)


def _is_supported(call: Call) -> bool:
    """Dropout, or heads whose number is symbolic, are beyond this rule; so are unbatched single heads with groups."""
    heads = [call[name].shape[-3] if len(call[name].shape) > 2 else 1 for name in ("query", "key", "value")]
    grouped_badly = call.args["enable_gqa"] and call.rank < 3
    return call.args["dropout_p"] == 0 and not grouped_badly and all(isinstance(h, int) for h in heads)


def _attention_backward(call: Call) -> Needs | None:
    """Per head and feature.

    A value feature is needed where the result is. A head whose result is not needed needs neither query nor key.
    A query feature matters where the key feature may be non-zero, and the reverse; but a key feature that is the same
    constant at every position shifts all scores of a row alike, which softmax cancels, so its queries are idle.
    """
    query, key, value = call["query"], call["key"], call["value"]
    features = any_over(call.need, [-2])
    head = any_over(features, [-1])
    key_acts = any_over(key.nonzero, [-2]) & ~key.uniform_over([-2]).known
    return {
        "query": reduce_to(head & _to_query_heads(key_acts, call, key), query.shape),
        "key": _from_query_heads(head & any_over(query.nonzero, [-2]), call, key),
        "value": _from_query_heads(features, call, value),
    }


@rule("aten.scaled_dot_product_attention", backward=_attention_backward)
def attention(call: Call) -> TeSA | None:
    """A value feature that is the same constant at every position comes out unchanged: probabilities sum to 1.

    Value rows of head 0 pruned -> result of head 0 zero, whatever its queries and keys.
    """
    if not _is_supported(call):
        return None
    constant = call["value"].uniform_over([-2])
    known = constant.known
    if not _attends_always(call):
        known = known & (constant.value == 0)
    parts = (_to_query_heads(part, call, call["value"]) for part in (known, constant.value))
    return call.partial(*parts)


def _attends_always(call: Call) -> bool:
    """Every query sees some key, so that its probabilities sum to 1."""
    mask = call.optional("attn_mask")
    if mask is None:
        return True
    hidden = mask.value == (False if mask.dtype == torch.bool else -torch.inf)
    return not anywhere(all_over(~mask.known | hidden, [-1]))
