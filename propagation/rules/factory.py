"""Tensors made from sizes alone: filled with one number, with garbage, or with random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparta.propagation.call import Call
from sparta.propagation.registry import Needs, Rule, aten, opaque, register
from sparta.tesa import TeSA
from sparta.tesa.compressed import uniform


def _nothing_needed(call: Call) -> Needs:
    return {name: uniform(len(operand.shape), False) for name, operand in call.tensors()}


def _filled(fill: Callable[[Call], object]) -> Callable[[Call], TeSA | None]:
    """``zeros_like(x), full((s0, 4), 2)``: known everywhere, even where x or a size is not."""

    def forward(call: Call) -> TeSA | None:
        number = fill(call)
        if not isinstance(number, bool | int | float):
            return None
        return call.partial(uniform(call.rank, True), torch.full([1] * call.rank, number, dtype=call.dtype))

    return forward


FILLS: dict[str, Callable[[Call], object]] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda call: 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda call: 1),
    **dict.fromkeys(("full", "full_like", "new_full"), lambda call: call.args["fill_value"]),
    "scalar_tensor": lambda call: call.args["s"],
}

for _name, _fill in FILLS.items():
    register(f"aten.{_name}", Rule(_filled(_fill), _nothing_needed))

for _name in aten("empty_like new_empty new_empty_strided rand_like randn_like randint_like"):
    register(_name, Rule(Call.unknown, _nothing_needed, foldable=False))

opaque(*aten("empty empty_strided empty_permuted rand randn randint randperm bernoulli normal multinomial"))
