"""Timing takes turns, and dense wins ties."""

from __future__ import annotations

import pytest

from sparta.transformation.measure import LONG_RUN, fastest, measure


def test_functions_take_turns() -> None:
    calls: list[str] = []
    measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, budget=0.0, rounds=(3, 3))
    switches = sum(x != y for x, y in zip(calls, calls[1:], strict=False))
    assert switches >= 2 * 3 - 1


def test_slow_functions_are_not_repeated_per_sample() -> None:
    import time

    calls = []
    measure({"slow": lambda: (calls.append(1), time.sleep(LONG_RUN * 1.1))}, budget=0.0, rounds=(3, 3))
    assert len(calls) == 1 + 3


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"dense": 1.0, "csr": 0.96, "bsr": 1.5}, "dense"),
        ({"dense": 1.0, "csr": 0.94, "bsr": 1.5}, "csr"),
        ({"dense": 1.0, "csr": 0.94, "bsr": 0.5}, "bsr"),
        ({"dense": 1.0}, "dense"),
    ],
)
def test_a_sparse_choice_must_win_by_five_percent(times: dict[str, float], best: str) -> None:
    assert fastest(times, "dense") == best
