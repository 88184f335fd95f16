"""What transform decides: a plan for each weighted operator, and the whole planned model."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import fx

from sparta.kernels.problem import Conv, Epilogue, Linear, Problem
from sparta.propagation.stages import Folded
from sparta.tesa.errors import FormatError

BUCKETS = (1, 2, 16, 64)
"""Lower bounds of the ranges of T that share one kernel choice: 1, 2-15, 16-63, 64 and more."""


def bucket_of(tokens: int) -> int:
    """The lower bound of the range `tokens` falls into.

    >>> [bucket_of(t) for t in (1, 2, 15, 16, 63, 64, 9999)]
    [1, 2, 2, 16, 16, 64, 64]
    """
    return BUCKETS[max(bisect_right(BUCKETS, tokens) - 1, 0)]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One operator with a constant weight, and the neighbors its kernel can absorb.

    Parameters
    ----------
    node
        The linear or convolution.
    last
        The node whose result the fused kernel returns; `node` itself when nothing is absorbed.
    residual
        The node added to the result, or None.
    weight, bias
        Attribute names of the weight and bias in the folded module.
    problem
        What the kernel must compute, including the epilogue.
    tokens
        Columns of the dense operand for the example: rows of x, or N * OH * OW.
    name, op
        Qualified module name and operator name, for people.
    """

    node: fx.Node
    last: fx.Node
    residual: fx.Node | None
    weight: str
    bias: str | None
    problem: Problem
    tokens: int
    name: str
    op: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How one operator runs, and all that a saved model says about it.

    Parameters
    ----------
    problem
        What to compute.
    format, parameters
        Storage format of the weight, "dense" where PyTorch runs the operator unchanged.
    kernels
        Lower bound of a range of T -> kernel name; ranges that are missing are measured at their first call.
    only
        Names of the only kernels allowed, or None for all.
    threads
        Threads of the kernels; None follows `torch.get_num_threads()` at call time.
    """

    problem: Problem
    format: str
    parameters: Mapping[str, Any]
    kernels: Mapping[int, str]
    only: tuple[str, ...] | None = None
    threads: int | None = None

    def dumps(self) -> str:
        """The plan as JSON, the string that the custom operators carry."""
        fields = {
            "op": "linear" if isinstance(self.problem, Linear) else "conv2d",
            "problem": asdict(self.problem),
            "format": self.format,
            "parameters": dict(self.parameters),
            "kernels": {str(bucket): name for bucket, name in self.kernels.items()},
            "only": self.only,
            "threads": self.threads,
        }
        return json.dumps(fields, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> Plan:
        """The plan that `dumps` wrote.

        Raises
        ------
        FormatError
            If the text is not a plan.
        """
        try:
            fields = json.loads(text)
            problem = dict(fields["problem"])
            epilogue = Epilogue(**problem.pop("epilogue"))
            pairs = {key: tuple(value) if isinstance(value, list) else value for key, value in problem.items()}
            return cls(
                problem={"linear": Linear, "conv2d": Conv}[fields["op"]](**pairs, epilogue=epilogue),
                format=str(fields["format"]),
                parameters=dict(fields["parameters"]),
                kernels={int(bucket): str(name) for bucket, name in fields["kernels"].items()},
                only=tuple(fields["only"]) if fields["only"] else None,
                threads=fields["threads"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"not a plan ({error!r}): {text[:200]!r}; save the model again with this version"
            raise FormatError(message) from error

    def for_image(self, image: tuple[int, int]) -> Problem:
        """The problem at another image size (convolutions specialize for height and width)."""
        if isinstance(self.problem, Linear) or self.problem.image == image:
            return self.problem
        return replace(self.problem, image=image)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A plan for a site with the facts that led to it; latencies are seconds, None where not measured."""

    site: Site
    plan: Plan
    pattern: str
    density: float
    kernel: str
    reason: str
    dense_seconds: float | None = None
    chosen_seconds: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A folded model with one decision for each weighted operator."""

    folded: Folded
    decisions: tuple[Decision, ...]
