"""What this machine and installation can do, and what to change where something is missing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from sparta.kernels import host_machine
from sparta.kernels.codegen.cache import default_cache
from sparta.kernels.codegen.jit import load
from sparta.kernels.codegen.threads import threading_backend
from sparta.kernels.table import kernel_names
from sparta.reporting.document import Cell, Column, Document, Table
from sparta.tesa.errors import KernelCompileError

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact; `advice` says what to change unless the status is "ok"."""

    topic: str
    fact: str
    status: Status = "ok"
    advice: str = ""


Probe = Callable[[], Iterator[Finding]]

_PROBES: dict[str, Probe] = {}


def _probe(function: Probe) -> Probe:
    _PROBES[function.__name__] = function
    return function


def examine() -> tuple[Finding, ...]:
    """Everything found, in the order of the probes in this file.

    Examples
    --------
    >>> any(finding.topic == "native code" for finding in examine())
    True
    """
    return tuple(finding for probe in _PROBES.values() for finding in probe())


def healthy(findings: tuple[Finding, ...]) -> bool:
    """Whether sparse kernels can run here at all."""
    return all(finding.status != "failed" for finding in findings)


def document(findings: tuple[Finding, ...]) -> Document:
    """The findings in words."""
    rows = tuple((Cell(f.topic), Cell(_MARKS[f.status]), Cell(f.fact)) for f in findings)
    columns = (Column("topic"), Column("status"), Column("found"))
    advice = tuple(f"{finding.topic}: {finding.advice}" for finding in findings if finding.status != "ok")
    return Document("sparta doctor", tables=(Table("This machine", columns, rows),), notes=advice)


_MARKS: dict[Status, str] = {"ok": "ok", "warning": "warning", "failed": "FAILED"}


@_probe
def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in ("sparta", "torch", "numpy", "llvmlite", "numba"):
        yield Finding(name, importlib.metadata.version(name))


@_probe
def _machine() -> Iterator[Finding]:
    machine = host_machine()
    yield from (Finding(topic, fact) for topic, fact in machine.describe().items())
    if machine.isa == "generic":
        advice = "no AVX2, AVX-512 or NEON: sparse kernels are slow here and dense will usually win"
        yield Finding("vectors", "portable code only", "warning", advice)


@_probe
def _native_code() -> Iterator[Finding]:
    try:
        native = load("define i32 @answer() {\n  ret i32 42\n}\n", "answer")
    except KernelCompileError as error:
        advice = "everything runs dense; allow this process to map executable memory"
        yield Finding("native code", str(error), "failed", advice)
        return
    answer = ctypes.CFUNCTYPE(ctypes.c_int32)(native.address)()
    assert answer == 42, f"compiled code returned {answer}"
    yield Finding("native code", "compiles, loads and runs")


@_probe
def _threads() -> Iterator[Finding]:
    count, backend = torch.get_num_threads(), threading_backend()
    parallel = backend.startswith("OpenMP")
    advice = "kernels use one thread; PyTorch's own operators still use all"
    yield Finding("threads", f"{count}, {backend}", "ok" if parallel else "warning", "" if parallel else advice)


@_probe
def _kernel_cache() -> Iterator[Finding]:
    directory = default_cache().directory
    if directory is None:
        advice = "kernels are compiled again in every process; set SPARTA_CACHE_DIR to a directory only you can write"
        yield Finding("kernel cache", "off", "warning", advice)
        return
    sizes = [entry.stat().st_size for entry in directory.glob("*.o")]
    yield Finding("kernel cache", f"{directory}: {len(sizes)} kernels, {sum(sizes) / 2**20:.1f} MB")


@_probe
def _kernels() -> Iterator[Finding]:
    yield Finding("kernels", ", ".join(kernel_names()))


@_probe
def _cuda() -> Iterator[Finding]:
    present = torch.cuda.is_available()
    yield Finding("GPU", f"{torch.cuda.get_device_name()}, not used by this version" if present else "none")
