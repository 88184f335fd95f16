"""How a stored weight is multiplied with tiles: packing, code, and an estimate of the time."""

from __future__ import annotations

from dataclasses import dataclass

from sparta.kernels.codegen.computes import CsrCompute, GroupCompute
from sparta.kernels.codegen.packing import PackedWeight, pack_bsr, pack_csr
from sparta.kernels.codegen.tiled import cut_tokens
from sparta.kernels.codegen.tiles import Compute, Tiling
from sparta.kernels.formats import Bsr, Csr, Format
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Activation


def can_tile(weight: Format) -> bool:
    """Whether `make_product` accepts a weight: any CSR, and blocks whose rows fall into groups of four."""
    return isinstance(weight, Csr) or (isinstance(weight, Bsr) and weight.block[0] % 4 == 0)


def register_tile(weight: Format, registers: int) -> tuple[int, int]:
    """Rows that share their columns, and vectors of tokens, whose sums are held in registers together."""
    if isinstance(weight, Csr):
        return 1, registers // 2
    assert isinstance(weight, Bsr)
    height = 8 if registers >= 32 and weight.block[0] % 8 == 0 else 4
    # Besides the sums, registers hold the vectors of tokens and one broadcast weight.
    return height, (registers - 1) // (height + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A weight packed for a tiling, and the code that multiplies with it."""

    tiling: Tiling
    weight: PackedWeight
    compute: Compute


def _tiling(weight: Format, machine: Machine) -> Tiling:
    return Tiling.of(weight.shape, machine, weight.nnz / weight.shape[0])


def make_product(weight: Format, machine: Machine) -> Product:
    """The product with a weight that `can_tile` accepts."""
    tiling = _tiling(weight, machine)
    if isinstance(weight, Csr):
        return Product(tiling, pack_csr(weight, tiling.block), CsrCompute(tiling.out_features))
    assert isinstance(weight, Bsr)
    height, vectors = register_tile(weight, machine.registers)
    packed = pack_bsr(weight, tiling.block, height)
    return Product(tiling, packed, GroupCompute(tiling.out_features, height, vectors))


# The cost model counts slots: a slot is the time of one vector multiply-add at full rate, or of one vector load.

_CALL = 8e-6
"""Seconds that Python spends around a call."""
_VISIT = 40
"""Slots lost where one group of rows ends and the next begins: a mispredicted branch and an empty pipeline."""
ROWS_PACK, ROWS_STORE = 5.0, 8.0
"""Slots per vector to transpose a tile in, and out."""
PLANES_PACK, PLANES_STORE = 3.0, 5.0
"""Slots per vector to copy a tile in, and out."""
_COPY = 12.0
"""Slots per vector of the padded copy of an image: it goes through L2 or beyond."""
_ACTIVATION_SLOTS: dict[Activation, float] = {"none": 0, "relu": 1, "gelu": 35, "gelu_tanh": 40, "silu": 35}


def _compute_slots(weight: Format, tiling: Tiling, vectors: int, registers: int) -> float:
    """Slots that a tile of so many vectors spends on multiplying."""
    height, together = register_tile(weight, registers)
    entries = weight.nnz / height
    passes = -(-vectors // together)
    # Per entry: the multiply-adds, with a load of the tokens each if only one row uses them, and broadcast weights.
    per_entry = height * vectors if height > 1 else vectors
    broadcasts = 0 if height > 1 else passes
    visits = tiling.blocks * tiling.out_features / height
    return entries * (per_entry + broadcasts) + visits * (2 * height * vectors + _VISIT * passes)


def estimate(
    weight: Format,
    machine: Machine,
    *,
    tokens: int,
    images: int = 1,
    activation: Activation = "none",
    moves: tuple[float, float] = (ROWS_PACK, ROWS_STORE),
    copied: int = 0,
) -> float:
    """Seconds that one thread takes for `images` times `tokens`.

    Parameters
    ----------
    moves
        Slots per vector to pack a tile, and to store it.
    copied
        Floats of each image that are copied before the tiles are packed.
    """
    tiling = _tiling(weight, machine)
    tiles = [tiling.widths[number].vectors for number, _ in cut_tokens(tokens, [w.tokens for w in tiling.widths])]
    pack, store = moves
    move = tiling.in_features * pack + tiling.out_features * (store + _ACTIVATION_SLOTS[activation])
    slots = sum(_compute_slots(weight, tiling, vectors, machine.registers) + move * vectors for vectors in tiles)
    slots += copied / machine.lanes * _COPY
    slot = 2e-9 * machine.lanes / machine.gflops
    streamed = weight.nbytes * len(tiles) / machine.bandwidth(weight.nbytes) * 1e-9
    return _CALL + images * max(slots * slot, streamed)
