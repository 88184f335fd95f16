"""Mask files are read without running anything in them; what is not a mask file gets a FormatError."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparta.tesa import FormatError, load_masks

MASKS = {"fc": {"bias": None, "weight": torch.tensor([[1.0, 0.0]])}}


@pytest.mark.parametrize("factory", [dict, OrderedDict, lambda masks: defaultdict(dict, masks)])
@pytest.mark.parametrize("suffix", [".pth", ".pt"])
def test_torch_files_of_any_dictionary(tmp_path: Path, factory: type[dict[str, object]], suffix: str) -> None:
    path = tmp_path / f"masks{suffix}"
    torch.save(factory(MASKS), path)
    loaded = load_masks(str(path))
    assert type(loaded) is dict
    assert loaded["fc"]["bias"] is None
    assert torch.equal(loaded["fc"]["weight"], MASKS["fc"]["weight"])


def test_safetensors_files_are_flat(tmp_path: Path) -> None:
    safetensors.torch.save_file({"fc.weight": torch.ones(2, 2)}, tmp_path / "masks.safetensors")
    assert torch.equal(load_masks(tmp_path / "masks.safetensors")["fc.weight"], torch.ones(2, 2))


class Hostile:
    """Unpickling this would create a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.target,)


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    torch.save({"fc": Hostile(tmp_path / "touched")}, tmp_path / "masks.pth")
    with pytest.raises(FormatError, match="Save a plain dictionary"):
        load_masks(tmp_path / "masks.pth")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "holds a list, not a dictionary"),
        ({"fc": {"weight": [1, 0]}}, "fc: list"),
        ({3: torch.ones(1)}, "3 is not a string"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    torch.save(content, tmp_path / "masks.pt")
    with pytest.raises(FormatError, match=reason):
        load_masks(tmp_path / "masks.pt")


@pytest.mark.parametrize("name", ["masks.pth", "masks.safetensors"])
@pytest.mark.parametrize("data", [b"", b"not a file of masks", pickle.dumps({"a": 1})[:-3]])
def test_broken_files_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match="cannot read masks"):
        load_masks(tmp_path / name)


def test_a_missing_file_and_an_unknown_type_are_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        load_masks(tmp_path / "nothing.pth")
    with pytest.raises(FormatError, match=r"known file types are \.pth, \.pt, \.safetensors"):
        load_masks(tmp_path / "masks.npz")
