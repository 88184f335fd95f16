"""Bytes, loops and instructions: storage formats, the table of kernels and their code generators."""

from sparta.kernels import conv, linear
from sparta.kernels.formats import Bsr, Csr, Dense, Format, Sell, conv_matrix, find_format, format_names
from sparta.kernels.machine import Machine, host_machine, machine_for
from sparta.kernels.problem import Activation, Conv, Epilogue, Linear, Problem
from sparta.kernels.table import Compiled, Kernel, find, kernel_names, kernels_for

__all__ = [
    "Activation",
    "Bsr",
    "Compiled",
    "Conv",
    "Csr",
    "Dense",
    "Epilogue",
    "Format",
    "Kernel",
    "Linear",
    "Machine",
    "Problem",
    "Sell",
    "conv",
    "conv_matrix",
    "find",
    "find_format",
    "format_names",
    "host_machine",
    "kernel_names",
    "kernels_for",
    "linear",
    "machine_for",
]
