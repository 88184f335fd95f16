"""Kernels of linear layers; importing this package adds them to the table."""

from sparta.kernels.linear import dense as dense
from sparta.kernels.linear import lookup as lookup
from sparta.kernels.linear import outer as outer
from sparta.kernels.linear import reference as reference
from sparta.kernels.linear import small as small
from sparta.kernels.linear import tile as tile
