"""The padded, phase-split copy of images that tiles of padded or strided convolutions are packed from."""

from __future__ import annotations

from sparta.kernels.codegen.ir import F32, I64, PTR, Function, Module, Value
from sparta.kernels.codegen.threads import job_entry
from sparta.kernels.conv.geometry import Axis, Geometry


def _zero(f: Function, target: Value, first: int, last: int) -> None:
    with f.loop(first, last) as index:
        f.store(f.constant(F32, 0.0), target, index)


def _pixels(f: Function, source: Value, first: Value, stride: int, lanes: int) -> Value:
    """The `lanes` pixels `stride` apart from `first` on, without reading beyond the last of them."""
    vector = F32.vector(lanes)
    if stride == 1:
        return f.load(vector, source, first)
    # The second half comes from a vector that ends with the last pixel.
    low, high = f.load(vector, source, first), f.load(vector, source, first + (lanes - 1))
    return f.shuffle(low, high, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)])


def _copy_line(f: Function, source: Value, target: Value, columns: Axis, phase: int, lanes: int) -> None:
    """Emit ``target[j] = source[j * stride + phase - padding]`` for the pixels inside, zeros around them."""
    first, last = columns.inside(phase)
    begin = first * columns.stride + phase - columns.padding
    _zero(f, target, 0, first)
    if columns.stride <= 2 and last - first >= lanes:
        with f.loop(0, last - first, lanes) as step:
            # The last vector overlaps the one before it.
            at = f.minimum(step, f.constant(I64, last - first - lanes))
            f.store(_pixels(f, source, at * columns.stride + begin, columns.stride, lanes), target, at + first)
    else:
        with f.loop(0, last - first) as pixel:
            f.store(f.load(F32, source, pixel * columns.stride + begin), target, pixel + first)
    _zero(f, target, last, columns.extent)


def _copy_plane(
    f: Function, image: Value, plane: Value, geometry: Geometry, phase: tuple[int, int], lanes: int
) -> None:
    rows, columns = geometry.axis(0), geometry.axis(1)
    first, last = rows.inside(phase[0])
    _zero(f, plane, 0, first * columns.extent)
    with f.loop(first, last) as row:
        source = f.offset(image, (row * rows.stride + (phase[0] - rows.padding)) * columns.size)
        _copy_line(f, source, f.offset(plane, row * columns.extent), columns, phase[1], lanes)
    _zero(f, plane, last * columns.extent, rows.extent * columns.extent)


def spread_module(geometry: Geometry, lanes: int) -> tuple[Module, str]:
    """The module of the copy and the name of its entry: arguments x and planes, one job per image and channel."""
    module = Module()
    f = module.function("spread", {"x": PTR, "planes": PTR, "job": I64, "scratch": PTR}, internal=True)
    height, width = geometry.problem.image
    image = f.offset(f["x"], f["job"] * (height * width))
    channel = f.offset(f["planes"], f["job"] * geometry.channel)
    for number, phase in enumerate(geometry.phases):
        _copy_plane(f, image, f.offset(channel, number * geometry.plane), geometry, phase, lanes)
    return module, job_entry(module, f)
