"""Reference kernels of convolutions: every window of the image is a row of a sparse matmul."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from sparta.kernels.formats import Format
from sparta.kernels.linear.dense import finish
from sparta.kernels.linear.reference import ReferenceKernel, SparseMatmul
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Conv, Problem
from sparta.kernels.table import Compiled, kernel


@dataclass(frozen=True, slots=True)
class _ReferenceConv:
    matmul: SparseMatmul
    conv: Conv

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        conv = self.conv
        windows = functional.unfold(x, conv.kernel, conv.dilation, conv.padding, conv.stride)
        rows = windows.transpose(1, 2).reshape(-1, windows.shape[1])
        y = self.matmul(rows) if bias is None else self.matmul(rows) + bias
        image = y.view(x.shape[0], *conv.out_image, conv.out_channels).permute(0, 3, 1, 2)
        return finish(image, residual, conv.epilogue.activation).to(x.dtype).contiguous()


class _Reference(ReferenceKernel):
    problem = Conv

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The loop over the stored elements, fed with unfolded windows."""
        assert isinstance(problem, Conv)
        return _ReferenceConv(SparseMatmul.of(weight), problem)


@kernel()
class CsrConvReference(_Reference):
    """A loop over the nonzeros."""

    name = "csr_conv_reference"
    format = "csr"


@kernel()
class BsrConvReference(_Reference):
    """A loop over the blocks."""

    name = "bsr_conv_reference"
    format = "bsr"
