"""Appends ops to a kernel under construction: operands to sources, folding, reuse of results."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.arch import Arch
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError, current_loc
from tensorcore_dsl.frontend import arithmetic
from tensorcore_dsl.frontend.values import Group, Runtime, Scalar, group_of, scalar_of
from tensorcore_dsl.ir.nodes import Address, Assign, Block, Const, Kernel, Node, Op, Part, Type, Value
from tensorcore_dsl.isa.spec import Instruction, Operand


@dataclass
class Mark:
    """Where a trial began, to take it back."""

    block: Block
    length: int
    shared_bytes: int
    known: Any


class Builder:
    """The emitter behind every instruction that a kernel calls."""

    def __init__(self, kernel: Kernel, arch: Arch) -> None:
        self.kernel = kernel
        self.arch = arch
        self.block = kernel.body
        self.known: ChainMap[Any, Any] = ChainMap()
        self.definitions: dict[Value, Op] = {}
        self._ids = 0

    # -- structure ---------------------------------------------------------------------------

    def new_value(self, type: Type) -> Value:
        self._ids += 1
        return Value(self._ids - 1, type)

    def append(self, node: Node) -> None:
        node.loc = current_loc()
        self.block.nodes.append(node)

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Emit into `block`; results known inside are forgotten outside."""
        outer, outer_known = self.block, self.known
        self.block, self.known = block, outer_known.new_child()
        try:
            yield block
        finally:
            self.block, self.known = outer, outer_known

    def mark(self) -> Mark:
        return Mark(self.block, len(self.block), self.kernel.shared_bytes, dict(self.known.maps[0]))

    def undo(self, mark: Mark) -> None:
        del mark.block.nodes[mark.length :]
        self.kernel.shared_bytes = mark.shared_bytes
        self.known.maps[0].clear()
        self.known.maps[0].update(mark.known)

    # -- instructions ------------------------------------------------------------------------

    def emit(self, form: Instruction, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Check and append one instruction; `pred=` guards it, `otherwise=` fills its results."""
        form.requires.check(self.arch, form.mnemonic)
        guard, otherwise = options.get("pred"), options.get("otherwise")
        unknown = set(options) - {"pred", "otherwise"}
        if unknown:
            raise OperandError(f"{form} takes no option {unknown.pop()!r}; allowed: pred, otherwise")
        if len(operands) != len(form.operands):
            names = ", ".join(o.name for o in form.operands)
            raise OperandError(
                f"{form} takes {len(form.operands)} operands ({names}), {len(operands)} were given"
            )
        sources = tuple(
            self.source(given, wanted, form)
            for given, wanted in zip(operands, form.operands, strict=True)
        )
        if guard is True:
            guard = None
        if guard is None:
            return self._unguarded(form, sources)
        return self._guarded(form, sources, guard, otherwise)

    def _unguarded(self, form: Instruction, sources: tuple[Any, ...]) -> Any:
        key = (form, sources)
        if not form.effects and form.results:
            found = self.known.get(key)
            if found is not None:
                return found
        results = tuple(self.new_value(type_of(r)) for r in form.results)
        op = Op(form, results, sources)
        self.append(op)
        for result in results:
            self.definitions[result] = op
        wrapped = self._wrap(form, results)
        if not form.effects and form.results:
            self.known[key] = wrapped
        return wrapped

    def _guarded(
        self, form: Instruction, sources: tuple[Any, ...], guard: Any, otherwise: Any
    ) -> Any:
        if guard is False:
            sources = ()
        results = tuple(self.new_value(type_of(r)) for r in form.results)
        for result, operand in zip(results, form.results, strict=True):
            fill = 0 if otherwise is None else otherwise
            if isinstance(fill, Runtime):
                self.append(Assign(result, (fill.value,)))
            else:
                self.append(Assign(result, (Const(fill, element_type(operand)),)))
        if guard is not False:
            condition = self.predicate(guard)
            self.append(Op(form, results, sources, guard=condition))
        return self._wrap(form, results)

    def _wrap(self, form: Instruction, results: tuple[Value, ...]) -> Any:
        wrapped = tuple(
            group_of(value, operand) if value.type.is_group else scalar_of(value)
            for value, operand in zip(results, form.results, strict=True)
        )
        if not wrapped:
            return None
        return wrapped[0] if len(wrapped) == 1 else wrapped

    def named(self, mnemonic: str, *operands: Any, **options: Any) -> Any:
        """Emit the form spelled `mnemonic`."""
        return self.emit(isa.instruction(mnemonic), operands, options)

    # -- operands ----------------------------------------------------------------------------

    def source(self, given: Any, wanted: Operand, form: Instruction) -> Any:
        """What the op stores for one operand of a call; refuses what does not fit."""
        if wanted.kind == "addr":
            return self.address(given, wanted)
        if wanted.kind == "imm":
            return self._immediate(given, wanted, form)
        if wanted.registers > 1 or wanted.layout is not None:
            return self._group(given, wanted, form)
        if isinstance(given, Scalar):
            return self._fit(given, wanted, form).value
        if isinstance(given, (bool, int, float, np.generic)):
            return constant(given, wanted.dtype)
        raise self._mismatch(given, wanted, form)

    def _fit(self, given: Scalar, wanted: Operand, form: Instruction) -> Scalar:
        have, want = given.dtype, wanted.dtype
        same_size = have.register_bits == want.register_bits
        untyped = have.kind == "b" or want.kind == "b" or (have.is_integer and want.is_integer)
        if have == want or (same_size and untyped and "p" not in have.kind + want.kind):
            return given
        if have.lanes == 2 and want.bits == 32 and want.kind in "bf" and same_size:
            return given
        if have.name in ("f32", "tf32") and want.name in ("f32", "tf32"):
            return given
        raise self._mismatch(given, wanted, form)

    def _group(self, given: Any, wanted: Operand, form: Instruction) -> Value:
        if isinstance(given, Group):
            have = given.value.type
            want = type_of(wanted)
            fits = have == want or (
                have.layout is None
                and want.layout is None
                and have.registers == want.registers
                and have.register_bits == want.register_bits
            )
            if fits:
                return given.value
        if isinstance(given, (list, tuple)) and len(given) == wanted.registers:
            return self.pack(list(given), type_of(wanted)).value
        if isinstance(given, Scalar) and wanted.registers == 1:
            return self.pack([given], type_of(wanted)).value
        raise self._mismatch(given, wanted, form)

    def _immediate(self, given: Any, wanted: Operand, form: Instruction) -> Const:
        if not isinstance(given, (bool, int, np.integer)):
            raise OperandError(
                f"operand {wanted.name} of {form} must be a compile-time integer, "
                f"not {describe(given)}"
            )
        if wanted.values is not None and int(given) not in wanted.values:
            allowed = ", ".join(map(str, wanted.values))
            raise OperandError(f"operand {wanted.name} of {form} may be {allowed}; {given} was given")
        return Const(int(given), wanted.dtype)

    def address(self, given: Any, wanted: Operand) -> Address:
        """`[base + offset]` of an address value, a constant added last going into the offset."""
        if not isinstance(given, Scalar):
            pointer = getattr(given, "address", None)
            if isinstance(pointer, Scalar):
                given = pointer
            elif isinstance(given, int):
                return Address(Const(given, wanted.dtype))
            else:
                raise OperandError(f"an address is needed, not {describe(given)}")
        if given.dtype.bits != wanted.dtype.bits:
            space = "global" if wanted.dtype.bits == 64 else "shared"
            raise OperandError(
                f"a {space} address ({wanted.dtype}) is needed, not a value of type {given.dtype}"
            )
        base, offset = self.split_constant(given)
        if -(2**31) <= offset < 2**31 and base is not None:
            return Address(base.value, offset)
        return Address(given.value)

    def split_constant(self, given: Any) -> tuple[Scalar | None, int]:
        """x as (y, c) with x = y + c for a compile-time c; y is None for a constant."""
        if isinstance(given, (int, np.integer)):
            return None, int(given)
        offset = 0
        value = given.value
        while True:
            op = self.definitions.get(value)
            if op is None or not op.form.mnemonic.startswith(("add.s", "add.u")):
                break
            left, right = op.operands
            if not isinstance(right, Const) or not isinstance(left, Value):
                break
            offset += int(right.value)
            value = left
        return (given if value is given.value else Scalar(value, given.dtype)), offset

    def _mismatch(self, given: Any, wanted: Operand, form: Instruction) -> OperandError:
        return OperandError(
            f"operand {wanted.name} of {form} must be {wanted.type_name}, not {describe(given)}"
        )

    # -- values ------------------------------------------------------------------------------

    def convert(self, value: Any, dtype: DType) -> Scalar:
        return arithmetic.convert(self, value, dtype)

    def predicate(self, value: Any) -> Value:
        result = arithmetic.truth(self, value)
        assert isinstance(result, Scalar)
        return result.value

    def literal(self, value: Any, dtype: DType) -> Scalar:
        """A register that holds a constant."""
        register = self.new_value(Type(dtype))
        self.append(Assign(register, (constant(value, dtype),)))
        return Scalar(register, dtype)

    def scalar(self, value: Any, dtype: DType | None = None) -> Scalar:
        """`value` in a register, a Python number as `dtype` or its default type."""
        if isinstance(value, Scalar):
            return value
        return self.literal(value, dtype or default_type(value))

    def zeros(self, operand: Operand) -> Group:
        register = self.new_value(type_of(operand))
        self.append(Assign(register, (Const(0, element_type(operand)),)))
        return group_of(register, operand)

    def pack(self, parts: Sequence[Any], type: Type, operand: Operand | None = None) -> Group:
        """A group made of one scalar for each register."""
        register = self.new_value(type)
        sources = tuple(self.part_source(p, type) for p in parts)
        self.append(Assign(register, sources))
        return group_of(register, operand)

    def part_source(self, part: Any, type: Type) -> Any:
        if isinstance(part, Scalar):
            if part.dtype.register_bits != type.register_bits:
                raise OperandError(
                    f"a register of {type} holds {type.register_bits} bits, not a {part.dtype}"
                )
            return part.value
        return constant(part, type.dtype if type.dtype.storage_bits >= 32 else dtypes.b32)

    def part(self, group: Group, index: int) -> Scalar:
        """Register `index` of a group as a scalar."""
        key = ("part", group.value, index)
        found = self.known.get(key)
        if found is None:
            dtype = group.register_dtype
            register = self.new_value(Type(dtype))
            self.append(Assign(register, (Part(group.value, index),)))
            found = self.known[key] = Scalar(register, dtype)
        return found


def type_of(operand: Operand) -> Type:
    layout = operand.layout.name if operand.layout else None
    return Type(operand.dtype, operand.registers, layout)


def element_type(operand: Operand) -> DType:
    """The type of a constant that fills one register of the operand."""
    if operand.layout is not None and operand.dtype.storage_bits < 32:
        return dtypes.b32
    return operand.dtype


def default_type(value: Any) -> DType:
    """The run-time type of a Python number: s32 (s64 when too wide), f32, pred."""
    if isinstance(value, (bool, np.bool_)):
        return dtypes.pred
    if isinstance(value, (int, np.integer)) and not isinstance(value, np.generic):
        if -(2**31) <= value < 2**31:
            return dtypes.s32
        return dtypes.s64 if -(2**63) <= value < 2**63 else dtypes.u64
    if isinstance(value, np.generic):
        return dtypes.from_numpy(value.dtype)
    if isinstance(value, float):
        return dtypes.f32
    raise OperandError(f"{describe(value)} has no run-time type")


def constant(value: Any, dtype: DType) -> Const:
    """`value` as a constant of `dtype`; refuses what the type cannot hold."""
    if dtype.kind == "p":
        return Const(bool(value), dtype)
    if dtype.is_float:
        return Const(float(value), dtype)
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise OperandError(f"{value!r} is no {dtype}: convert it explicitly")
    number = int(value)
    low = -(1 << (dtype.bits - 1))
    if not low <= number < (1 << dtype.bits):
        raise OperandError(f"{number} does not fit in {dtype}")
    return Const(number, dtype)


def describe(value: Any) -> str:
    """What was given, for messages."""
    if isinstance(value, Scalar):
        return f"a run-time value of type {value.dtype}"
    if isinstance(value, Group):
        return f"a fragment {value.value.type}" if value.operand else f"a vector {value.value.type}"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return f"{value!r}"
    return f"a {type(value).__name__}"
