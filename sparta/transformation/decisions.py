"""Measured decisions kept on disk, so that the second optimize of a model measures nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparta.kernels.codegen.cache import default_cache
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Problem
from sparta.version import __version__

log = logging.getLogger("sparta.transformation")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement found: kernel name -> median seconds, "dense" among them."""

    seconds: Mapping[str, float]


def digest(weight: Tensor) -> str:
    """A digest of where `weight` is nonzero: the pattern, not the values."""
    bits = np.packbits((weight != 0).view(torch.uint8).flatten().numpy())
    return hashlib.sha256(bits.tobytes() + str(tuple(weight.shape)).encode()).hexdigest()


def decision_key(problem: Problem, bucket: int, pattern: str, machine: Machine, threads: int, dtype: str) -> str:
    """The name under which a decision is kept: everything that a latency depends on."""
    facts = [type(problem).__name__, asdict(problem), bucket, pattern, asdict(machine), threads, dtype]
    facts += [__version__, torch.__version__]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=sorted).encode()).hexdigest()


def _path(key: str) -> Path | None:
    directory = default_cache().directory
    return directory.parent / "decisions" / f"{key}.json" if directory else None


def recall(key: str) -> Measured | None:
    """The decision kept under `key`, or None; an unreadable entry counts as none."""
    path = _path(key)
    try:
        seconds = json.loads(path.read_text()) if path else None
        return Measured({str(name): float(value) for name, value in seconds.items()}) if seconds else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.info("ignoring the unreadable decision %s: %s", path, error)
        return None


def remember(key: str, measured: Measured) -> None:
    """Keep a decision; a read-only cache directory is logged and otherwise ignored."""
    path = _path(key)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(dict(measured.seconds), file)
        Path(temporary).replace(path)
    except OSError as error:
        log.info("cannot keep the decision %s: %s", path, error)
