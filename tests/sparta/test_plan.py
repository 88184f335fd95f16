"""Plans survive their own text, and damaged text is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparta.kernels.problem import Conv, Epilogue, Linear
from sparta.tesa.errors import FormatError
from sparta.transformation.plan import BUCKETS, Plan, bucket_of

LINEAR = Linear(8, 4, Epilogue(bias=True, activation="gelu"))
CONV = Conv(8, 4, (3, 3), (2, 2), (1, 1), (1, 1), 2, (9, 7), Epilogue(residual=True))


@pytest.mark.parametrize("problem", [LINEAR, CONV])
@pytest.mark.parametrize("only", [None, ("a", "b")])
def test_round_trip(problem: Linear | Conv, only: tuple[str, ...] | None) -> None:
    plan = Plan(problem, "bsr", {"block": [4, 1]}, {1: "x", 64: "y"}, only, 2)
    assert Plan.loads(plan.dumps()) == plan


def test_the_text_does_not_depend_on_order() -> None:
    assert Plan(LINEAR, "csr", {}, {1: "a", 2: "b"}).dumps() == Plan(LINEAR, "csr", {}, {2: "b", 1: "a"}).dumps()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "nonsense", Plan(LINEAR, "csr", {}, {}).dumps().replace("linear", "system")],
)
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="not a plan"):
        Plan.loads(text)


def test_surplus_problem_fields_are_refused() -> None:
    fields = json.loads(Plan(LINEAR, "csr", {}, {}).dumps())
    fields["problem"]["code"] = "import os"
    with pytest.raises(FormatError):
        Plan.loads(json.dumps(fields))


@given(st.integers(0, 10_000))
def test_buckets_cover_every_size(tokens: int) -> None:
    bucket = bucket_of(tokens)
    assert bucket in BUCKETS
    assert bucket <= max(tokens, 1)


def test_another_image_changes_only_the_image() -> None:
    other = Plan(CONV, "csr", {}, {}).for_image((5, 5))
    assert isinstance(other, Conv)
    assert other.image == (5, 5)
    assert other.out_channels == CONV.out_channels
