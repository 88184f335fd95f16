"""Every storage format of the table: round trips, what counts as stored, and components from a hostile file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparta.kernels import Bsr, Csr, Dense, Format, Sell, conv_matrix, find_format, format_names
from sparta.kernels.formats import VALUE_DTYPES
from sparta.kernels.formats import format as register
from sparta.tesa.errors import FormatError

PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "bsr": [{"block": block} for block in ((1, 1), (4, 1), (1, 16), (3, 5), (32, 32))],
    "sell": [{}, {"height": 4, "window": 8}, {"height": 8, "window": 8}],
}
"""Parameters to try per format; a format that is not listed has none."""

CASES = [(name, parameters) for name in format_names() for parameters in PARAMETERS.get(name, [{}])]


def sparse(shape: tuple[int, int], density: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random matrix with about `density` nonzeros."""
    return (torch.randn(shape) * (torch.rand(shape) < density)).to(dtype)


def reloaded(stored: Format) -> Format:
    """The same weight, through its components, as a file would keep it."""
    return find_format(stored.name).from_components(stored.shape, stored.components(), stored.parameters())


@pytest.mark.parametrize(("name", "parameters"), CASES)
@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from((0.0, 0.1, 0.5, 1.0)), st.sampled_from(VALUE_DTYPES))
def test_round_trip(
    name: str, parameters: dict[str, Any], rows: int, columns: int, density: float, dtype: torch.dtype
) -> None:
    weight = sparse((rows, columns), density, dtype)
    stored = find_format(name).from_dense(weight, **parameters)
    assert stored.shape == (rows, columns)
    for version in (stored, reloaded(stored)):
        assert version.values.dtype == dtype
        assert torch.equal(version.to_dense(), weight)


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_views_and_parameters_are_stored_too(name: str, parameters: dict[str, Any]) -> None:
    weight = torch.nn.Parameter(sparse((20, 30), 0.3)).t()[::2]
    stored = find_format(name).from_dense(weight, **parameters)
    assert torch.equal(stored.to_dense(), weight)
    assert not stored.values.requires_grad


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_nan_and_infinity_are_values(name: str, parameters: dict[str, Any]) -> None:
    weight = torch.zeros(9, 9)
    weight[3, 4], weight[8, 0] = torch.nan, -torch.inf
    stored = reloaded(find_format(name).from_dense(weight, **parameters))
    assert torch.equal(stored.to_dense().nan_to_num(7.0), weight.nan_to_num(7.0))


@pytest.mark.parametrize("name", [name for name in format_names() if name != "dense"])
def test_zeros_of_either_sign_are_not_stored(name: str) -> None:
    weight = torch.full((6, 6), -0.0)
    stored = find_format(name).from_dense(weight, **PARAMETERS.get(name, [{}])[0])
    assert stored.nnz == 0
    assert stored.density == 0.0


def test_sizes_count_every_component() -> None:
    weight = torch.eye(4)
    assert Dense.from_dense(weight).nbytes == 64
    assert Csr.from_dense(weight).nbytes == 4 * (5 + 4 + 4)
    assert Bsr.from_dense(weight, block=(2, 2)).nbytes == 4 * (3 + 2 + 8)


def test_slices_are_sorted_within_their_window() -> None:
    weight = torch.ones(8, 4).tril()
    stored = Sell.from_dense(weight, height=2, window=4)
    assert stored.row_indices.tolist() == [3, 2, 1, 0, 4, 5, 6, 7]
    assert stored.slice_indices.tolist() == [0, 4, 6, 10, 14]


def test_names_are_unique_and_known() -> None:
    with pytest.raises(AssertionError, match="two formats"):
        register("csr")(Csr)
    with pytest.raises(FormatError, match=r"no storage format is called 'cs'; known: bsr, csr, dense, sell"):
        find_format("cs")


# --- hostile components -----------------------------------------------------------------------------------------------

Components = dict[str, Any]
Change = Callable[[Components], None]


def _set(name: str, value: Any) -> Change:
    return lambda components: components.update({name: value})


def _put(name: str, place: Any, value: float) -> Change:
    def change(components: Components) -> None:
        components[name] = components[name].clone()
        components[name][place] = value

    return change


HOSTILE: list[tuple[str, Change, str]] = [
    ("dense", _set("values", torch.zeros(3, 4)), r"shape \(3, 4\)"),
    ("dense", _set("values", torch.zeros(8, dtype=torch.float32)), "1 dimensions, expected 2"),
    ("dense", _set("values", [1.0]), "is a list, not a tensor"),
    ("dense", _set("values", torch.zeros(8, 6, dtype=torch.int64)), "dtype torch.int64"),
    ("dense", _set("values", torch.eye(8).to_sparse()), "plain CPU tensor"),
    ("dense", _set("extra", torch.zeros(1)), "component 'extra' is unknown"),
    ("csr", lambda components: components.pop("values"), "component 'values' is missing"),
    ("csr", _set("crow_indices", torch.zeros(3, dtype=torch.int32)), "3 elements, expected 9"),
    ("csr", _set("crow_indices", torch.zeros(9, dtype=torch.int64)), "dtype torch.int64"),
    ("csr", _put("crow_indices", 0, 1), "runs from 1"),
    ("csr", _put("crow_indices", -1, 2**31 - 1), "runs from 0 to 2147483647"),
    ("csr", _put("crow_indices", 4, 10**6), "decreases at position"),
    ("csr", _put("crow_indices", 4, -5), "decreases at position"),
    ("csr", _put("col_indices", 0, -1), "holds -1, outside 0 to 5"),
    ("csr", _put("col_indices", 0, 6), "holds 6, outside 0 to 5"),
    ("csr", _put("col_indices", 1, 0), "not strictly increasing"),
    ("csr", _set("values", torch.zeros(2)), "'values' has 2"),
    ("bsr", _put("crow_indices", 1, 99), "decreases at position"),
    ("bsr", _put("col_indices", 0, 2), "outside 0 to 1"),
    ("bsr", _put("col_indices", 1, 0), "not strictly increasing"),
    ("bsr", _set("values", torch.zeros(3, 2, 4)), "expected"),
    ("bsr", _set("values", torch.zeros(1, 3, 4)), "blocks"),
    ("bsr", _put("values", (1, 0, 3), 1.0), "outside the 8 x 6 matrix"),
    ("bsr", _put("values", (-1, 2, 0), 1.0), "outside the 8 x 6 matrix"),
    ("sell", _put("row_indices", 0, 1), "does not permute"),
    ("sell", _put("row_indices", 0, -1), "does not permute"),
    ("sell", _put("slice_indices", 1, 99), "decreases"),
    ("sell", _put("col_indices", (0, 0), 6), "outside -1 to 5"),
    ("sell", _put("col_indices", (0, 0), -2), "outside -1 to 5"),
    ("sell", _put("col_indices", (1, 0), 0), "two elements"),
    ("sell", _put("col_indices", (0, 0), -1), "not zero in the padding"),
    ("sell", _set("values", torch.zeros(2, 4)), "as many columns"),
]


@pytest.mark.parametrize(("name", "change", "problem"), HOSTILE)
def test_hostile_components_are_refused(name: str, change: Change, problem: str) -> None:
    parameters = {"bsr": {"block": (3, 4)}, "sell": {"height": 4, "window": 4}}.get(name, {})
    stored = find_format(name).from_dense(torch.ones(8, 6), **parameters)
    components: Components = dict(stored.components())
    change(components)
    with pytest.raises(FormatError, match=problem) as caught:
        stored.from_components((8, 6), components, parameters)
    assert repr(name) in str(caught.value)
    assert "save the model again" in str(caught.value)


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_zeros_in_a_file_are_accepted(name: str, parameters: dict[str, Any]) -> None:
    stored = find_format(name).from_dense(torch.ones(8, 6), **parameters)
    components = stored.components() | {"values": torch.zeros_like(stored.values)}
    assert torch.equal(stored.from_components((8, 6), components, stored.parameters()).to_dense(), torch.zeros(8, 6))


@pytest.mark.parametrize("shape", [(8,), (8, 0), (-8, 6), (8, 2**40), (8.0, 6), (True, 6), "86", None])
def test_hostile_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(FormatError, match="two sizes"):
        Dense.from_components(shape, {"values": torch.ones(8, 6)}, {})


def test_a_hostile_shape_costs_no_memory() -> None:
    stored = Sell.from_dense(torch.ones(8, 6), height=4, window=4)
    with pytest.raises(FormatError, match="'row_indices'"):
        Sell.from_components((2**31 - 1, 6), stored.components(), stored.parameters())


@pytest.mark.parametrize("block", [None, 4, (4,), (0, 4), (-1, 4), (2.0, 2), "ab", (1, 2, 3)])
def test_hostile_blocks_are_refused(block: Any) -> None:
    stored = Bsr.from_dense(torch.ones(8, 6), block=(2, 2))
    with pytest.raises(FormatError, match="'block'"):
        Bsr.from_components((8, 6), stored.components(), {"block": block})


@pytest.mark.parametrize("parameters", [{}, {"height": 0}, {"height": "4"}, {"height": 4, "window": 6}, {"height": 4}])
def test_hostile_heights_and_windows_are_refused(parameters: dict[str, Any]) -> None:
    stored = Sell.from_dense(torch.ones(8, 6), height=4, window=4)
    with pytest.raises(FormatError, match="'height'|'window'"):
        Sell.from_components((8, 6), stored.components(), parameters)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(FormatError) as caught:
        Csr.from_components((0, 6), {"values": torch.zeros(1, 1), "more": torch.zeros(1)}, {})
    assert str(caught.value).count("  - ") == 5


# --- convolutions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groups_become_zeros(groups: int) -> None:
    weight = torch.randn(12, 6 // groups, 3, 2)
    x = torch.randn(1, 6, 3, 2)
    expected = torch.nn.functional.conv2d(x, weight, groups=groups).flatten()
    matrix = conv_matrix(weight, groups)
    assert matrix.shape == (12, 36)
    torch.testing.assert_close(matrix @ x.flatten(), expected)
