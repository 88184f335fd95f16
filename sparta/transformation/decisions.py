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

import torch

from sparta.kernels.codegen.cache import default_cache
from sparta.kernels.machine import Machine
from sparta.kernels.problem import Problem
from sparta.version import __version__

log = logging.getLogger("sparta.transformation")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a measurement found: kernel name -> median seconds, "dense" among them; empty if nothing was worth it."""

    seconds: Mapping[str, float]


def decision_key(
    problem: Problem,
    bucket: int,
    profile: str,
    machine: Machine,
    threads: int,
    dtype: str,
    only: tuple[str, ...] | None = None,
) -> str:
    """The name under which a decision is kept: everything that a latency depends on."""
    facts = [type(problem).__name__, asdict(problem), bucket, profile, asdict(machine), threads, dtype, only]
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
        if seconds is None:
            return None
        return Measured({str(name): float(value) for name, value in seconds.items()})
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
        Path(temporary).replace(path)  # whole or not at all, whoever else writes it
    except OSError as error:
        log.info("cannot keep the decision %s: %s", path, error)
