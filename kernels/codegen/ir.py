"""A structured builder of LLVM IR text: typed values with operators, loops as context managers, explicit vectors.

Mutable state lives in `Variable` (a stack slot that LLVM promotes to a register), so no phi node is ever written.
Only vector code that is asked for is generated: the passes of `sparta.kernels.codegen.jit` never vectorize or unroll.

Examples
--------
>>> module = Module()
>>> f = module.function("double_all", {"x": PTR, "count": I64})
>>> with f.loop(0, f["count"]) as i:
...     f.store(f.load(F32, f["x"], i) * 2.0, f["x"], i)
>>> "fmul float" in str(module)
True
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar LLVM type, or a vector of `lanes` of them."""

    scalar: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.scalar}>" if self.lanes else self.scalar

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on it is floating point."""
        return self.scalar == "float"

    @property
    def element(self) -> Type:
        """The type of one lane."""
        return Type(self.scalar)

    @property
    def nbytes(self) -> int:
        """Bytes in memory of one value."""
        return _SCALAR_BYTES[self.scalar] * max(1, self.lanes)

    @property
    def suffix(self) -> str:
        """How intrinsics name it: ``v8f32``, ``i64``."""
        scalar = "f32" if self.is_float else self.scalar
        return f"v{self.lanes}{scalar}" if self.lanes else scalar

    def vector(self, lanes: int) -> Type:
        """A vector of `lanes` of this scalar."""
        return Type(self.scalar, lanes)


_SCALAR_BYTES = {"void": 0, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "ptr": 8}
VOID, I1, I8, I16, I32, I64, F32, PTR = (Type(name) for name in _SCALAR_BYTES)


def _literal(type: Type, number: Number) -> str:
    """Text of a constant; floats are spelled in hexadecimal, exactly, as LLVM wants them."""
    if not type.is_float:
        text = str(int(number))
    else:
        single = struct.unpack("<f", struct.pack("<f", number))[0]
        text = f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"
    if type.lanes:
        return "<" + ", ".join([f"{type.element} {text}"] * type.lanes) + ">"
    return text


class Value:
    """An SSA value or a constant; arithmetic operators emit instructions into its function."""

    __slots__ = ("function", "text", "type")

    def __init__(self, function: Function, type: Type, text: str) -> None:
        self.function = function
        self.type = type
        self.text = text

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def __add__(self, other: Value | Number) -> Value:
        return self.function.binary("add", self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.function.binary("sub", self, other)

    def __mul__(self, other: Value | Number) -> Value:
        return self.function.binary("mul", self, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.function.binary("div", self, other)

    def __floordiv__(self, other: Value | Number) -> Value:
        return self.function.binary("udiv", self, other)

    def __mod__(self, other: Value | Number) -> Value:
        return self.function.binary("urem", self, other)

    def __and__(self, other: Value | Number) -> Value:
        return self.function.binary("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return self.function.binary("or", self, other)

    def __lshift__(self, other: Value | Number) -> Value:
        return self.function.binary("shl", self, other)

    def __rshift__(self, other: Value | Number) -> Value:
        return self.function.binary("lshr", self, other)


class Variable:
    """A mutable local; read with `get`, written with `set`."""

    __slots__ = ("function", "slot", "type")

    def __init__(self, function: Function, type: Type, slot: str) -> None:
        self.function = function
        self.type = type
        self.slot = slot

    @property
    def address(self) -> Value:
        """A pointer to it, for callees that read or write it."""
        return Value(self.function, PTR, self.slot)

    def get(self) -> Value:
        """The value stored last."""
        return self.function.emit(self.type, f"load {self.type}, ptr {self.slot}")

    def set(self, value: Value | Number) -> None:
        """Replace the value."""
        self.function.line(f"store {self.function.value(value, self.type)}, ptr {self.slot}")


class Function:
    """One function under construction, which returns nothing; made by `Module.function`."""

    def __init__(self, module: Module, name: str, parameters: Mapping[str, Type], *, internal: bool) -> None:
        self.module = module
        self.name = name
        self._internal = internal
        self._parameters = {key: Value(self, type, f"%{key}") for key, type in parameters.items()}
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def __getitem__(self, parameter: str) -> Value:
        return self._parameters[parameter]

    @property
    def parameters(self) -> tuple[Type, ...]:
        """The types of the parameters, in order."""
        return tuple(value.type for value in self._parameters.values())

    def __str__(self) -> str:
        linkage = "internal " if self._internal else ""
        # A pointer argument is the only way this function reaches the memory behind it.
        arguments = ", ".join(
            f"{value.type}{' noalias' if value.type == PTR else ''} {value.text}" for value in self._parameters.values()
        )
        body = "\n".join([*self._slots, *self._lines, "  ret void"])
        return f"define {linkage}void @{self.name}({arguments}) nounwind {{\nentry:\n{body}\n}}\n"

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def emit(self, type: Type, text: str) -> Value:
        """The result of an instruction."""
        name = "%" + self._name("v")
        self.line(f"{name} = {text}")
        return Value(self, type, name)

    # --- values -----------------------------------------------------------------------------------------------------

    def constant(self, type: Type, number: Number) -> Value:
        """A constant, the same in every lane."""
        return Value(self, type, _literal(type, number))

    def symbol(self, name: str) -> Value:
        """The address of a function of this module."""
        return Value(self, PTR, f"@{name}")

    def value(self, item: Value | Number, type: Type) -> Value:
        """`item` itself, or the constant it stands for."""
        return item if isinstance(item, Value) else self.constant(type, item)

    def variable(self, type: Type, initial: Value | Number | None = None) -> Variable:
        """A new local variable."""
        slot = "%" + self._name("slot")
        self._slots.append(f"  {slot} = alloca {type}")
        variable = Variable(self, type, slot)
        if initial is not None:
            variable.set(initial)
        return variable

    def array(self, type: Type, count: int) -> Value:
        """A pointer to `count` values of `type` on the stack, aligned to one."""
        slot = "%" + self._name("array")
        self._slots.append(f"  {slot} = alloca [{count} x {type}], align {type.nbytes}")
        return Value(self, PTR, slot)

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def binary(self, opcode: str, lhs: Value, rhs: Value | Number) -> Value:
        """``lhs opcode rhs``: the floating-point instruction for floats, without signed wrap for integers."""
        right = self.value(rhs, lhs.type)
        assert right.type == lhs.type, f"{opcode} of {lhs.type} and {right.type}"
        instruction = f"f{opcode}" if lhs.type.is_float else opcode
        return self.emit(lhs.type, f"{instruction} {lhs}, {right.text}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c`` with one rounding."""
        return self.intrinsic(f"llvm.fma.{a.type.suffix}", a.type, a, b, c)

    def compare(self, predicate: str, lhs: Value, rhs: Value | Number) -> Value:
        """Lane-wise comparison; `predicate` as in LLVM (``slt``, ``eq``; ``olt``, ``uno`` for floats)."""
        instruction = "fcmp" if lhs.type.is_float else "icmp"
        return self.emit(
            Type("i1", lhs.type.lanes), f"{instruction} {predicate} {lhs}, {self.value(rhs, lhs.type).text}"
        )

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """`yes` where `condition` holds, else `no`."""
        return self.emit(yes.type, f"select {condition}, {yes}, {no}")

    def minimum(self, lhs: Value, rhs: Value | Number) -> Value:
        """The smaller; of floats, `rhs` where either is NaN."""
        right = self.value(rhs, lhs.type)
        return self.select(self.compare("olt" if lhs.type.is_float else "slt", lhs, right), lhs, right)

    def maximum(self, lhs: Value, rhs: Value | Number) -> Value:
        """The larger; of floats, `rhs` where either is NaN."""
        right = self.value(rhs, lhs.type)
        return self.select(self.compare("ogt" if lhs.type.is_float else "sgt", lhs, right), lhs, right)

    def convert(self, opcode: str, value: Value, type: Type) -> Value:
        """`value` as another type; `opcode` is ``zext``, ``trunc``, ``bitcast``, ``sitofp``, ``ptrtoint``, ..."""
        return self.emit(type, f"{opcode} {value} to {type}")

    def splat(self, value: Value, lanes: int) -> Value:
        """A vector with `value` in every lane."""
        type = value.type.vector(lanes)
        first = self.emit(type, f"insertelement {type} poison, {value}, i64 0")
        return self.emit(type, f"shufflevector {first}, {type} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, lhs: Value, rhs: Value, lanes: Sequence[int]) -> Value:
        """The lanes of `lhs` followed by those of `rhs`, picked by index."""
        indices = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.emit(
            lhs.type.element.vector(len(lanes)), f"shufflevector {lhs}, {rhs}, <{len(lanes)} x i32> <{indices}>"
        )

    def lane_numbers(self, lanes: int, type: Type = I32) -> Value:
        """The vector 0, 1, 2, ... ."""
        items = ", ".join(f"{type} {lane}" for lane in range(lanes))
        return Value(self, type.vector(lanes), f"<{items}>")

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """A mask of the lanes below `count` (an i64)."""
        return self.compare("slt", self.lane_numbers(lanes, I64), self.splat(count, lanes))

    # --- memory -----------------------------------------------------------------------------------------------------

    def offset(self, pointer: Value, index: Value | int, type: Type = F32) -> Value:
        """The address of element `index` of an array of `type`."""
        return self.emit(PTR, f"getelementptr {type}, {pointer}, {self.value(index, I64)}")

    def load(self, type: Type, pointer: Value, index: Value | int = 0, *, align: int = 0) -> Value:
        """The `type` at element `index` (counted in scalars); aligned to a scalar unless told better."""
        address = self.offset(pointer, index, type.element)
        return self.emit(type, f"load {type}, {address}, align {align or type.element.nbytes}")

    def load_index(self, type: Type, pointer: Value, index: Value | int = 0) -> Value:
        """The unsigned integer of `type` at element `index`, widened to i64."""
        return self.convert("zext", self.load(type, pointer, index), I64)

    def load_splat(self, pointer: Value, index: Value | int, lanes: int) -> Value:
        """One float, in every lane."""
        return self.splat(self.load(F32, pointer, index), lanes)

    def store(self, value: Value, pointer: Value, index: Value | int = 0, *, align: int = 0) -> None:
        """Write `value` at element `index` (counted in scalars)."""
        address = self.offset(pointer, index, value.type.element)
        self.line(f"store {value}, {address}, align {align or value.type.element.nbytes}")

    def masked_load(self, type: Type, pointer: Value, mask: Value, index: Value | int = 0) -> Value:
        """The lanes under `mask`, zero elsewhere; memory behind the other lanes is not touched."""
        address = self.offset(pointer, index, type.element)
        align = self.constant(I32, type.element.nbytes)
        zero = self.constant(type, 0)
        return self.intrinsic(f"llvm.masked.load.{type.suffix}.p0", type, address, align, mask, zero)

    def masked_store(self, value: Value, pointer: Value, mask: Value, index: Value | int = 0) -> None:
        """Write the lanes under `mask`; memory behind the other lanes is not touched."""
        address = self.offset(pointer, index, value.type.element)
        align = self.constant(I32, value.type.element.nbytes)
        self.call(f"llvm.masked.store.{value.type.suffix}.p0", value, address, align, mask)

    def gather(self, pointer: Value, indices: Value, type: Type = F32) -> Value:
        """One `type` per lane, from the element of the array that the lane of `indices` names."""
        lanes = indices.type.lanes
        pointers = self.emit(PTR.vector(lanes), f"getelementptr {type}, {pointer}, {indices}")
        result = type.vector(lanes)
        mask = self.constant(I1.vector(lanes), 1)
        name = f"llvm.masked.gather.{result.suffix}.v{lanes}p0"
        return self.intrinsic(name, result, pointers, self.constant(I32, type.nbytes), mask, self.constant(result, 0))

    # --- control ----------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Run the body for start, start + step, ... while below `stop` (i64, signed)."""
        index = self.variable(I64, start)
        head, body, end = self._name("head"), self._name("body"), self._name("end")
        self._branch(head)
        self._label(head)
        current = index.get()
        inside = self.compare("slt", current, stop)
        self.line(f"br {inside}, label %{body}, label %{end}")
        self._label(body)
        yield current
        index.set(self.emit(I64, f"add nsw {current}, {self.value(step, I64).text}"))
        self._branch(head)
        self._label(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body if `condition` holds."""
        body, end = self._name("then"), self._name("join")
        self.line(f"br {condition}, label %{body}, label %{end}")
        self._label(body)
        yield
        self._branch(end)
        self._label(end)

    def call(self, name: str, *arguments: Value) -> None:
        """Call a function or an intrinsic that returns nothing."""
        self.module.declare(name, VOID, arguments)
        self.line(f"call void @{name}({', '.join(map(str, arguments))})")

    def intrinsic(self, name: str, result: Type, *arguments: Value) -> Value:
        """The result of calling a function or an intrinsic."""
        self.module.declare(name, result, arguments)
        return self.emit(result, f"call {result} @{name}({', '.join(map(str, arguments))})")

    def call_pointer(self, pointer: Value, *arguments: Value) -> None:
        """Call the function at an address; it returns nothing."""
        self.line(f"call void {pointer.text}({', '.join(map(str, arguments))})")

    def _branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    def _label(self, name: str) -> None:
        self._lines.append(f"{name}:")


class Module:
    """A translation unit; its text is what the cache and the compiler see."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}
        self._declarations: dict[str, str] = {}

    def function(self, name: str, parameters: Mapping[str, Type], *, internal: bool = False) -> Function:
        """A new function; pointer parameters must not alias each other where one is written."""
        assert name not in self._functions, f"two functions are called {name!r}"
        self._functions[name] = Function(self, name, parameters, internal=internal)
        return self._functions[name]

    def declare(self, name: str, result: Type, arguments: Sequence[Value]) -> None:
        """Note that `name` is called; what this module does not define is declared as external."""
        self._declarations[name] = f"declare {result} @{name}({', '.join(str(a.type) for a in arguments)})"

    def __str__(self) -> str:
        external = sorted(text for name, text in self._declarations.items() if name not in self._functions)
        return "\n".join([*external, "", *map(str, self._functions.values())])
