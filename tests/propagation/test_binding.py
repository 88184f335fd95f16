"""Binding: one canonical form of a call, and every problem of a bad one listed at once."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sparta.propagation.binding import bind
from sparta.tesa.errors import InputError


def forward(x: Any, y: Any = None, *, flag: bool = True) -> None:
    """The signature of a two-input model."""


SIGNATURE = inspect.signature(forward)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1, 2), {}), ((1,), {"y": 2}), ((), {"x": 1, "y": 2}), ((), {"y": 2, "x": 1})]
)
def test_one_canonical_form(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    assert bind(SIGNATURE, args, kwargs) == ((1, 2), {})


def test_keyword_only_arguments_stay_keywords() -> None:
    assert bind(SIGNATURE, (1,), {"flag": False}) == ((1,), {"flag": False})


def test_every_binding_problem_is_listed() -> None:
    with pytest.raises(InputError) as caught:
        bind(SIGNATURE, (), {"z": 1, "w": 2})
    message = str(caught.value)
    assert all(part in message for part in ("missing argument 'x'", "unexpected argument 'z'", "'w'"))


def test_surplus_and_doubled_arguments() -> None:
    with pytest.raises(InputError) as caught:
        bind(SIGNATURE, (1, 2, 3), {"x": 1})
    assert "3 positional arguments given, 2 accepted" in str(caught.value)
    assert "'x' given twice" in str(caught.value)
