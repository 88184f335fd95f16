"""Kernels of linear layers; importing this package adds them to the table."""

from sparta.kernels.linear import dense as dense
from sparta.kernels.linear import outer as outer
from sparta.kernels.linear import reference as reference
