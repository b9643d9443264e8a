"""Emission of vector code: sixteen lanes of LLVM IR, which the host's registers hold in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import arrays
from tensorcore_dsl.lowering.values import COUNT, Number

LANES = 16
I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

Value = Any  # of LLVM IR; llvmlite has no types


def vector(element: ir.Type, lanes: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def constant(element: ir.Type, numbers: Any) -> Value:
    """The vector of some numbers, or of one number in all lanes."""
    numbers = list(numbers) if isinstance(numbers, (list, tuple)) else [numbers] * LANES
    return ir.Constant(vector(element, len(numbers)), numbers)


class Emitter:
    """A builder with the operations on vectors; addresses are integers (i64), in bytes."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def at(self, base: Value, index: Value, size: int = 4) -> Value:
        """The address of an element of `size` bytes."""
        return self.builder.add(base, self.builder.mul(index, ir.Constant(I64, size)))

    def load(self, address: Value, kind: ir.Type) -> Value:
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=4)

    def store(self, value: Value, address: Value) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def shuffle(self, value: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
        mask = ir.Constant(vector(I32, len(lanes)), list(lanes))
        undefined = ir.Constant(value.type, ir.Undefined)
        return self.builder.shuffle_vector(value, undefined if other is None else other, mask)

    def splat(self, value: Value) -> Value:
        """A scalar in all lanes."""
        one = vector(value.type, 1)
        zero = ir.Constant(I32, 0)
        single = self.builder.insert_element(ir.Constant(one, ir.Undefined), value, zero)
        return self.shuffle(single, [0] * LANES)

    def larger(self, one: Value, other: Value) -> Value:
        """The larger of two integers."""
        return self.builder.select(self.builder.icmp_signed(">", one, other), one, other)

    def masked(self, value: Value, mask: int) -> Value:
        return self.builder.and_(value, constant(value.type.element, mask))

    def float_bits(self, value: Value) -> Value:
        element, count = value.type.element, value.type.count
        return self.builder.bitcast(value, vector(I32 if element == F32 else I64, count))

    def as_float(self, bits: Value) -> Value:
        element, count = bits.type.element, bits.type.count
        return self.builder.bitcast(bits, vector(F32 if element == I32 else F64, count))

    def power(self, exponent: Value) -> Value:
        """2.0**exponent of int32 lanes, in the normal range of binary32."""
        biased = self.builder.add(exponent, constant(I32, 127))
        return self.as_float(self.builder.shl(biased, constant(I32, 23)))

    def wide_power(self, exponent: Value) -> Value:
        """2.0**exponent of int32 lanes, as binary64."""
        biased = self.builder.add(exponent, constant(I32, 1023))
        wide = self.builder.zext(biased, vector(I64))
        return self.as_float(self.builder.shl(wide, constant(I64, 52)))

    def size_of(self, value: Value) -> Value:
        """The absolute value of int32 lanes."""
        negative = self.builder.icmp_signed("<", value, constant(I32, 0))
        return self.builder.select(negative, self.builder.neg(value), value)

    def truncated(self, value: Value) -> Value:
        """int32 lanes below 2**31 - 64 as binary32, rounded towards zero."""
        builder = self.builder
        near = builder.sitofp(value, vector(F32))
        back = builder.fptosi(near, vector(I32))
        beyond = builder.icmp_signed(">", self.size_of(back), self.size_of(value))
        return self.as_float(builder.add(self.float_bits(near), builder.sext(beyond, vector(I32))))

    def fused(self, name: str, a: Value, b: Value, c: Value) -> Value:
        """a * b + c: rounded once ("fma"), or in the fastest way ("fmuladd")."""
        width = 32 if a.type.element == F32 else 64
        kind = ir.FunctionType(a.type, [a.type] * 3)
        name = f"llvm.{name}.v{a.type.count}f{width}"
        return self.builder.call(arrays.declared(self.builder, kind, name), [a, b, c])

    def variable(self, initial: Value) -> Value:
        """A slot with an initial value."""
        slot = arrays.variable(self.builder, initial.type)
        self.builder.store(initial, slot)
        return slot

    def get(self, slot: Value) -> Value:
        return self.builder.load(slot)

    def put(self, value: Value, slot: Value) -> None:
        self.builder.store(value, slot)

    @contextmanager
    def over(self, count: Value) -> Iterator[Value]:
        with arrays.counted(self.builder, 0, Number(COUNT, count)) as loop:
            yield loop.index.value

    def any(self, lanes: Value) -> Value:
        """Is one of the bits (i1 lanes) set?"""
        bits = self.builder.bitcast(lanes, ir.IntType(LANES))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
