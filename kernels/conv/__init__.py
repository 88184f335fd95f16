"""Kernels of convolutions; importing this package adds them to the table."""

from sparta.kernels.conv import dense as dense
from sparta.kernels.conv import reference as reference
from sparta.kernels.conv import tile as tile
