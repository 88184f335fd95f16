"""From LLVM IR text to machine code: target machines, object files, and loading them into this process."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm

from sparta.kernels.codegen.cache import default_cache
from sparta.kernels.codegen.ir import Module
from sparta.tesa.errors import KernelCompileError

_LOCK = threading.Lock()
"""LLVM's JIT is driven by one thread at a time."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Target:
    """What code is generated for; the host, or another machine when only object files are wanted."""

    triple: str
    cpu: str
    features: str = ""

    @property
    def key(self) -> str:
        """Text that tells object files of different targets and compilers apart."""
        return "\n".join((self.triple, self.cpu, self.features, llvmlite.__version__))


AVX512 = Target("x86_64-unknown-linux-gnu", "skylake-avx512")
AVX2 = Target("x86_64-unknown-linux-gnu", "haswell")
X86_64 = Target("x86_64-unknown-linux-gnu", "x86-64")
NEON = Target("aarch64-unknown-linux-gnu", "generic", "+neon")


@functools.cache
def host_target() -> Target:
    """The machine this process runs on."""
    _initialize()
    return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target_machine(target: Target, *, jit: bool) -> llvm.TargetMachine:
    # Relocatable code, so that one object file serves the loader and the tests of foreign targets alike.
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=3,
        reloc="pic",
        codemodel="jitdefault" if jit else "small",
        jit=jit,
    )


_PASSES = ("sroa", "instruction_combine", "simplify_cfg", "loop_rotate", "instruction_combine", "simplify_cfg")
"""What kernels need besides code generation: variables in registers and tests at the end of loops. They spell out
vectors, unrolling and hoisting themselves; the standard pipeline takes ten times longer and spills registers."""


def _optimized(ir: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(ir)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2)))
    return module


def _compile(ir: str, target: Target, *, assembly: bool = False) -> bytes:
    _initialize()
    try:
        with _LOCK:
            machine = _target_machine(target, jit=target == host_target())
            module = _optimized(ir, machine)
            return machine.emit_assembly(module).encode() if assembly else bytes(machine.emit_object(module))
    except RuntimeError as error:
        message = f"LLVM cannot compile a kernel for {target.cpu} ({target.triple}): {error}"
        raise KernelCompileError(message) from error


def emit_object(ir: str, target: Target | None = None) -> bytes:
    """The object file of an IR module for a target (the host by default)."""
    return _compile(ir, target or host_target())


def emit_assembly(ir: str, target: Target | None = None) -> str:
    """The assembly text of an IR module for a target; for reading and for tests."""
    return _compile(ir, target or host_target(), assembly=True).decode()


@functools.cache
def _engine() -> llvm.LLJIT:
    return llvm.create_lljit_compiler(_target_machine(host_target(), jit=True))


class Native:
    """The address of a loaded function; keeps the code alive, so it must outlive every use of the address."""

    __slots__ = ("_library", "address")

    def __init__(self, address: int, library: llvm.ResourceTracker) -> None:
        self.address = address
        self._library = library


def _load(code: bytes, entry: str, symbols: Mapping[str, int]) -> Native:
    builder = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(entry)
    for name, address in symbols.items():
        builder = builder.import_symbol(name, address)
    try:
        with _LOCK:
            library = builder.link(_engine(), f"sparta.{next(_numbers)}")
    except RuntimeError as error:
        message = f"the machine code of {entry!r} cannot be loaded: {error}"
        raise KernelCompileError(message) from error
    return Native(library[entry], library)


def load(ir: Module | str, entry: str, symbols: Mapping[str, int] | None = None) -> Native:
    """The function `entry` of an IR module, compiled for the host or taken from the disk cache.

    Parameters
    ----------
    symbols
        Addresses of the external functions that the module calls.

    Raises
    ------
    KernelCompileError
        If LLVM rejects the module or the code cannot be mapped as executable.
    """
    cache, text = default_cache(), str(ir)
    key = f"{host_target().key}\n{text}"
    code = cache.load(key)
    if code is None:
        code = emit_object(text)
        cache.store(key, code)
    return _load(code, entry, symbols or {})
