# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code of the sums of a block: fused steps in binary32 and int32, and sums of integers.

A fused step is exact here in the usual range of exponents. A product of two elements has at most
22 bits, multiplication by a power of two is exact, conversion to int32 cuts off what is below the
last bit kept, and int32 and binary64 hold the sums.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import block_code as layout
from .block_code import HIGH, LOW, Blocks
from .vectors import F32, F64, I1, I32, I64, LANES, Value, constant, vector

# A step is exact if its largest exponent E lies between these: 2.0**(F - E) and results are normal
# numbers, and products that are subnormal in binary32 are below the last bit kept.
LEAST, MOST = -96, 120

inlined: Any = intrinsic


class FusedBlocks(Blocks):
    """Emitter of chains of fused steps, in binary32 and int32."""

    def decode(self, words: Value, shifts: Value, form: Value) -> tuple[Value, Value]:
        builder = self.builder
        code = builder.lshr(words, shifts)
        high = builder.sub(constant(I32, 32), self.everywhere(form, layout.BITS))
        sign = self.masked(builder.shl(code, high), 0x80000000)
        size = builder.lshr(builder.shl(code, builder.add(high, constant(I32, 1))),
                            builder.add(high, constant(I32, 1)))  # fmt: skip
        value = self.as_float(builder.shl(size, self.everywhere(form, layout.SHIFT_UP)))
        value = builder.fmul(value, self.power(self.everywhere(form, layout.FACTOR)))
        special = builder.icmp_unsigned(">=", size, self.everywhere(form, layout.FIRST_SPECIAL))
        exponent = self.exponents(value, self.everywhere(form, layout.LEAST_EXPONENT))
        exponent = builder.select(special, constant(I32, HIGH), exponent)
        return self.as_float(builder.or_(self.float_bits(value), sign)), exponent

    def exponents(self, value: Value, least: Value) -> Value:
        """The exponents of numbers, at least `least`; LOW for zeros."""
        builder = self.builder
        size = self.masked(self.float_bits(value), 0x7FFFFFFF)
        field = builder.lshr(size, constant(I32, 23))
        exponent = self.larger(builder.sub(field, constant(I32, 127)), least)
        zero = builder.icmp_unsigned("==", size, constant(I32, 0))
        return builder.select(zero, constant(I32, LOW), exponent)

    def accumulators(self, words: list[Value]) -> list[Value]:
        """Slots with the values of C, given as binary32 words, or codes of a smaller format."""
        builder = self.builder
        single = self.flag(layout.SINGLE_C)
        slots = [self.variable(self.as_float(word)) for word in words]
        with builder.if_then(builder.not_(single)):
            for word, slot in zip(words, slots, strict=True):
                value, exponent = self.decode(word, constant(I32, 0), self.form_c)
                self.note(builder.icmp_signed("==", exponent, constant(I32, HIGH)))
                self.put(value, slot)
        return slots

    def step(self, first: Value, a: list[Value], b: list[list[Value]], c: list[Value]) -> None:
        """One fused step: the accumulators in the slots `c` become the rounded sums."""
        builder = self.builder
        length, part = (
            self.setting(self.settings, layout.LENGTH),
            self.setting(self.settings, layout.PART),
        )
        least = self.everywhere(self.settings, layout.LEAST_C)
        before = [self.get(slot) for slot in c]
        largest = [self.variable(self.exponents(value, least)) for value in before]
        with self.elements(first, length, a[1], [e for _, e in b], I32) as found:
            for of_a, of_b in found:
                for slot, exponent in zip(largest, of_b, strict=True):
                    self.put(self.larger(self.get(slot), builder.add(of_a, exponent)), slot)
        ups, downs, totals = [], [], []
        bottom = self.everywhere(self.settings, layout.BOTTOM)
        aligned = self.everywhere(self.settings, layout.ALIGNED)
        for slot, value in zip(largest, before, strict=True):
            exponent = self.get(slot)
            some = builder.icmp_signed(">", exponent, constant(I32, LOW // 2))
            low = builder.icmp_signed("<", exponent, constant(I32, LEAST))
            high = builder.icmp_signed(">", exponent, constant(I32, MOST))
            self.note(builder.or_(high, builder.and_(some, low)))
            shift = builder.sub(aligned, self.larger(exponent, bottom))
            ups.append(self.power(shift))
            downs.append(self.wide_power(builder.neg(shift)))
            term = builder.fptosi(builder.fmul(value, ups[-1]), vector(I32))
            totals.append(self.variable(builder.sitofp(term, vector(F64))))
        with self.over(builder.udiv(length, part)) as number:
            start = builder.add(first, builder.mul(number, part))
            sums = [self.variable(constant(I32, 0)) for _ in b]
            with self.elements(start, part, a[0], [v for v, _ in b], F32) as found:
                for of_a, of_b in found:
                    for slot, up, value in zip(sums, ups, of_b, strict=True):
                        term = builder.fmul(builder.fmul(of_a, value), up)
                        term = builder.fptosi(term, vector(I32))
                        self.put(builder.add(self.get(slot), term), slot)
            for total, slot in zip(totals, sums, strict=True):
                wide = builder.sitofp(self.get(slot), vector(F64))
                self.put(builder.fadd(self.get(total), wide), total)
        for slot, total, down in zip(c, totals, downs, strict=True):
            self.put(self.rounded(builder.fmul(self.get(total), down)), slot)

    def rounded(self, value: Value) -> Value:
        """The result of a step: KEPT bits, towards zero, or the nearest number of f16."""
        builder = self.builder
        slot = self.variable(constant(F32, 0.0))
        nearest = self.flag(layout.NEAREST)
        with builder.if_else(nearest) as (to_half, to_zero):
            with to_half:
                self.put(self.half(value), slot)
            with to_zero:
                cut = builder.sub(ir.Constant(I64, 52), self.setting(self.settings, layout.KEPT))
                mask = self.splat(builder.shl(ir.Constant(I64, -1), cut))
                kept = self.as_float(builder.and_(self.float_bits(value), mask))
                self.put(builder.fptrunc(kept, vector(F32)), slot)
        return self.get(slot)

    def half(self, value: Value) -> Value:
        """The nearest f16 of a binary64 number, ties to even; zeros become +0."""
        builder = self.builder
        bits = self.float_bits(value)
        field = self.larger(self.masked(bits, 0x7FF << 52), constant(I64, (1023 - 14) << 52))
        # The unit in the last place of 1.5 * 2**(e + 42) is that of an f16 with the exponent e.
        big = self.as_float(builder.add(field, constant(I64, (42 << 52) + (1 << 51))))
        near = builder.fsub(builder.fadd(value, big), big)
        size = self.as_float(self.masked(bits, (1 << 63) - 1))
        infinite = builder.fcmp_ordered(">=", size, constant(F64, 65520.0))
        sign = self.masked(bits, -(1 << 63))
        infinity = self.as_float(builder.or_(sign, constant(I64, 0x7FF << 52)))
        return builder.fptrunc(builder.select(infinite, infinity, near), vector(F32))

    def finished(self, value: Value, late: Value) -> Value:
        """The bits of D: C is added late, and the sum converted, where the product asks for it."""
        builder = self.builder
        slot = self.variable(constant(I32, 0))
        is_late = self.flag(layout.LATE)
        single = self.flag(layout.SINGLE_D)
        added = self.variable(value)
        with builder.if_then(is_late):
            self.put(builder.fadd(value, late), added)
        with builder.if_else(single) as (to_single, to_half):
            with to_single:
                self.put(self.float_bits(self.get(added)), slot)
            with to_half:
                wide = vector(F64)
                exact = self.variable(builder.fpext(value, wide))
                with builder.if_then(is_late):
                    whole = builder.fadd(builder.fpext(value, wide), builder.fpext(late, wide))
                    self.put(whole, exact)
                self.put(self.half_bits(self.get(exact)), slot)
        return self.get(slot)

    def half_bits(self, value: Value) -> Value:
        """The bits of the nearest f16; CONVERT keeps the sign of numbers that become zero."""
        builder = self.builder
        bits = self.float_bits(self.half(value))
        size = self.masked(bits, 0x7FFFFFFF)
        low = builder.fmul(self.as_float(size), constant(F32, float(1 << 24)))
        low = builder.fptosi(low, vector(I32))
        high = builder.sub(builder.lshr(size, constant(I32, 13)), constant(I32, 112 << 10))
        over = builder.icmp_signed(">", high, constant(I32, 31 << 10))
        high = builder.select(over, constant(I32, 31 << 10), high)
        normal = builder.icmp_signed(">=", size, constant(I32, (127 - 14) << 23))
        sign = builder.lshr(self.masked(bits, 0x80000000), constant(I32, 16))
        given = builder.trunc(builder.lshr(self.float_bits(value), constant(I64, 48)), vector(I32))
        convert = self.everywhere(self.settings, layout.CONVERT)
        given = builder.and_(self.masked(given, 0x8000), builder.neg(convert))
        return builder.or_(builder.select(normal, high, low), builder.or_(sign, given))

    def block(self, a: list[Value], b: list[list[Value]], c: list[Value]) -> list[Value]:
        builder = self.builder
        slots = self.accumulators(c)
        late = [self.variable(constant(F32, 0.0)) for _ in slots]
        with builder.if_then(self.flag(layout.LATE)):
            for slot, other in zip(slots, late, strict=True):
                value = self.get(slot)
                self.note(
                    builder.icmp_signed(
                        ">", self.exponents(value, constant(I32, 0)), constant(I32, 127)
                    )
                )
                self.put(value, other)
                self.put(constant(F32, 0.0), slot)
        length = self.setting(self.settings, layout.LENGTH)
        with self.over(builder.udiv(self.setting(self.settings, layout.DEPTH), length)) as step:
            self.step(builder.mul(step, length), a, b, slots)
        return [
            self.finished(self.get(slot), self.get(other))
            for slot, other in zip(slots, late, strict=True)
        ]


class ExactBlocks(Blocks):
    """Emitter of integer products: exact sums in binary32, added to C in int32."""

    def decode(self, words: Value, shifts: Value, form: Value) -> tuple[Value]:
        """Values are SCALE times the code plus OFFSET, in halves."""
        builder = self.builder
        code = builder.lshr(words, shifts)
        high = builder.sub(constant(I32, 32), self.everywhere(form, layout.BITS))
        code = builder.shl(code, high)
        signed = builder.trunc(self.setting(form, layout.SIGNED), I1)
        code = builder.select(signed, builder.ashr(code, high), builder.lshr(code, high))
        code = builder.mul(code, self.everywhere(form, layout.SCALE))
        code = builder.add(code, self.everywhere(form, layout.OFFSET))
        return (builder.fmul(builder.sitofp(code, vector(F32)), constant(F32, 0.5)),)

    def block(self, a: list[Value], b: list[list[Value]], c: list[Value]) -> list[Value]:
        builder = self.builder
        kind = vector(F32)
        saturating = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(vector(I32), [vector(I32)] * 2),
            f"llvm.sadd.sat.v{LANES}i32",
        )
        added = builder.sitofp(self.everywhere(self.settings, layout.ADDED), kind)
        sums = [self.variable(added) for _ in b]
        depth = self.setting(self.settings, layout.DEPTH)
        with self.elements(ir.Constant(I64, 0), depth, a[0], [x[0] for x in b], F32) as found:
            for of_a, of_b in found:
                for slot, value in zip(sums, of_b, strict=True):
                    self.put(self.fused("fmuladd", of_a, value, self.get(slot)), slot)
        saturate = self.flag(layout.SATURATE)
        result = []
        for slot, word in zip(sums, c, strict=True):
            whole = builder.fptosi(self.get(slot), vector(I32))
            clamped = builder.call(saturating, [word, whole])
            result.append(builder.select(saturate, clamped, builder.add(word, whole)))
        return result


class ChainBlocks(Blocks):
    """Emitter of chains of fused multiply-adds in binary64, in ascending order of k."""

    word, number = I64, F64

    def decode(self, words: Value, shifts: Value, form: Value) -> tuple[Value]:
        return (self.as_float(words),)

    def block(self, a: list[Value], b: list[list[Value]], c: list[Value]) -> list[Value]:
        builder = self.builder
        sums = [self.variable(self.as_float(word)) for word in c]
        depth = self.setting(self.settings, layout.DEPTH)
        with self.elements(ir.Constant(I64, 0), depth, a[0], [x[0] for x in b], F64) as found:
            for of_a, of_b in found:
                for slot, value in zip(sums, of_b, strict=True):
                    self.put(self.fused("fma", of_a, value, self.get(slot)), slot)
        for slot in sums:  # a NaN has bits that depend on those of the operands
            self.note(builder.fcmp_unordered("uno", self.get(slot), self.get(slot)))
        return [self.float_bits(self.get(slot)) for slot in sums]


# -- what compiled loops call ------------------------------------------------------------------


def decoder(kind: type[Blocks], spread: bool) -> Any:
    """An intrinsic that decodes an operand: see `Blocks.operand`; all arguments are int64."""

    @inlined
    def decode(
        typing: Any, base: Any, places: Any, kinds: Any, count: Any, form: Any, values: Any,
        exponents: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            kind(builder).operand(spread, *given)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return decode


def multiplier(kind: type[Blocks]) -> Any:
    """An intrinsic that computes one product; true if it has to be computed otherwise."""

    @inlined
    def multiply(
        typing: Any, va: Any, ea: Any, vb: Any, eb: Any, c: Any, places_c: Any, kinds_c: Any,
        d: Any, places_d: Any, kinds_d: Any, settings: Any, form_c: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            emitter = kind(builder, *given[10:])
            emitter.over_blocks(given[0:2], given[2:4], given[4:7], given[7:10])
            wrong = builder.icmp_signed("!=", emitter.get(emitter.wrong), constant(I32, 0))
            return emitter.any(wrong)

        return types.boolean(*[types.int64] * 12), codegen

    return multiply
