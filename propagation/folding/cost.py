"""When a relayout pays: saved multiply-adds against moved elements.

A CPU core does about 32 multiply-adds a nanosecond in a dense product, selects an element in half a nanosecond and
scatters one in two; calling an operator takes some microseconds. The device cancels out: all of these scale alike.
"""

from __future__ import annotations

SELECT_MACS = 16
"""Multiply-adds that take as long as selecting one element of an activation."""

SCATTER_MACS = 48
"""Multiply-adds that take as long as one element of the result of a scatter."""

CALL_MACS = 1 << 17
"""Multiply-adds that take as long as calling one more operator."""

NARROW_NORM = 4
"""A normalization of separate operators makes this many more passes than PyTorch's own, over the kept part only."""

DROPPED_PARTS = 0.25
"""A concatenation leaves known parts out where they make up at least this share of the result."""


def selection_pays(saved_macs: float, moved: float, positions: float) -> bool:
    """Whether saving multiply-adds is worth selecting `moved` elements, both at each of `positions` places."""
    return positions * (saved_macs - SELECT_MACS * moved) > CALL_MACS


def scatter_pays(saved_macs: float, moved: float, positions: float) -> bool:
    """The same for scattering into `moved` elements."""
    return positions * (saved_macs - SCATTER_MACS * moved) > CALL_MACS
