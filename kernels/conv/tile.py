"""Convolutions: tiles of output pixels in vector lanes, packed from the image or from a padded copy of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparta.kernels.codegen.jit import Native, load
from sparta.kernels.codegen.products import PLANES_PACK, PLANES_STORE, can_tile, estimate, make_product
from sparta.kernels.codegen.sinks import PlanesSink
from sparta.kernels.codegen.sources import PlanesSource
from sparta.kernels.codegen.threads import borrowed, run
from sparta.kernels.codegen.tiled import Tiled, address, floats, operand
from sparta.kernels.conv.geometry import Geometry
from sparta.kernels.conv.spread import spread_module
from sparta.kernels.formats import Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Conv, Problem
from sparta.kernels.table import Compiled, Kernel, kernel

_COPY_FLOATS = 1 << 20
"""Floats of padded copies that are made before they are used, unless there would be too few images for the threads."""

_Result = tuple[Tensor, Tensor | None, Tensor | None]
"""The result, the bias and the residual of some images."""


@dataclass(frozen=True, slots=True, eq=False)
class _TiledConv:
    """A call: ``[N, C, H, W] -> [N, O, OH, OW]``."""

    conv: Conv
    tiled: Tiled
    spread: Native | None
    """Makes the padded copy; None if the image itself has the right form."""
    offsets: Tensor
    pixels: int
    """Pixels of the lattice of an image."""
    image_floats: int
    """Floats of the padded copy of an image."""

    def __call__(self, x: Tensor, bias: Tensor | None, residual: Tensor | None, threads: int) -> Tensor:
        image = (self.conv.in_channels, *self.conv.image)
        assert x.shape[1:] == image, f"the images are {tuple(x.shape[1:])}, not {image}"
        x = floats(x)
        y = x.new_empty(x.shape[0], self.conv.out_channels, *self.conv.out_image)
        bias = operand(bias, self.conv.epilogue.bias, self.conv.out_channels)
        residual = operand(residual, self.conv.epilogue.residual, y.numel())
        if self.spread is None:
            self._multiply(x.data_ptr(), (y, bias, residual), threads)
            return y
        # A few images at a time: their copies stay in the cache, and take little memory.
        group = max(threads, _COPY_FLOATS // self.image_floats)
        for first in range(0, x.shape[0], group):
            some = slice(first, first + group)
            rest = None if residual is None else residual[some]
            self._convolve_copy(self.spread, x[some], (y[some], bias, rest), threads)
        return y

    def _convolve_copy(self, spread: Native, x: Tensor, result: _Result, threads: int) -> None:
        images, channels = x.shape[:2]
        # Beyond the last plane, the last tile reads pixels that are never stored.
        floats = images * self.image_floats + self.tiled.tiling.widths[0].tokens
        with borrowed(4 * floats) as planes:
            run(spread, (x.data_ptr(), planes), jobs=images * channels, threads=threads)
            self._multiply(planes, result, threads)

    def _multiply(self, planes: int, result: _Result, threads: int) -> None:
        addresses = (*self.tiled.weight.addresses, *map(address, result))
        arguments = (planes, self.offsets.data_ptr(), *addresses)
        self.tiled(arguments, images=result[0].shape[0], tokens=self.pixels, threads=threads)


class _TileConv(Kernel):
    """What the tiled convolutions of all formats share."""

    problem = Conv

    def supports(self, problem: Problem, weight: Format, machine: Machine) -> bool:
        """Any convolution with a weight that the tiles can multiply with."""
        return can_tile(weight)

    def cost(self, problem: Problem, weight: Format, tokens: int, machine: Machine) -> float:
        """Multiply-adds, loads and row changes of all tiles, and copying in and out."""
        assert isinstance(problem, Conv)
        geometry = Geometry(problem)
        lattice = geometry.lattice
        return estimate(
            weight,
            machine,
            tokens=lattice.pixels,
            images=max(1, tokens // (lattice.lines * lattice.columns)),
            activation=problem.epilogue.activation,
            moves=(PLANES_PACK, PLANES_STORE),
            copied=0 if geometry.is_direct else problem.in_channels * geometry.channel,
        )

    def build(self, problem: Problem, weight: Format, machine: Machine) -> Compiled:
        """The kernels, compiled or from the cache, and the weight packed for them."""
        assert isinstance(problem, Conv)
        geometry, product = Geometry(problem), make_product(weight, machine)
        image_floats = problem.in_channels * geometry.channel
        source = PlanesSource(image_floats, geometry.lattice.pixels if geometry.is_direct else None)
        sink = PlanesSink(problem.out_channels, problem.epilogue, geometry.lattice)
        tiled = Tiled.build(product.tiling, product.weight, (source, product.compute, sink), machine)
        spread = None if geometry.is_direct else _load_spread(geometry, machine)
        return _TiledConv(problem, tiled, spread, geometry.offsets(), geometry.lattice.pixels, image_floats)


def _load_spread(geometry: Geometry, machine: Machine) -> Native:
    module, entry = spread_module(geometry, machine.lanes)
    return load(module, entry)


@kernel()
class CsrTileConv(_TileConv):
    """Unstructured weights: one broadcast and a row of vectors per nonzero."""

    name = "csr_tile_conv"
    format = "csr"


@kernel()
class BsrTileConv(_TileConv):
    """Blocks whose rows (output channels) fall into groups of four."""

    name = "bsr_tile_conv"
    format = "bsr"
