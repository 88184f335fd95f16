"""The kernels for few tokens: how weights are packed, how work is cut, and code for machines other than this one."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparta.kernels import Bsr, Csr, Epilogue, Linear, Machine, find, host_machine, machine_for
from sparta.kernels.codegen import jit
from sparta.kernels.linear import lookup, outer, small
from sparta.kernels.linear.native import cut

MACHINES: dict[str, tuple[Machine, jit.Target]] = {
    "avx512": (machine_for(frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"))), jit.AVX512),
    "avx2": (machine_for(frozenset(("avx2", "fma"))), jit.AVX2),
    "neon": (machine_for(frozenset(("neon",))), jit.NEON),
    "generic": (machine_for(frozenset()), jit.X86_64),
}
RAGGED = Linear(37, 53, Epilogue(bias=True, residual=True, activation="gelu"))

densities = st.sampled_from((0.0, 0.1, 0.5, 1.0))


def weight_of(rows: int, columns: int, density: float) -> torch.Tensor:
    """A random matrix with about `density` nonzeros."""
    return torch.randn(rows, columns) * (torch.rand(rows, columns) < density)


@pytest.mark.parametrize("isa", MACHINES)
@pytest.mark.parametrize("height", [4, 8, 16, 24, 32])
def test_outer_compiles_for_every_machine(isa: str, height: int) -> None:
    machine, target = MACHINES[isa]
    shape = outer.Shape.of(height, machine)
    assert shape is not None
    assert height % shape.rows == 0
    assert jit.emit_object(str(outer.generate(RAGGED, shape).module), target)


@pytest.mark.parametrize("isa", MACHINES)
def test_small_and_lookup_compile_for_every_machine(isa: str) -> None:
    machine, target = MACHINES[isa]
    assert jit.emit_object(str(small.generate(RAGGED, machine).module), target)
    layout = lookup.Layout.of(RAGGED, machine)
    assert jit.emit_object(str(lookup.generate(RAGGED, layout, 16).module), target)


@pytest.mark.parametrize(
    ("isa", "instruction"), [("avx512", "vgatherdps"), ("avx512", "vperm(ps|d)"), ("avx2", "vperm(ps|d)")]
)
def test_lookup_uses_the_instructions_it_is_made_for(isa: str, instruction: str) -> None:
    machine, target = MACHINES[isa]
    layout = lookup.Layout.of(RAGGED, machine)
    assert re.search(rf"\t{instruction}\t", jit.emit_assembly(str(lookup.generate(RAGGED, layout, 16).module), target))


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("height", [8, 16, 32])
def test_vectors_of_outer_stay_in_registers(isa: str, height: int) -> None:
    machine, target = MACHINES[isa]
    shape = outer.Shape.of(height, machine)
    assert shape is not None
    assert not vectors_on_stack(shape, target)


def test_too_many_accumulators_are_noticed() -> None:
    assert vectors_on_stack(outer.Shape(lanes=8, vectors=2, tokens=8), jit.AVX2)


def vectors_on_stack(shape: outer.Shape, target: jit.Target) -> list[str]:
    """The instructions of the kernel that spill vectors or load them again."""
    text = jit.emit_assembly(str(outer.generate(Linear(256, 256), shape).module), target)
    return re.findall(r"\tv\w+\t.*\(%[re]sp\)|\t(?:ld|st)[rp]\tq.*\[sp", text)


@pytest.mark.parametrize("height", [1, 2, 3, 6, 30])
def test_blocks_that_no_vector_divides_are_turned_down(height: int) -> None:
    weight = Bsr.from_dense(torch.ones(60, 8), block=(height, 2))
    assert not find("outer").supports(Linear(60, 8), weight, host_machine())


def test_columns_beyond_16_bits_are_turned_down() -> None:
    wide = Csr.from_dense(torch.ones(1, 2**16))
    narrow = Csr.from_dense(torch.ones(1, 2**16 - 2))
    for name in ("small", "lookup"):
        assert not find(name).supports(Linear(1, 2**16), wide, host_machine())
        assert find(name).supports(Linear(1, 2**16 - 2), narrow, host_machine())


def test_the_last_16_bit_column_is_multiplied() -> None:
    weight = torch.zeros(3, 2**16 - 2)
    weight[1, -1] = 2.0
    x = torch.ones(2, 2**16 - 2)
    for name in ("small", "lookup"):
        compiled = find(name).build(Linear(3, 2**16 - 2), Csr.from_dense(weight), host_machine())
        assert compiled(x, None, None, 1).tolist() == [[0.0, 2.0, 0.0]] * 2


@pytest.mark.parametrize("name", ["small", "lookup"])
def test_operands_that_do_not_fit_the_kernel_never_reach_native_code(name: str) -> None:
    compiled = find(name).build(Linear(4, 6, Epilogue(bias=True)), Csr.from_dense(torch.ones(4, 6)), host_machine())
    with pytest.raises(AssertionError, match="5 features, not 6"):
        compiled(torch.ones(2, 5), torch.ones(4), None, 1)
    with pytest.raises(AssertionError, match="exactly where the epilogue has them"):
        compiled(torch.ones(2, 6), None, None, 1)
    with pytest.raises(AssertionError, match="exactly where the epilogue has them"):
        compiled(torch.ones(2, 6), torch.ones(4), torch.ones(2, 4), 1)


# --- packing ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from((1, 2, 3)), st.sampled_from((1, 4, 5)), densities)
def test_outer_packs_every_nonzero_once(rows: int, columns: int, pieces: int, width: int, density: float) -> None:
    weight = weight_of(rows, columns, density)
    packed = outer.pack(Bsr.from_dense(weight, block=(8 * pieces, width)), 8)
    lengths = (packed.starts[1:] - packed.starts[:-1]).long()
    group = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    again = torch.zeros(8 * lengths.numel(), columns)
    again.view(-1, 8, columns)[group, :, packed.columns.long()] = packed.weights
    assert torch.equal(again[:rows], weight)
    assert bool((packed.weights != 0).any(1).all()), "a column of zeros is stored"


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40), densities)
def test_small_pads_rows_with_the_column_of_zeros(rows: int, columns: int, density: float) -> None:
    weight = weight_of(rows, columns, density)
    packed = small.pack(Csr.from_dense(weight))
    lengths = (packed.starts[1:] - packed.starts[:-1]).long()
    assert bool((lengths % small.UNROLL == 0).all())
    row = torch.repeat_interleave(torch.arange(rows), lengths)
    again = torch.zeros(rows, columns + 1)
    again.index_put_((row, packed.columns.long()), packed.values, accumulate=True)
    assert torch.equal(again[:, :columns], weight)
    assert not bool(again[:, columns].any())


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 150), densities, st.sampled_from(list(MACHINES)))
def test_lookup_splits_into_layers_and_slices(rows: int, columns: int, density: float, isa: str) -> None:
    machine = MACHINES[isa][0]
    layout = lookup.Layout.of(Linear(rows, columns), machine)
    weight = weight_of(rows, columns, density)
    packed = lookup.pack(Csr.from_dense(weight), layout)
    words = packed.places.long()[:, :, :, None] >> 4 * torch.arange(8)[:, None]
    place = (words & (layout.lanes - 1)).flatten(2, 3)
    window = torch.arange(place.shape[2])[:, None] * layout.lanes
    group, _, _, lane = torch.meshgrid(*map(torch.arange, place.shape), indexing="ij")
    again = torch.zeros(layout.groups * layout.lanes, layout.padded)
    again.index_put_((group * layout.lanes + lane, place + window), packed.weights, accumulate=True)
    assert torch.equal(again[:rows, :columns] + packed.rest.to_dense(), weight)


def test_full_rows_are_looked_up_where_a_register_can_be_permuted() -> None:
    weight = Csr.from_dense(torch.ones(32, 64))
    for isa, layers in (("avx512", 16), ("avx2", 8), ("neon", 0), ("generic", 0)):
        machine = MACHINES[isa][0]
        packed = lookup.pack(weight, lookup.Layout.of(Linear(32, 64), machine))
        assert packed.layers == layers
        assert packed.rest.nnz == (0 if layers else 32 * 64)


# --- cutting ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 5))
def test_parts_cover_all_groups_in_order(lengths: list[int], parts: int, overhead: int) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    bounds = cut(offsets, parts, overhead=overhead).tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    assert bounds == sorted(set(bounds))
    assert len(bounds) <= parts + 1


def test_parts_have_equal_work() -> None:
    offsets = torch.tensor([0, 10, 10, 10, 20, 30, 40])
    assert cut(offsets, 2, overhead=0).tolist() == [0, 4, 6]
