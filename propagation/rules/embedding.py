"""Table look-ups."""

from __future__ import annotations

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, rule
from sparta.tesa import TeSA
from sparta.tesa.compressed import any_over, expand_dims, uniform


def _embedding_backward(call: Call) -> Needs:
    """Columns that are needed somewhere; rows that a known index picks, all rows otherwise."""
    table, index = call["weight"], call["indices"]
    column = expand_dims(any_over(call.need, range(call.rank - 1)), call.shape, [call.rank - 1]).reshape(1, -1)
    row = uniform(2, True)
    if index.is_constant and isinstance(table.shape[0], int):
        row = uniform(2, False).expand(table.shape[0], 1).clone()
        row[index.value.flatten().long()] = True
    return {"weight": row & column, "indices": any_over(call.need, [call.rank - 1]).squeeze(-1)}


@rule("aten.embedding", backward=_embedding_backward)
def embedding(call: Call) -> TeSA:
    """A column that is the same in all rows is known whatever the index.

    Indices ``[s0, 7]`` into a table ``[100, 64]`` whose columns 0-3 are pruned -> ``[s0, 7, 64]``, 0-3 zero.
    """
    column = call["weight"].uniform_over([0])
    lead = [1] * (call.rank - 1)
    return call.partial(column.known.reshape(*lead, -1), column.value.reshape(*lead, -1))
