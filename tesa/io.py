"""Mask files: the one place that reads files from elsewhere."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sparta.tesa.errors import FormatError


def load_masks(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The masks of a file as plain dictionaries on the CPU, in the form they were saved.

    Parameters
    ----------
    path
        ``.pth`` or ``.pt`` written by `torch.save`, such as NNI's ``{module: {"weight": mask}}`` (no code of the file
        is ever run), or ``.safetensors`` with ``"module.weight"`` keys.

    Raises
    ------
    FormatError
        If the file is not one of these, or holds anything but tensors in dictionaries.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "masks.pth"
    >>> torch.save({"fc": {"weight": torch.ones(2, 2), "bias": None}}, path)
    >>> sorted(load_masks(path)["fc"])
    ['bias', 'weight']
    """
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        msg = f"cannot read masks from {path}: known file types are {', '.join(_READERS)}"
        raise FormatError(msg)
    if not path.is_file():
        msg = f"cannot read masks from {path}: no such file"
        raise FormatError(msg)
    try:
        content = reader(path)
    except Exception as error:  # a broken or hostile file makes the parsers raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        msg = (
            f"cannot read masks from {path}: {reason}. Save a plain dictionary of tensors with torch.save(masks, path)"
        )
        raise FormatError(msg) from error
    _check_content(content, path)
    return dict(content)


def _as_dict(*_factory: object) -> dict[str, Any]:
    """What a pickled `defaultdict` is read as: torch's safe unpickler refuses the real one."""
    return {}


def _read_torch(path: Path) -> Any:
    with torch.serialization.safe_globals([(_as_dict, "collections.defaultdict"), dict]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
        return torch.load(path, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> Any:
    return safetensors.torch.load_file(path, device="cpu")


_READERS = {".pth": _read_torch, ".pt": _read_torch, ".safetensors": _read_safetensors}


def _check_content(content: object, path: Path) -> None:
    """Raise unless `content` is a dictionary of tensors, None, and such dictionaries."""
    if not isinstance(content, Mapping):
        msg = f"{path} holds a {type(content).__name__}, not a dictionary of masks"
        raise FormatError(msg)
    entries = [(name, item) for name, value in content.items() for item in _leaves(value)]
    wrong = [f"{name}: {type(item).__name__}" for name, item in entries if not isinstance(item, Tensor | None)]
    wrong += [f"{name!r} is not a string" for name in content if not isinstance(name, str)]
    if wrong:
        msg = f"{path} holds values that are not masks: {'; '.join(wrong)}"
        raise FormatError(msg)


def _leaves(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, Mapping) else [value]
