"""Emission of vector code: sixteen lanes of LLVM IR, in one or several registers of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import arrays, machine
from tensorcore_dsl.lowering.values import COUNT, Number

LANES = 16
I1, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

# Instructions that LLVM does not select by itself: the processor feature, the intrinsic, and the
# number of instructions for one vector.
PAIRS = (("avx512bw", "llvm.x86.avx512.pmaddw.d.512", 1), ("avx2", "llvm.x86.avx2.pmadd.wd", 2))

TO_ZERO = 8 | 3  # rounding of one instruction of AVX-512

Value = Any  # a value of LLVM IR; llvmlite has no types


# Types and constants are cached, because printing their text takes half the time of emission.
@cache
def vector(element: ir.Type, lanes: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def constant(element: ir.Type, numbers: Any) -> Value:
    """Make a constant vector from a number for each lane, or one for all. -0.0 is not allowed.

    The cache could not tell -0.0 from 0.0.
    """
    whole = isinstance(numbers, (list, tuple))
    return _constant(element, tuple(numbers) if whole else (numbers,) * LANES)


@cache
def _constant(element: ir.Type, numbers: tuple[float, ...]) -> Value:
    return ir.Constant(vector(element, len(numbers)), list(numbers))


@cache
def _undefined(kind: ir.Type) -> Value:
    return ir.Constant(kind, ir.Undefined)


@cache
def _count(number: int) -> Value:
    return ir.Constant(I64, number)


def has(feature: str) -> bool:
    """Return whether the processor has a feature."""
    return f"+{feature}" in machine.features().split(",")


class Emitter:
    """A builder with the operations on vectors; addresses are integers (i64), in bytes."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def count(self, number: int) -> Value:
        return _count(number)

    def room(self, kind: ir.Type, count: int) -> Value:
        """Allocate memory for `count` values at the function's entry, and return its address."""
        with self.builder.goto_entry_block():
            slot = self.builder.alloca(kind, count)
            return self.builder.ptrtoint(slot, I64)

    def differs(self, value: Value, number: int) -> Value:
        return self.builder.icmp_signed("!=", value, ir.Constant(value.type, number))

    def at(self, base: Value, index: Value, size: int = 4) -> Value:
        """The address of an element of `size` bytes."""
        return self.builder.add(base, self.builder.mul(index, _count(size)))

    def load(self, address: Value, kind: ir.Type) -> Value:
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=4)

    def store(self, value: Value, address: Value) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def shuffle(self, value: Value, lanes: Sequence[int], second: Value | None = None) -> Value:
        second = _undefined(value.type) if second is None else second
        return self.builder.shuffle_vector(value, second, constant(I32, lanes))

    def joined(self, fours: list[Value]) -> Value:
        """Join four vectors of 4 lanes to one of 16."""
        eight = list(range(8))
        low, high = (self.shuffle(fours[i], eight, fours[i + 1]) for i in (0, 2))
        return self.shuffle(low, list(range(LANES)), high)

    def splat(self, value: Value) -> Value:
        """Broadcast a scalar to all lanes."""
        empty = _undefined(vector(value.type))
        return self.shuffle(self.builder.insert_element(empty, value, I32(0)), [0] * LANES)

    def halves(self, value: Value) -> Value:
        """View lanes of 32 bits as pairs of 16-bit lanes."""
        return self.builder.bitcast(value, vector(I16, 2 * LANES))

    def whole_lanes(self, halves: Value) -> Value:
        return self.builder.bitcast(halves, vector(I32))

    def larger(self, a: Value, b: Value) -> Value:
        """The larger of two integers."""
        return self.builder.select(self.builder.icmp_signed(">", a, b), a, b)

    def lower_unsigned(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.icmp_unsigned("<", a, b), a, b)

    def masked(self, value: Value, mask: int) -> Value:
        return self.builder.and_(value, constant(value.type.element, mask))

    def float_bits(self, value: Value) -> Value:
        element, count = value.type.element, value.type.count
        return self.builder.bitcast(value, vector(I32 if element == F32 else I64, count))

    def as_float(self, bits: Value) -> Value:
        element, count = bits.type.element, bits.type.count
        return self.builder.bitcast(bits, vector(F32 if element == I32 else F64, count))

    def size_of(self, value: Value) -> Value:
        """Return the absolute values of int32 lanes."""
        negative = self.builder.icmp_signed("<", value, constant(I32, 0))
        return self.builder.select(negative, self.builder.neg(value), value)

    def truncated(self, value: Value) -> Value:
        """int32 lanes below 2**31 - 64 as binary32, rounded towards zero."""
        builder = self.builder
        if has("avx512f"):
            kind = ir.FunctionType(vector(F32), [vector(I32), I32])
            rounding = arrays.declared(builder, kind, "llvm.x86.avx512.sitofp.round.v16f32.v16i32")
            return builder.call(rounding, [value, ir.Constant(I32, TO_ZERO)])
        near = builder.sitofp(value, vector(F32))
        back = builder.fptosi(near, vector(I32))
        beyond = builder.icmp_signed(">", self.size_of(back), self.size_of(value))
        return self.as_float(builder.add(self.float_bits(near), builder.sext(beyond, vector(I32))))

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c of binary64, rounded once."""
        kind = ir.FunctionType(a.type, [a.type] * 3)
        name = f"llvm.fma.v{LANES}f64"
        return self.builder.call(arrays.declared(self.builder, kind, name), [a, b, c])

    def sum_of_pairs(self, a: Value, b: Value) -> Value:
        """The sums of the products of both halves (int16) of lanes of 32 bits."""
        builder = self.builder
        for feature, name, parts in PAIRS:
            if has(feature):
                return self._by_parts(name, parts, self.halves(a), self.halves(b))
        halves = [
            [builder.ashr(x, constant(I32, 16)) for x in (builder.shl(y, constant(I32, 16)), y)]
            for y in (a, b)
        ]
        low, high = (builder.mul(x, y) for x, y in zip(*halves, strict=True))
        return builder.add(low, high)

    def _by_parts(self, name: str, parts: int, a: Value, b: Value) -> Value:
        """Apply an intrinsic of int16 pairs to each of `parts` equal parts of two vectors, and join."""
        count = 2 * LANES // parts
        kind = ir.FunctionType(vector(I32, count // 2), [vector(I16, count)] * 2)
        function = arrays.declared(self.builder, kind, name)
        results = []
        for i in range(parts):
            lanes = list(range(count * i, count * i + count))
            part = [x if parts == 1 else self.shuffle(x, lanes) for x in (a, b)]
            results.append(self.builder.call(function, part))
        return results[0] if parts == 1 else self.shuffle(results[0], list(range(LANES)), results[1])

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
        """Return whether any of the i1 lanes is set."""
        bits = self.builder.bitcast(lanes, ir.IntType(LANES))
        return self.builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
