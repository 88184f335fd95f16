"""Masks in every form the user may have them become one form; what does not fit is said at once."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from sparta.tesa import MaskError, load_masks, normalize_masks


class Net(nn.Module):
    """A convolution, a linear without bias, and two tied linears."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.fc.weight


def half(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A mask that prunes every second element."""
    return (torch.arange(int(torch.tensor(shape).prod())) % 2).reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float64])
def test_every_dtype_of_zeros_and_ones_is_a_mask(dtype: torch.dtype) -> None:
    found = normalize_masks({"fc": {"weight": half(4, 4, dtype=dtype)}}, Net())
    assert found["fc.weight"].dtype is torch.bool
    assert torch.equal(found["fc.weight"], half(4, 4) == 1)


def test_nested_flat_and_mixed_forms_agree() -> None:
    nested = {"conv": {"bias": half(4), "weight": half(4, 3, 3, 3)}, "fc": {"weight": half(4, 4), "bias": None}}
    flat = {"conv.bias": half(4), "conv.weight": half(4, 3, 3, 3), "fc.weight": half(4, 4), "fc.bias": None}
    mixed = {"conv": nested["conv"], "fc.weight": half(4, 4)}
    results = [normalize_masks(form, Net()) for form in (nested, flat, mixed)]
    for result in results:
        assert result.keys() == {"conv.weight", "conv.bias", "fc.weight"}
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_none_masks_nothing_even_first() -> None:
    masks = {"fc": {"bias": None, "weight": half(4, 4)}, "conv": None, "nowhere": {"weight": None}}
    assert list(normalize_masks(masks, Net())) == ["fc.weight"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_understood(prefix: str) -> None:
    assert list(normalize_masks({f"{prefix}fc": {"weight": half(4, 4)}}, Net())) == ["fc.weight"]


def test_wrapped_models_keep_the_names_of_the_inner_one() -> None:
    for wrapped in (nn.DataParallel(Net()), torch.compile(Net(), backend="eager")):
        assert list(normalize_masks({"fc.weight": half(4, 4)}, wrapped)) == ["fc.weight"]


def test_a_compiled_submodule_is_transparent() -> None:
    net = Net()
    net.fc = torch.compile(nn.Linear(4, 4), backend="eager")
    assert list(normalize_masks({"fc.weight": half(4, 4)}, net)) == ["fc._orig_mod.weight"]


def test_a_module_really_called_module_is_found() -> None:
    net = nn.Module()
    net.module = nn.Linear(2, 2)
    assert list(normalize_masks({"module.weight": half(2, 2)}, net)) == ["module.weight"]


def test_tied_weights_share_one_mask() -> None:
    assert list(normalize_masks({"tied": {"weight": half(4, 4)}}, Net())) == ["fc.weight"]


def test_different_masks_of_tied_weights_are_anded_with_a_warning() -> None:
    rows, columns = torch.ones(4, 4), torch.ones(4, 4)
    rows[0], columns[:, 0] = 0, 0
    with pytest.warns(UserWarning, match=r"fc\.weight and tied\.weight differ"):
        found = normalize_masks({"fc.weight": rows, "tied.weight": columns}, Net())
    assert torch.equal(found["fc.weight"], (rows * columns) == 1)


def test_equal_masks_of_tied_weights_are_silent() -> None:
    found = normalize_masks({"fc.weight": half(4, 4), "tied.weight": half(4, 4)}, Net())
    assert torch.equal(found["fc.weight"], half(4, 4) == 1)


def test_inputs_are_neither_changed_nor_shared() -> None:
    mask = half(4, 4).bool()
    found = normalize_masks({"fc.weight": mask}, Net())
    found["fc.weight"].zero_()
    assert torch.equal(mask, half(4, 4) == 1)


def test_non_contiguous_masks_and_weights() -> None:
    net = Net()
    net.fc.weight = nn.Parameter(torch.randn(4, 4).t())
    net.conv = net.conv.to(memory_format=torch.channels_last)
    mask = half(4, 3, 3, 3).to(memory_format=torch.channels_last)
    found = normalize_masks({"fc.weight": half(4, 4).t(), "conv.weight": mask}, net)
    assert all(mask.is_contiguous() for mask in found.values())
    assert torch.equal(found["fc.weight"], half(4, 4).t() == 1)


def test_masks_move_to_the_device_of_the_parameter() -> None:
    found = normalize_masks({"weight": half(2, 2)}, nn.Linear(2, 2, device="meta"))
    assert found["weight"].device.type == "meta"


def test_every_problem_is_listed_in_one_error() -> None:
    masks = {
        "conv": {"weight": torch.ones(4, 1, 1, 1), "bias": torch.tensor([0.0, 1.0, float("nan"), 1.0])},
        "fc": {"weight": 2 * torch.ones(4, 4)},
        "fc1.weight": torch.ones(4, 4),
        "tied": [1, 0],
        "conv._output_0": half(4),
    }
    with pytest.raises(MaskError) as error:
        normalize_masks(masks, Net())
    expected = (
        "6 problem(s)",
        "conv.weight: mask has shape (4, 1, 1, 1), the parameter (4, 3, 3, 3); use mask.expand(4, 3, 3, 3)",
        "conv.bias: mask holds 1 NaN",
        "fc.weight: mask holds 16 values such as 2",
        "fc1.weight: the model has no parameter of this name; did you mean fc.weight",
        "tied: mask is a list",
        "conv._output_0: masks of activations are not supported",
    )
    for text in expected:
        assert text in str(error.value)


def test_a_module_name_with_a_tensor_is_pointed_to_its_parameters() -> None:
    with pytest.raises(MaskError, match=r"did you mean conv\.weight or conv\.bias"):
        normalize_masks({"conv": half(4)}, Net())


def test_an_activation_mask_of_ones_masks_nothing() -> None:
    assert normalize_masks({"conv": {"_output_0": torch.ones(4)}}, Net()) == {}


@pytest.mark.parametrize("masks", [[], 3, torch.ones(2)])
def test_other_types_are_refused(masks: object) -> None:
    with pytest.raises(MaskError, match="pass a dictionary"):
        normalize_masks(masks, Net())  # type: ignore[arg-type]


def test_sparse_masks_are_refused() -> None:
    with pytest.raises(MaskError, match=r"torch\.sparse_coo tensor; pass a dense tensor"):
        normalize_masks({"fc.weight": half(4, 4).to_sparse()}, Net())


@pytest.mark.parametrize("masks", [None, {}])
def test_no_masks_read_what_prune_left(masks: dict[str, Tensor] | None) -> None:
    net = Net()
    prune.l1_unstructured(net.fc, "weight", 0.5)
    found = normalize_masks(masks, net)
    assert torch.equal(found["fc.weight_orig"], net.fc.weight_mask == 1)


def test_a_mask_for_a_pruned_weight_adds_to_what_prune_left() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    prune.custom_from_mask(net[0], "weight", torch.ones(4, 4).triu())
    found = normalize_masks({"0.weight": torch.ones(4, 4).tril()}, net)
    assert torch.equal(found["0.weight_orig"], torch.eye(4) == 1)
    assert torch.equal(normalize_masks(found, net)["0.weight_orig"], torch.eye(4) == 1)


def test_tensors_that_only_look_like_prune_leftovers_are_no_masks() -> None:
    net = nn.Module()
    net.register_buffer("x_orig", torch.ones(3))
    net.register_buffer("x_mask", torch.tensor([0.0, 0.5, 1.0]))
    net.register_buffer("y_orig", torch.ones(3))
    net.register_buffer("y_mask", torch.zeros(2))
    assert normalize_masks(None, net) == {}


def test_a_mask_for_a_parametrized_weight_says_what_to_remove() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(MaskError, match="remove it first"):
        normalize_masks({"0.weight": half(4, 4)}, net)


def test_files_and_dictionaries_agree(tmp_path: Path) -> None:
    masks: defaultdict[str, dict[str, Tensor | None]] = defaultdict(dict)
    masks["fc"]["bias"], masks["fc"]["weight"] = None, half(4, 4)
    torch.save(masks, tmp_path / "masks.pth")
    from_file = normalize_masks(tmp_path / "masks.pth", Net())
    assert torch.equal(from_file["fc.weight"], half(4, 4) == 1)
    assert load_masks(tmp_path / "masks.pth").keys() == {"fc"}


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(0, 5), columns=st.integers(1, 5), seed=st.integers(0, 99))
def test_any_shape_round_trips(rows: int, columns: int, seed: int) -> None:
    mask = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) < 0.5
    net = nn.Module()
    net.w = nn.Parameter(torch.zeros(rows, columns))
    first = normalize_masks({"w": mask.float()}, net)
    assert torch.equal(first["w"], mask)
    assert torch.equal(normalize_masks(first, net)["w"], mask)
