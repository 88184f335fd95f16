"""Checking a propagation by experiment: what it calls constant or unused is overwritten, and outputs must not move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from sparta.propagation.capture import flatten_call
from sparta.propagation.stages import Propagated
from sparta.tesa import TeSA

GARBAGE = 3.0
"""Standard deviation of the numbers written into unused elements."""

Corrupt = Callable[[fx.Node, Tensor], Tensor]


class _CorruptedRun(fx.Interpreter):
    """The masked program, with the result of every node changed by `corrupt` before the rest of it looks."""

    def __init__(self, propagated: Propagated, corrupt: Corrupt) -> None:
        captured = propagated.annotated.captured
        super().__init__(captured.root, graph=captured.graph)
        self.corrupt = corrupt

    def run_node(self, n: fx.Node) -> Any:
        """Result of node `n` as the rest of the program sees it."""
        result = super().run_node(n)
        return self.corrupt(n, result) if isinstance(result, Tensor) and n.op != "output" else result


@torch.no_grad()
def garbage_injection(
    propagated: Propagated, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, seed: int = 0
) -> float:
    """Relative error of the outputs after overwriting known elements with their value, unneeded ones with garbage.

    Zero, up to rounding, if the propagation is right; infinite if a finite output became NaN.

    Parameters
    ----------
    propagated
        What is checked.
    args, kwargs
        A fresh call.
    seed
        Of the garbage.

    Examples
    --------
    >>> from sparta.propagation import annotate, capture
    >>> from sparta.propagation.engine import propagate
    >>> call = (torch.randn(3, 4),)
    >>> propagated = propagate(annotate(capture(torch.nn.Linear(4, 2), call)))
    >>> garbage_injection(propagated, call, {}) < 1e-5
    True
    """
    generator = torch.Generator().manual_seed(seed)
    expected = _outputs(propagated, args, kwargs, lambda node, tensor: tensor)
    return _error(expected, _outputs(propagated, args, kwargs, lambda n, t: _pollute(propagated, n, t, generator)))


@torch.no_grad()
def bisect(
    propagated: Propagated, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, seed: int = 0, tolerance: float = 1e-4
) -> tuple[str, ...]:
    """Names of the nodes whose attribute is wrong: overwriting that node alone moves the outputs.

    Facts are checked on the untouched program; needs on the program whose known elements all have their value, which
    is what needs rely on.

    Parameters
    ----------
    propagated, args, kwargs, seed
        As for `garbage_injection`.
    tolerance
        Relative error that counts as moved.
    """

    def outputs(corrupt: Corrupt) -> list[Tensor]:
        return _outputs(propagated, args, kwargs, corrupt)

    def settle(node: fx.Node, tensor: Tensor) -> Tensor:
        return _settle(propagated, node, tensor)

    plain, settled = outputs(lambda node, tensor: tensor), outputs(settle)

    def error_of(suspect: fx.Node) -> float:
        generator = torch.Generator().manual_seed(seed)
        facts = outputs(lambda n, t: settle(n, t) if n is suspect else t)
        needs = outputs(lambda n, t: _pollute(propagated, n, t, generator) if n is suspect else settle(n, t))
        return max(_error(plain, facts), _error(settled, needs))

    return tuple(node.name for node in propagated.tesa if error_of(node) > tolerance)


def _outputs(
    propagated: Propagated, args: tuple[Any, ...], kwargs: Mapping[str, Any], corrupt: Corrupt
) -> list[Tensor]:
    captured = propagated.annotated.captured
    inputs = dict(zip(captured.user_inputs, flatten_call(captured, args, kwargs), strict=True))
    values = {**propagated.annotated.weights, **inputs}
    placeholders = [values[node.name] for node in captured.graph.find_nodes(op="placeholder")]
    return [leaf for leaf in _CorruptedRun(propagated, corrupt).run(*placeholders) if isinstance(leaf, Tensor)]


def _settle(propagated: Propagated, node: fx.Node, tensor: Tensor) -> Tensor:
    """`tensor` with its known elements replaced by their value."""
    tesa = propagated.tesa.get(node)
    if not isinstance(tesa, TeSA):
        return tensor
    return torch.where(tesa.known.expand(tensor.shape), tesa.value.expand(tensor.shape), tensor)


def _pollute(propagated: Propagated, node: fx.Node, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """`tensor` with its known elements replaced by their value and its unneeded ones by garbage.

    Facts about computed tensors hold whatever is unneeded, so they are not overwritten with garbage: a consumer may
    rely on them. A weight is all known; there only the need says what may change.
    """
    tesa = propagated.tesa.get(node)
    if not isinstance(tesa, TeSA):
        return tensor
    kept = tesa.need if node.op == "placeholder" else tesa.need | tesa.known
    settled = _settle(propagated, node, tensor)
    return torch.where(kept.expand(tensor.shape), settled, _garbage_like(tensor, generator))


def _garbage_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers or bools in the form of `tensor`; integers may be positions in something and stay."""
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator) < 0.5
    if tensor.dtype.is_floating_point:
        return (torch.randn(tensor.shape, generator=generator) * GARBAGE).to(tensor.dtype)
    return tensor


def _error(expected: list[Tensor], actual: list[Tensor]) -> float:
    return max((_relative(want, got) for want, got in zip(expected, actual, strict=True)), default=0.0)


def _relative(expected: Tensor, actual: Tensor) -> float:
    """Largest difference over the largest magnitude; where both are the same infinity or NaN they agree."""
    want, got = expected.double(), actual.double()
    same = (want == got) | (want.isnan() & got.isnan())
    if bool(same.all()):
        return 0.0
    difference = (want - got)[~same].abs().amax()
    scale = want[want.isfinite()].abs().amax() if bool(want.isfinite().any()) else torch.ones(())
    return float(torch.where(difference.isfinite(), difference / scale.clamp_min(1e-6), torch.inf))
