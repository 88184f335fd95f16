"""A convolution as a matrix product whose operand is never built: planes of pixels, and where each feature starts.

The output pixels form a lattice of lines `pitch` apart. If every feature (channel, kernel row, kernel column) of every
lattice pixel p is at ``planes[offset of the feature + p]``, a tile of pixels is packed with plain vector loads. An
unpadded image with stride 1 has that form already. Otherwise a padded copy is made first, and a stride s takes it apart
into *phases*: plane ``(i, j)`` of a channel holds the pixels whose row is i and whose column is j, modulo s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparta.kernels.codegen.sinks import Lattice
from sparta.kernels.problem import Conv


@dataclass(frozen=True, slots=True)
class Axis:
    """One image axis: the taps of the kernel sorted into phases."""

    size: int
    out_size: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def phases(self) -> tuple[int, ...]:
        """The phases that some tap falls into."""
        return tuple(sorted({tap * self.dilation % self.stride for tap in range(self.taps)}))

    @property
    def extent(self) -> int:
        """Pixels of one phase."""
        return self.out_size + (self.taps - 1) * self.dilation // self.stride

    def tap(self, tap: int) -> tuple[int, int]:
        """Number of the phase of a tap, and how far into it the tap starts."""
        whole, phase = divmod(tap * self.dilation, self.stride)
        return self.phases.index(phase), whole

    def inside(self, phase: int) -> tuple[int, int]:
        """The pixels [first, last) of a phase that are not padding."""
        first = -(-(self.padding - phase) // self.stride)
        last = (self.size - 1 + self.padding - phase) // self.stride + 1
        low = min(max(first, 0), self.extent)
        return low, max(low, min(last, self.extent))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the pixels of a convolution are.

    Examples
    --------
    >>> conv = Conv(8, 3, (3, 3), (1, 1), (1, 1), (1, 1), 1, (28, 28))
    >>> Geometry(conv).lattice
    Lattice(lines=28, columns=28, pitch=30)
    """

    problem: Conv

    def axis(self, number: int) -> Axis:
        """Axis 0 (rows) or 1 (columns) of the image."""
        p = self.problem
        return Axis(
            p.image[number],
            p.out_image[number],
            p.kernel[number],
            p.stride[number],
            p.padding[number],
            p.dilation[number],
        )

    @property
    def is_direct(self) -> bool:
        """Whether the image itself serves as planes."""
        return self.problem.stride == (1, 1) and self.problem.padding == (0, 0)

    @property
    def plane(self) -> int:
        """Floats of one phase of one channel."""
        return self.axis(0).extent * self.axis(1).extent

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The phases of a channel, in the order of their planes."""
        return tuple((row, column) for row in self.axis(0).phases for column in self.axis(1).phases)

    @property
    def channel(self) -> int:
        """Floats of all phases of one channel."""
        return len(self.phases) * self.plane

    @property
    def lattice(self) -> Lattice:
        """The output pixels; one long line where nothing lies between the lines."""
        lines, columns, pitch = self.axis(0).out_size, self.axis(1).out_size, self.axis(1).extent
        return Lattice(1, lines * columns, lines * columns) if pitch == columns else Lattice(lines, columns, pitch)

    def offsets(self) -> Tensor:
        """int32 [C * KH * KW]: where each feature of pixel 0 is."""
        rows, columns = self.axis(0), self.axis(1)
        taps = [
            (row_phase * len(columns.phases) + column_phase) * self.plane + row * columns.extent + column
            for row_phase, row in map(rows.tap, range(rows.taps))
            for column_phase, column in map(columns.tap, range(columns.taps))
        ]
        channels = torch.arange(self.problem.in_channels) * self.channel
        return (channels[:, None] + torch.tensor(taps)).flatten().int()
