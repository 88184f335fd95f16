"""What the machine at hand can do: instruction set, registers, caches, and rough rates for the cost model."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

Isa = Literal["avx512", "avx2", "neon", "generic"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor as code generation and the cost model see it.

    Examples
    --------
    >>> machine = host_machine()
    >>> machine.lanes in (4, 8, 16)
    True
    """

    name: str
    arch: str
    isa: Isa
    lanes: int
    """fp32 elements of one vector register."""
    registers: int
    """Vector registers."""
    l1: int
    """Bytes of the first-level data cache of a core."""
    l2: int
    l3: int
    cores: int
    features: frozenset[str] = frozenset()
    """Instruction-set extensions in LLVM's spelling, such as ``avx512vnni`` or ``amx-bf16``."""
    amx_permitted: bool = False
    """Whether the operating system lets this process use AMX tiles."""
    gflops: float = 100.0
    """fp32 GFLOP/s of one thread that does nothing but fused multiply-adds."""
    l2_bandwidth: float = 100.0
    """GB/s that one thread reads from L2."""
    l3_bandwidth: float = 30.0
    dram_bandwidth: float = 12.0

    def bandwidth(self, footprint: float) -> float:
        """GB/s at which one thread reads data that it reads again and again and that takes `footprint` bytes."""
        if footprint <= self.l2:
            return self.l2_bandwidth
        return self.l3_bandwidth if footprint <= self.l3 else self.dram_bandwidth

    def seconds(self, *, multiplies: float, streamed: float) -> float:
        """Time one thread needs at least: to do `multiplies` fp32 multiply-adds, or to read `streamed` bytes again."""
        return 1e-9 * max(2 * multiplies / self.gflops, streamed / self.bandwidth(streamed))

    def describe(self) -> dict[str, str]:
        """Facts about the machine in words, for people."""
        return {
            "processor": self.name,
            "architecture": self.arch,
            "instruction set": f"{self.isa} ({self.lanes} fp32 lanes, {self.registers} registers)",
            "extensions": ", ".join(sorted(self.features & _TELLING)) or "none of note",
            "AMX": _AMX_WORDS["amx-tile" in self.features, self.amx_permitted],
            "caches": f"L1 {_size(self.l1)}, L2 {_size(self.l2)}, L3 {_size(self.l3)}",
            "cores": str(self.cores),
            "assumed rates": f"{self.gflops:.0f} GFLOP/s, L2 {self.l2_bandwidth:.0f} GB/s, "
            f"L3 {self.l3_bandwidth:.0f} GB/s, DRAM {self.dram_bandwidth:.0f} GB/s per thread",
        }


_TELLING = frozenset(
    ("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vnni", "avx512bf16", "avxvnni")
    + ("amx-tile", "amx-bf16", "amx-int8", "neon", "dotprod", "i8mm", "bf16", "sve")
)
_AMX_WORDS = {
    (False, False): "absent",
    (True, False): "present, but the operating system refuses it",
    (True, True): "usable",
}


@dataclass(frozen=True, slots=True)
class _Level:
    """One row of the instruction sets we generate code for."""

    isa: Isa
    needs: frozenset[str]
    lanes: int
    registers: int


_LEVELS = (
    _Level("avx512", frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")), 16, 32),
    _Level("avx2", frozenset(("avx2", "fma")), 8, 16),
    _Level("neon", frozenset(("neon",)), 4, 32),
    _Level("generic", frozenset(), 4, 16),
)

_CLOCK = 3.0
"""GHz. A nominal clock for every machine: only ratios between estimates matter."""


def machine_for(
    features: frozenset[str],
    *,
    name: str = "",
    arch: str = "",
    cores: int = 1,
    caches: tuple[int, int, int] = (0, 0, 0),
) -> Machine:
    """The machine with the given extensions: the widest instruction set they allow, and default rates for it.

    Examples
    --------
    >>> machine_for(frozenset(("avx2", "fma"))).registers
    16
    """
    level = next(level for level in _LEVELS if level.needs <= features)
    l1, l2, l3 = (size or default for size, default in zip(caches, (32 << 10, 512 << 10, 8 << 20), strict=True))
    return Machine(
        name=name or level.isa,
        arch=arch or platform.machine(),
        isa=level.isa,
        lanes=level.lanes,
        registers=level.registers,
        l1=l1,
        l2=l2,
        l3=l3,
        cores=cores,
        features=features,
        amx_permitted="amx-tile" in features and _request_amx(),
        gflops=_CLOCK * level.lanes * 2 * 2,  # two pipes, two flops per fused multiply-add
        l2_bandwidth=_CLOCK * 32,
    )


@lru_cache(maxsize=1)
def host_machine() -> Machine:
    """The machine this process runs on; looked at once."""
    return machine_for(
        _host_features(),
        name=_host_name(),
        arch=platform.machine(),
        cores=_host_cores(),
        caches=_host_caches(Path("/sys/devices/system/cpu/cpu0/cache")),
    )


def _host_features() -> frozenset[str]:
    from llvmlite import binding  # lazily: code generation needs it, importing the kernel table does not

    present = frozenset(feature for feature, has in binding.get_host_cpu_features().items() if has)
    # LLVM may leave out what the architecture guarantees.
    return present | {"neon"} if platform.machine().lower() in ("aarch64", "arm64") else present


def _host_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _host_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _host_caches(folder: Path) -> tuple[int, int, int]:
    """Bytes of the data caches per level, 0 where the system does not say."""
    sizes = {1: 0, 2: 0, 3: 0}
    for entry in sorted(folder.glob("index*")) if folder.is_dir() else ():
        level, kind, size = (_read(entry / fact) for fact in ("level", "type", "size"))
        if kind in ("Data", "Unified") and level.isdigit() and int(level) in sizes:
            sizes[int(level)] = _bytes(size)
    if platform.system() == "Darwin":
        sizes = {level: sizes[level] or _sysctl(f"hw.l{level}{'d' if level == 1 else ''}cachesize") for level in sizes}
    return sizes[1], sizes[2], sizes[3]


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _bytes(text: str) -> int:
    """Bytes that ``32K`` or ``1M`` stand for; 0 if the text is something else."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
    return int(text[:-1]) * unit if text[:-1].isdigit() else 0


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"


def _sysctl(key: str) -> int:
    """An integer of macOS's sysctl, 0 if the key is unknown."""
    value, length = ctypes.c_int64(0), ctypes.c_size_t(8)
    libc = ctypes.CDLL(None)
    failed = libc.sysctlbyname(key.encode(), ctypes.byref(value), ctypes.byref(length), None, 0)
    return 0 if failed else value.value


_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


@lru_cache(maxsize=1)
def _request_amx() -> bool:
    """Whether the kernel grants AMX tile state to this process (Linux wants to be asked once; others have no AMX)."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)) == 0
