"""Storage formats of weight matrices."""

from sparta.kernels.formats.base import VALUE_DTYPES, Format, find_format, format, format_names
from sparta.kernels.formats.bsr import Bsr
from sparta.kernels.formats.csr import Csr
from sparta.kernels.formats.dense import Dense
from sparta.kernels.formats.matrix import conv_matrix
from sparta.kernels.formats.sell import Sell

__all__ = [
    "VALUE_DTYPES",
    "Bsr",
    "Csr",
    "Dense",
    "Format",
    "Sell",
    "conv_matrix",
    "find_format",
    "format",
    "format_names",
]
