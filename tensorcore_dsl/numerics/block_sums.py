# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code of the sums of a block: fused steps in binary32 and int32, and sums of integers.

A fused step is exact here in the usual range of exponents. A product of two elements has at most
22 bits, multiplication by a power of two is exact, conversion to int32 cuts off what is below the
last bit kept, and int32 holds the sums, or shows that it does not.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import arrays, primitive
from tensorcore_dsl.lowering.values import BOOLEAN, COUNT, Number, cast

from . import block_code as layout
from .block_code import BOTH, HIGH, LOW, Blocks, Group
from .vectors import F32, F64, I1, I16, I32, I64, LANES, Value, constant, vector

# A step is exact if its largest exponent E lies between these: 2.0**(F - E) and results are normal
# numbers, and products that are subnormal in binary32 are below the last bit kept.
LEAST, MOST = -96, 120
ROOM = 1 << 7  # below 2**31, so that rounding a sum to binary32 does not leave int32


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
        number = self.as_float(builder.or_(self.float_bits(value), sign))
        return number, builder.trunc(exponent, vector(I16))

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
                self.note(builder.icmp_signed("==", exponent, constant(I16, HIGH)))
                self.put(value, slot)
        return slots

    def largest(self, group: Group, first: Value, length: Value) -> list[Value]:
        """The largest exponents of the products of a step, by block."""
        builder, both = self.builder, BOTH * LANES
        slots = [self.variable(constant(I16, [2 * LOW] * both)) for _ in group.exponents_a]
        with self.fours(first, length) as four:
            for k in four:
                of_b = self.load(self.at(group.exponents_b, k, 16), vector(I16, 8))
                of_b = self.shuffle(of_b, list(range(8)) * 4)
                for slot, base in zip(slots, group.exponents_a, strict=True):
                    of_a = self.load(self.at(base, k, 2 * both), vector(I16, both))
                    self.put(self.larger(self.get(slot), builder.add(of_a, of_b)), slot)
        found = []
        for row, column in group.pairs():
            lanes = [8 * (lane // 4) + 4 * column + lane % 4 for lane in range(LANES)]
            found.append(builder.sext(self.shuffle(self.get(slots[row]), lanes), vector(I32)))
        return found

    def step(self, group: Group, first: Value, c: list[Value]) -> None:
        """One fused step: the accumulators in the slots `c` become the rounded sums."""
        builder = self.builder
        length, part, least = (
            self.setting(self.settings, layout.LENGTH),
            self.setting(self.settings, layout.PART),
            self.everywhere(self.settings, layout.LEAST_C),
        )
        bottom = self.everywhere(self.settings, layout.BOTTOM)
        aligned = self.everywhere(self.settings, layout.ALIGNED)
        before = [self.get(slot) for slot in c]
        ups, shifts, totals = [], [], []
        for largest, value in zip(self.largest(group, first, length), before, strict=True):
            exponent = self.larger(largest, self.exponents(value, least))
            some = builder.icmp_signed(">", exponent, constant(I32, LOW // 2))
            low = builder.icmp_signed("<", exponent, constant(I32, LEAST))
            high = builder.icmp_signed(">", exponent, constant(I32, MOST))
            self.note(builder.or_(high, builder.and_(some, low)))
            shifts.append(builder.sub(aligned, self.larger(exponent, bottom)))
            ups.append(self.power(shifts[-1]))
            term = builder.fptosi(builder.fmul(value, ups[-1]), vector(I32))
            totals.append(self.variable(term))
        self.add_terms(group, first, part, ups, totals)
        with self.over(builder.sub(builder.udiv(length, part), ir.Constant(I64, 1))) as number:
            start = builder.add(number, ir.Constant(I64, 1))
            start = builder.add(first, builder.mul(start, part))
            sums = [self.variable(constant(I32, 0)) for _ in totals]
            self.add_terms(group, start, part, ups, sums)
            for total, slot in zip(totals, sums, strict=True):
                self.add_checked(total, self.get(slot))
        for slot, total, shift in zip(c, totals, shifts, strict=True):
            self.put(self.rounded(self.get(total), builder.neg(shift)), slot)

    def add_terms(
        self, group: Group, first: Value, count: Value, ups: list[Value], sums: list[Value]
    ) -> None:
        """Add `count` products, cut to multiples of the last bit kept."""
        builder = self.builder
        with self.fours(first, count) as four:
            for k in four:
                of_a, of_b = self.numbers(group.a, group.b, k)
                for (i, j), slot, up in zip(group.pairs(), sums, ups, strict=True):
                    term = builder.fmul(builder.fmul(of_a[i], of_b[j]), up)
                    term = builder.fptosi(term, vector(I32))
                    self.put(builder.add(self.get(slot), term), slot)

    def add_checked(self, total: Value, more: Value) -> None:
        """Add to a total, and note lanes where the sum may not fit."""
        builder, one = self.builder, constant(I32, 1)
        half = builder.add(builder.ashr(self.get(total), one), builder.ashr(more, one))
        limit = (1 << 30) - ROOM
        shifted = builder.add(half, constant(I32, limit))
        self.note(builder.icmp_unsigned(">", shifted, constant(I32, 2 * limit)))
        self.put(builder.add(self.get(total), more), total)

    def rounded(self, total: Value, exponent: Value) -> Value:
        """What a step returns, total * 2**exponent: KEPT bits, towards zero, or the nearest f16."""
        builder = self.builder
        slot = self.variable(constant(F32, 0.0))
        nearest = self.flag(layout.NEAREST)
        with builder.if_else(nearest) as (to_half, to_zero):
            with to_half:
                wide = builder.sitofp(total, vector(F64))
                self.put(self.half(builder.fmul(wide, self.wide_power(exponent))), slot)
            with to_zero:
                cut = builder.sub(ir.Constant(I64, 23), self.setting(self.settings, layout.KEPT))
                cut = builder.trunc(cut, I32)
                mask = self.splat(builder.shl(ir.Constant(I32, -1), cut))
                kept = builder.and_(self.float_bits(self.truncated(total)), mask)
                self.put(builder.fmul(self.as_float(kept), self.power(exponent)), slot)
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

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        slots = self.accumulators(group.c)
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
            self.step(group, builder.mul(step, length), slots)
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

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        both = ir.FunctionType(vector(I32), [vector(I32)] * 2)
        saturating = arrays.declared(builder, both, f"llvm.sadd.sat.v{LANES}i32")
        added = builder.sitofp(self.everywhere(self.settings, layout.ADDED), vector(F32))
        # Two sums for each block, of the even and of the odd k: each waits for itself alone.
        starts = [added] * len(group.c), [constant(F32, 0.0)] * len(group.c)
        sums = [[self.variable(start) for start in some] for some in starts]
        depth = self.setting(self.settings, layout.DEPTH)
        with self.fours(ir.Constant(I64, 0), depth) as four:
            for number, k in enumerate(four):
                of_a, of_b = self.numbers(group.a, group.b, k)
                for (i, j), slot in zip(group.pairs(), sums[number % 2], strict=True):
                    self.put(self.fused("fmuladd", of_a[i], of_b[j], self.get(slot)), slot)
        saturate = self.flag(layout.SATURATE)
        result = []
        for even, odd, word in zip(*sums, group.c, strict=True):
            whole = builder.fptosi(builder.fadd(self.get(even), self.get(odd)), vector(I32))
            clamped = builder.call(saturating, [word, whole])
            result.append(builder.select(saturate, clamped, builder.add(word, whole)))
        return result


class ChainBlocks(Blocks):
    """Emitter of chains of fused multiply-adds in binary64, in ascending order of k."""

    word, number = I64, F64

    def decode(self, words: Value, shifts: Value, form: Value) -> tuple[Value]:
        return (self.as_float(words),)

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        sums = [self.variable(self.as_float(word)) for word in group.c]
        depth = self.setting(self.settings, layout.DEPTH)
        with self.fours(ir.Constant(I64, 0), depth) as four:
            for k in four:
                of_a, of_b = self.numbers(group.a, group.b, k)
                for (i, j), slot in zip(group.pairs(), sums, strict=True):
                    self.put(self.fused("fma", of_a[i], of_b[j], self.get(slot)), slot)
        for slot in sums:  # a NaN has bits that depend on those of the operands
            self.note(builder.fcmp_unordered("uno", self.get(slot), self.get(slot)))
        return [self.float_bits(self.get(slot)) for slot in sums]


# -- what compiled loops call ------------------------------------------------------------------


def _whole(builder: ir.IRBuilder, given: tuple[Any, ...]) -> list[Value]:
    """Operands as int64."""
    return [cast(builder, COUNT, x).value for x in given]


def decoder(kind: type[Blocks], spread: bool) -> Any:
    """A function that decodes an operand: see `Blocks.operand`; base to exponents."""

    @primitive
    def decode(builder: ir.IRBuilder, *given: Any) -> None:
        kind(builder).operand(spread, *_whole(builder, given))

    return decode


def multiplier(kind: type[Blocks]) -> Any:
    """A function that computes one product; true if it has to be computed otherwise.

    Its operands: va, ea, vb, eb; words, places and kinds of C, and of D; memory for one D; settings
    of the product, and of C.
    """

    @primitive
    def multiply(builder: ir.IRBuilder, *given: Any) -> Number:
        x = _whole(builder, given)
        emitter, c, d = kind(builder, *x[11:]), (x[4], x[5], x[6]), (x[7], x[8], x[9])
        return Number(BOOLEAN, emitter.over_groups(x[0:2], x[2:4], c, d, x[10]))

    return multiply
