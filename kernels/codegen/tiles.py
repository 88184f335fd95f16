"""Kernels in three pieces: a source packs a tile of the input, a compute multiplies it, a sink writes the result.

A *tile* is a run of tokens (or pixels) for which all input features pass, one *block* of features at a time, through a
scratch buffer ``inputs[feature][token]`` that fits in L1, while the sums wait in ``outputs[row][token]`` (L2)::

    for block of features:
        source:   inputs[block][tokens]  <-  x
        compute:  outputs[rows][tokens] +=  weight[rows][block] * inputs
    sink:         y  <-  act(outputs + bias + residual)

A *job* is a tile and a run of rows. Tiles come in a few widths, one native function each, so that little is computed
beyond the last token; lanes beyond it hold whatever, and never reach memory of the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from sparta.kernels.codegen.ir import F32, I32, I64, PTR, Function, Module, Type, Value
from sparta.kernels.codegen.threads import job_entry
from sparta.kernels.machine import Machine

JOB_FIELDS = ("width", "image", "start", "first_row", "last_row")
"""What the table of jobs says about each: an i32 each; `width` numbers the widths from wide to narrow."""

ROW_STEP = 16
"""Runs of rows start at multiples of this, so that neither vectors nor row groups straddle two jobs."""


_BLOCK_ENTRIES = 12
"""Entries that a group of rows should have in each block of features."""


@dataclass(frozen=True, slots=True)
class Width:
    """How many tokens a tile has: `vectors` vectors of `lanes`."""

    lanes: int
    vectors: int
    chains: int
    """Independent accumulators that keep the multiply-add units busy."""

    @property
    def tokens(self) -> int:
        """Tokens of the tile."""
        return self.lanes * self.vectors

    @property
    def vector(self) -> Type:
        """The type of `lanes` tokens of one feature."""
        return F32.vector(self.lanes)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the matrix product of ``[O, I]`` with tiles of tokens is cut up."""

    out_features: int
    in_features: int
    block: int
    """Features of a block."""
    widths: tuple[Width, ...]
    """From wide to narrow."""

    @classmethod
    def of(cls, matrix: tuple[int, int], machine: Machine, entries: float) -> Tiling:
        """The tiling for a machine and a weight with `entries` entries per group of rows, on average.

        The sums of a row take half the registers. A block of features fills L1, or more where its entries would be so
        few that loading and storing the sums took longer than using them.

        Examples
        --------
        >>> from sparta.kernels.machine import machine_for
        >>> tiling = Tiling.of((768, 768), machine_for(frozenset(("avx2", "fma"))), 76.8)
        >>> tiling.block, [width.tokens for width in tiling.widths]
        (128, [64, 32, 16])
        """
        vectors = min(machine.registers // 2, 128 // machine.lanes)
        widths = tuple(Width(machine.lanes, vectors // part, vectors) for part in (1, 2, 4))
        feature = widths[0].tokens * 4
        wanted = int(_BLOCK_ENTRIES * matrix[1] / max(entries, 1.0))
        block = min(max(wanted, machine.l1 // feature), machine.l2 // 4 // feature)
        return cls(*matrix, max(block // ROW_STEP, 1) * ROW_STEP, widths)

    @property
    def blocks(self) -> int:
        """Number of blocks of features."""
        return -(-self.in_features // self.block)

    @property
    def last_block(self) -> int:
        """Features of the last block."""
        return self.in_features - (self.blocks - 1) * self.block

    @property
    def input_floats(self) -> int:
        """Size of the `inputs` scratch buffer."""
        return self.block * self.widths[0].tokens

    def scratch(self, rows: int) -> int:
        """Bytes of scratch memory of a job with `rows` rows."""
        # Sinks and row groups read whole vectors of rows.
        return 4 * (self.input_floats + (rows + ROW_STEP) * self.widths[0].tokens)


@dataclass(frozen=True, slots=True)
class Access:
    """Loads and stores of one vector: of all lanes, or of those under a mask, where the others must not be touched."""

    f: Function
    vector: Type
    mask: Value | None

    def read(self, pointer: Value, index: Value | int) -> Value:
        """The vector at an element; 0 in lanes that are masked out."""
        if self.mask is None:
            return self.f.load(self.vector, pointer, index)
        return self.f.masked_load(self.vector, pointer, self.mask, index)

    def write(self, value: Value, pointer: Value, index: Value | int) -> None:
        """Emit the store of a vector at an element."""
        if self.mask is None:
            self.f.store(value, pointer, index)
        else:
            self.f.masked_store(value, pointer, self.mask, index)


@dataclass(frozen=True, slots=True)
class Tile:
    """The job at hand, as the pieces see it while they emit code for one width."""

    f: Function
    tiling: Tiling
    width: Width
    image: Value
    start: Value
    """First token."""
    first_row: Value
    last_row: Value
    inputs: Value
    outputs: Value

    def access(self, mask: Value | None = None) -> Access:
        """Access to vectors of the tile's width."""
        return Access(self.f, self.width.vector, mask)

    def output_row(self, row: Value) -> Value:
        """Where the sums of a row are."""
        return self.f.offset(self.outputs, (row - self.first_row) * self.width.tokens)

    def features(self, block: Value) -> Value:
        """The number of features of a block."""
        tiling, f = self.tiling, self.f
        is_last = f.compare("eq", block, tiling.blocks - 1)
        return f.select(is_last, f.constant(I64, tiling.last_block), f.constant(I64, tiling.block))


class Piece(ABC):
    """A part of a kernel; its parameters become parameters of the kernel."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Type]:
        """Names and types of what the caller passes, in order."""


class Source(Piece):
    """Where a tile of the input comes from."""

    @abstractmethod
    def pack(self, tile: Tile, block: Value) -> None:
        """Emit ``inputs[feature][token] = x``, for the features of a block."""


class Compute(Piece):
    """The product with the weight."""

    @abstractmethod
    def accumulate(self, tile: Tile, block: Value) -> None:
        """Emit ``outputs += weight[:, block] * inputs``; for block 0, ``=``."""


class Sink(Piece):
    """Where the result goes."""

    @abstractmethod
    def store(self, tile: Tile) -> None:
        """Emit the epilogue and the stores of ``outputs``."""


def _job_field(f: Function, field: str) -> Value:
    return f.load_index(I32, f["table"], f["job"] * len(JOB_FIELDS) + JOB_FIELDS.index(field))


def _tile_function(
    module: Module, parameters: Mapping[str, Type], tiling: Tiling, width: Width, pieces: tuple[Source, Compute, Sink]
) -> str:
    """The name of a new function that does a job of one width."""
    source, compute, sink = pieces
    f = module.function(f"tile{width.tokens}", parameters, internal=True)
    outputs = f.offset(f["scratch"], tiling.input_floats)
    image, start, first, last = (_job_field(f, field) for field in JOB_FIELDS[1:])
    tile = Tile(f, tiling, width, image, start, first, last, f["scratch"], outputs)
    with f.loop(0, tiling.blocks) as block:
        source.pack(tile, block)
        compute.accumulate(tile, block)
    sink.store(tile)
    return f.name


def tile_module(tiling: Tiling, source: Source, compute: Compute, sink: Sink) -> tuple[Module, str]:
    """The module of a kernel, and the name of its entry.

    The arguments are those of the source, the compute and the sink, then the table of jobs.
    """
    module = Module()
    parameters = {**source.parameters, **compute.parameters, **sink.parameters, "table": PTR}
    parameters |= {"job": I64, "scratch": PTR}
    pieces = (source, compute, sink)
    names = [_tile_function(module, parameters, tiling, width, pieces) for width in tiling.widths]
    f = module.function("job", parameters, internal=True)
    number = _job_field(f, "width")
    for index, name in enumerate(names):
        with f.when(f.compare("eq", number, index)):
            f.call(name, *(f[parameter] for parameter in parameters))
    return module, job_entry(module, f)
