"""When a relayout pays: saved multiply-adds against moved elements."""

from __future__ import annotations

RELAYOUT_MACS = 64
"""Multiply-adds that take as long as selecting or scattering one element of an activation (measured: 40 to 100)."""

NARROW_NORM = 4
"""A normalization of separate operators makes this many more passes than PyTorch's own, over the kept part only."""


def pays(saved_macs: float, moved: float) -> bool:
    """Whether saving multiply-adds is worth moving elements (both per position of the activation)."""
    return saved_macs > RELAYOUT_MACS * moved
