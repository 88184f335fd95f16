"""A parallel loop over jobs, on the OpenMP threads that torch already owns.

A *kernel* is a native function ``void kernel(ptr arguments, i64 job, ptr scratch)`` whose arguments are an array of
i64 (addresses and sizes); `job_entry` writes one around a function with plain parameters. `run` calls it for every
job, one contiguous range of jobs per thread. Every thread flushes denormals to zero while it works (they are hundreds
of times slower than other numbers) and has scratch memory of its own.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sparta.kernels.codegen.ir import I8, I32, I64, PTR, Function, Module, Value
from sparta.kernels.codegen.jit import Native, load

_log = logging.getLogger("sparta.kernels.threads")

_HEADER = 4
"""Words of a call record before the arguments: kernel, jobs, scratch, bytes of scratch per thread."""

# --- native code ----------------------------------------------------------------------------------------------------


def job_entry(module: Module, body: Function) -> str:
    """The name of a new kernel that calls `body` with its parameters: the arguments, then the job and the scratch.

    Parameters
    ----------
    body
        A function whose last two parameters are the job (i64) and the scratch memory (ptr).
    """
    f = module.function(f"{body.name}_entry", {"arguments": PTR, "job": I64, "scratch": PTR})
    arguments = [f.load(type, f["arguments"], word) for word, type in enumerate(body.parameters[:-2])]
    f.call(body.name, *arguments, f["job"], f["scratch"])
    return f.name


_ARCHITECTURE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
_FLUSH_BITS = {"x86_64": 0x8040, "aarch64": 1 << 24}
"""Bits of MXCSR (FTZ and DAZ) and of FPCR (FZ) that make denormals zero."""


def _read_control(f: Function, architecture: str) -> Value:
    """The floating-point control register."""
    if architecture == "aarch64":
        return f.intrinsic("llvm.aarch64.get.fpcr", I64)
    cell = f.variable(I32)
    f.call("llvm.x86.sse.stmxcsr", cell.address)
    return cell.get()


def _write_control(f: Function, architecture: str, value: Value) -> None:
    if architecture == "aarch64":
        f.call("llvm.aarch64.set.fpcr", value)
    else:
        f.call("llvm.x86.sse.ldmxcsr", f.variable(I32, value).address)


@contextmanager
def _denormals_flushed(f: Function, architecture: str) -> Iterator[None]:
    """Treat denormals as zero in the body; an architecture we cannot tell to do so computes with them, slowly."""
    if architecture not in _FLUSH_BITS:
        yield
        return
    before = _read_control(f, architecture)
    _write_control(f, architecture, before | _FLUSH_BITS[architecture])
    yield
    _write_control(f, architecture, before)


def launcher_module(*, openmp: bool, architecture: str = _ARCHITECTURE) -> Module:
    """The module with ``launch(record, threads)``, the native half of `run`."""
    module = Module()
    work = module.function("work", {"record": PTR, "part": I64, "parts": I64}, internal=True)
    record, part, parts = (work[name] for name in ("record", "part", "parts"))
    kernel, jobs = work.load(PTR, record, 0), work.load(I64, record, 1)
    scratch = work.offset(work.load(PTR, record, 2), work.load(I64, record, 3) * part, I8)
    arguments = work.offset(record, _HEADER, I64)
    with (
        _denormals_flushed(work, architecture),
        work.loop(part * jobs // parts, (part + 1) * jobs // parts) as job,
    ):
        work.call_pointer(kernel, arguments, job, scratch)
    _LAUNCH[openmp](module)
    return module


def _launch_openmp(module: Module) -> None:
    worker = module.function("worker", {"record": PTR}, internal=True)
    number, count = (worker.intrinsic(f"omp_get_{what}", I32) for what in ("thread_num", "num_threads"))
    part, parts = (worker.convert("zext", value, I64) for value in (number, count))
    worker.call("work", worker["record"], part, parts)
    launch = module.function("launch", {"record": PTR, "threads": I64})
    threads = launch.convert("trunc", launch["threads"], I32)
    launch.call("GOMP_parallel", launch.symbol("worker"), launch["record"], threads, launch.constant(I32, 0))


def _launch_single(module: Module) -> None:
    launch = module.function("launch", {"record": PTR, "threads": I64})
    launch.call("work", launch["record"], launch.constant(I64, 0), launch.constant(I64, 1))


_LAUNCH: dict[bool, Callable[[Module], None]] = {True: _launch_openmp, False: _launch_single}

# --- torch's OpenMP -------------------------------------------------------------------------------------------------

_SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_RUNTIMES = ("libgomp", "libomp", "libiomp5")


@dataclass(frozen=True, slots=True)
class OpenMP:
    """The OpenMP runtime whose threads torch uses."""

    path: Path
    symbols: dict[str, int]


def _candidates() -> list[Path]:
    """OpenMP runtimes of this process: those torch ships with first, then others that are loaded."""
    folder = Path(torch.__file__).parent
    shipped = [path for name in _RUNTIMES for path in sorted((folder / "lib").glob(f"{name}*"))]
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    loaded = {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/")}
    return shipped + sorted(path for path in loaded if path.name.startswith(_RUNTIMES))


@functools.cache
def openmp() -> OpenMP | None:
    """Torch's OpenMP runtime, if it speaks the GNU interface (GNU's, LLVM's and Intel's do)."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(str(path))
            addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _SYMBOLS}
        except (OSError, AttributeError):
            continue
        return OpenMP(path, {name: address for name, address in addresses.items() if address})
    return None


_forked = False


def _after_fork() -> None:
    # The threads of the parent's pool do not exist here, and OpenMP would wait for them forever.
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def threading_backend() -> str:
    """How kernels use several threads, in words.

    Examples
    --------
    >>> threading_backend().split()[0] in ("OpenMP", "single-threaded:")
    True
    """
    if _forked:
        return "single-threaded: this is a forked process"
    runtime = openmp()
    return f"OpenMP ({runtime.path.name})" if runtime else "single-threaded: torch ships no OpenMP runtime known here"


# --- calls ----------------------------------------------------------------------------------------------------------


Launch = Callable[[bytes, int], None]


@functools.cache
def _launcher(*, parallel: bool) -> Launch:
    runtime = openmp() if parallel else None
    native = load(launcher_module(openmp=runtime is not None), "launch", runtime.symbols if runtime else {})
    _KEPT.append(native)
    launch: Launch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(native.address)
    return launch


_KEPT: list[Native] = []
"""Loaded code must outlive the function pointers into it."""


_free: deque[torch.Tensor] = deque()
"""Buffers nobody uses: handed from call to call, memory stays in the cache and is never page-faulted anew."""


def _take(size: int) -> torch.Tensor:
    """A buffer of at least `size` bytes that nobody else holds; to be appended to `_free` after use."""
    try:
        buffer = _free.pop()
    except IndexError:
        return torch.empty(size, dtype=torch.uint8)
    return buffer if buffer.numel() >= size else torch.empty(size, dtype=torch.uint8)


class borrowed:  # noqa: N801 - reads like the function it could be, which would take three times longer
    """The address of at least `size` bytes of scratch memory, aligned to 64 bytes, for as long as the block runs."""

    __slots__ = ("_buffer", "_size")

    def __init__(self, size: int) -> None:
        self._size = size

    def __enter__(self) -> int:
        try:
            self._buffer = _free.pop()
        except IndexError:
            self._buffer = torch.empty(self._size, dtype=torch.uint8)
        if self._buffer.numel() < self._size:
            self._buffer = torch.empty(self._size, dtype=torch.uint8)
        return self._buffer.data_ptr()

    def __exit__(self, *error: object) -> None:
        _free.append(self._buffer)


_PAGE = 4096


@functools.cache
def _record(words: int) -> Callable[..., bytes]:
    # Packing bytes takes a tenth of the time of filling a ctypes array, which a small layer would notice.
    return struct.Struct(f"{words}q").pack


def run(kernel: Native, arguments: Sequence[int], *, jobs: int, threads: int, scratch: int = 0) -> None:
    """Call a kernel for the jobs 0, 1, ... ``jobs - 1``, and return when all are done. Releases the GIL.

    Parameters
    ----------
    kernel
        The entry that `job_entry` made.
    arguments
        Addresses and sizes; the memory behind the addresses is kept alive by the caller.
    threads
        The most threads to use; jobs run in contiguous ranges, one range per thread.
    scratch
        Bytes of scratch memory that the kernel needs per thread (its start is aligned to 64 bytes).
    """
    # Written out for speed: a small layer computes for as long as a context manager takes.
    threads = 1 if _forked or threads < 2 or jobs < 2 else min(threads, jobs)
    stride = -(-scratch // _PAGE) * _PAGE
    pack, launch = _record(_HEADER + len(arguments)), _launcher(parallel=threads > 1)
    buffer = _take(stride * threads)
    try:
        launch(pack(kernel.address, jobs, buffer.data_ptr(), stride, *arguments), threads)
    finally:
        _free.append(buffer)
