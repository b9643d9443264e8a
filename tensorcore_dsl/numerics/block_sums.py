# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code of the sums of a band: fused steps in binary32 and int32, and sums of integers.

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
from .block_code import HIGH, LOW, Blocks, Group, Memory
from .vectors import F32, F64, I16, I32, I64, LANES, Value, constant, vector

BIAS = 127  # exponent bias of binary32
# A step is exact if its largest exponent E lies between these: 2.0**(F - E) and results are normal
# numbers, and products that are subnormal in binary32 are below the last bit kept.
MIN_EXPONENT, MAX_EXPONENT = -96, 120
DOWN, UP = -36, 100  # scales that leave E above the floors of all architectures, and 2.0**x normal
ROOM = 1 << 7  # distance from 2**31, so that rounding a sum to binary32 stays within int32


class FusedBlocks(Blocks):
    """Emitter of chains of fused steps, in binary32 and int32."""

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value, Value]:
        builder, hidden = self.builder, constant(I32, 1 << 23)
        code = builder.shl(words, ups)
        size = builder.and_(code, form[layout.MASK])
        field = builder.lshr(size, form[layout.DOWN])
        raised = form[layout.RAISED]
        # Without a hidden bit, add it and subtract it again. (The processor is slow to multiply
        # subnormal numbers.)
        normal = builder.icmp_unsigned(">=", field, hidden)
        value = builder.add(field, raised)
        low = builder.fsub(
            self.as_float(builder.add(value, hidden)), self.as_float(builder.add(raised, hidden))
        )
        value = builder.select(normal, value, self.float_bits(low))
        least = form[layout.MIN_EXPONENT]
        exponent = self.larger(builder.lshr(value, constant(I32, 23)), least)
        zero = builder.icmp_unsigned("==", size, constant(I32, 0))
        exponent = builder.select(zero, constant(I32, LOW), exponent)
        special = builder.icmp_unsigned(">=", size, form[layout.FIRST_SPECIAL])
        exponent = builder.select(special, constant(I32, HIGH), exponent)
        number = builder.or_(value, self.masked(code, 0x80000000))
        return self.as_float(number), exponent

    def exponents(self, value: Value, least: Value) -> Value:
        """Biased exponents of numbers, at least `least`; LOW for zeros."""
        builder = self.builder
        size = self.masked(self.float_bits(value), 0x7FFFFFFF)
        exponent = self.larger(builder.lshr(size, constant(I32, 23)), least)
        zero = builder.icmp_unsigned("==", size, constant(I32, 0))
        return builder.select(zero, constant(I32, LOW), exponent)

    def accumulators(self, group: Group) -> list[Value]:
        """Decode C, binary32 words or codes of a smaller format, into slots."""
        builder = self.builder
        single = self.flag(layout.SINGLE_C)
        slots = [self.variable(self.as_float(word)) for word in group.c]
        with builder.if_then(builder.not_(single)):
            up, form = self.splat(group.up), self.format(self.form_c)
            for word, slot in zip(group.c, slots, strict=True):
                value, exponent = self.decode(word, up, form)
                self.note(builder.icmp_signed("==", exponent, constant(I32, HIGH)))
                self.put(value, slot)
        return slots

    def largest(self, group: Group, first: Value, length: Value) -> list[Value]:
        """Largest exponents of the products of a step, by column, biased twice."""
        builder = self.builder
        slots = [self.variable(constant(I16, [2 * LOW] * 2 * LANES)) for _ in group.exponents_b]
        with self.fours(first, length) as quarter:
            for step in map(self.count, range(4)):
                k = builder.add(builder.mul(quarter, self.count(4)), step)
                at = self.at(group.exponents_a, k, 4 * LANES)
                of_a = self.halves(self.load(at, vector(I32)))
                for slot, base in zip(slots, group.exponents_b, strict=True):
                    of_b = self.halves(self.one(base, quarter, step, I32))
                    self.put(self.larger(self.get(slot), builder.add(of_a, of_b)), slot)
        both = [self.whole_lanes(self.get(slot)) for slot in slots]
        low = [builder.shl(x, constant(I32, 16)) for x in both]
        return [builder.ashr(x, constant(I32, 16)) for x in low + both]

    def step(self, group: Group, first: Value, c: list[Value]) -> None:
        """Execute one fused step: the accumulators in the slots `c` become the rounded sums."""
        builder = self.builder
        length, part, least = (
            self.setting(self.settings, layout.LENGTH),
            self.setting(self.settings, layout.PART),
            self.everywhere(self.settings, layout.MIN_C),
        )
        bottom = self.everywhere(self.settings, layout.BOTTOM)
        aligned = self.everywhere(self.settings, layout.ALIGNED)
        before = [self.get(slot) for slot in c]
        ups, downs, totals, exponents = [], [], [], []
        for largest, value in zip(self.largest(group, first, length), before, strict=True):
            exponent_c = builder.add(self.exponents(value, least), constant(I32, BIAS))
            exponents.append(self.larger(largest, exponent_c))
            shift = builder.sub(aligned, self.larger(exponents[-1], bottom))
            up = builder.shl(shift, constant(I32, 23))
            ups.append(self.as_float(up))
            downs.append(self.as_float(builder.sub(constant(I32, 2 * BIAS << 23), up)))
            term = builder.fptosi(builder.fmul(value, ups[-1]), vector(I32))
            totals.append(self.variable(term))
        self.note_range(exponents)
        self.add_terms(group, first, part, ups, totals)
        parts = self.setting(self.settings, layout.PARTS)
        with self.over(builder.sub(parts, self.count(1))) as number:
            start = builder.add(number, self.count(1))
            start = builder.add(first, builder.mul(start, part))
            sums = [self.variable(constant(I32, 0)) for _ in totals]
            self.add_terms(group, start, part, ups, sums)
            for total, slot in zip(totals, sums, strict=True):
                self.add_checked(total, self.get(slot))
        with builder.if_else(self.flag(layout.NEAREST)) as (to_half, to_zero):
            with to_half:
                for slot, total, down in zip(c, totals, downs, strict=True):
                    odd = self.to_odd(self.get(total))
                    self.put(self.half(builder.fmul(odd, down)), slot)
            with to_zero:
                cut = builder.sub(self.count(23), self.setting(self.settings, layout.KEPT))
                mask = self.splat(builder.shl(ir.Constant(I32, -1), builder.trunc(cut, I32)))
                for slot, total, down in zip(c, totals, downs, strict=True):
                    truncated = builder.and_(self.float_bits(self.truncated(self.get(total))), mask)
                    self.put(builder.fmul(self.as_float(truncated), down), slot)

    def note_range(self, exponents: list[Value]) -> None:
        """Mark lanes whose largest exponent is neither the exponent of zero nor in MIN_EXPONENT to
        MAX_EXPONENT.
        """
        builder, zeros = self.builder, constant(I32, LOW // 2)
        highest = lowest = None
        for exponent in exponents:
            some = builder.sub(exponent, zeros)  # unsigned: those of zeros are the largest
            highest = exponent if highest is None else self.larger(highest, exponent)
            lowest = some if lowest is None else self.lower_unsigned(lowest, some)
        low = builder.icmp_unsigned("<", lowest, constant(I32, MIN_EXPONENT + 2 * BIAS - LOW // 2))
        high = builder.icmp_signed(">", highest, constant(I32, MAX_EXPONENT + 2 * BIAS))
        self.note(builder.or_(high, low))

    def add_terms(
        self, group: Group, first: Value, count: Value, ups: list[Value], sums: list[Value]
    ) -> None:
        """Add `count` products, truncated to multiples of the last bit kept."""
        builder = self.builder
        with self.fours(first, count) as quarter:
            for step in map(self.count, range(4)):
                of_a, of_b = self.numbers(group, quarter, step)
                for b, slot, up in zip(of_b, sums, ups, strict=True):
                    term = builder.fmul(builder.fmul(of_a, b), up)
                    term = builder.fptosi(term, vector(I32))
                    self.put(builder.add(self.get(slot), term), slot)

    def add_checked(self, total: Value, more: Value) -> None:
        """Add to a total, and mark lanes whose sum may not fit."""
        builder, one = self.builder, constant(I32, 1)
        half = builder.add(builder.ashr(self.get(total), one), builder.ashr(more, one))
        limit = (1 << 30) - ROOM
        shifted = builder.add(half, constant(I32, limit))
        self.note(builder.icmp_unsigned(">", shifted, constant(I32, 2 * limit)))
        self.put(builder.add(self.get(total), more), total)

    def to_odd(self, total: Value) -> Value:
        """Convert int32 to binary32, rounded to odd, so that a later rounding to fewer bits is right."""
        builder = self.builder
        near = self.truncated(total)
        lost = builder.icmp_signed("!=", builder.fptosi(near, vector(I32)), total)
        return self.as_float(builder.or_(self.float_bits(near), builder.zext(lost, vector(I32))))

    def narrow_to_odd(self, value: Value) -> Value:
        """Convert binary64 to binary32, rounded to odd."""
        builder, bits = self.builder, self.float_bits(value)
        lost = builder.icmp_unsigned("!=", self.masked(bits, (1 << 29) - 1), constant(I64, 0))
        last = builder.shl(builder.zext(lost, vector(I64)), constant(I64, 29))
        truncated = builder.or_(self.masked(bits, -(1 << 29)), last)
        return builder.fptrunc(self.as_float(truncated), vector(F32))

    def half(self, value: Value) -> Value:
        """Round binary32 to the nearest f16, ties to even, as binary32; zeros become +0."""
        builder = self.builder
        bits = self.float_bits(value)
        field = self.larger(self.masked(bits, 0xFF << 23), constant(I32, (BIAS - 14) << 23))
        # 1.5 * 2**(e + 13) has the unit in the last place of an f16 with the exponent e.
        big = self.as_float(builder.add(field, constant(I32, (13 << 23) + (1 << 22))))
        near = builder.fsub(builder.fadd(value, big), big)
        size = self.as_float(self.masked(bits, 0x7FFFFFFF))
        infinite = builder.fcmp_ordered(">=", size, constant(F32, 65520.0))
        infinity = builder.or_(self.masked(bits, 0x80000000), constant(I32, 0xFF << 23))
        return builder.select(infinite, self.as_float(infinity), near)

    def finished(self, value: Value, late: Value) -> Value:
        """Bits of D: add C late, and convert the sum, if the product requires it."""
        builder = self.builder
        slot = self.variable(constant(I32, 0))
        is_late = self.flag(layout.LATE)
        single = self.flag(layout.SINGLE_D)
        with builder.if_else(single) as (to_single, to_half):
            with to_single:
                added = self.variable(value)
                with builder.if_then(is_late):
                    self.put(builder.fadd(value, late), added)
                self.put(self.float_bits(self.get(added)), slot)
            with to_half:
                wide = vector(F64)
                exact = self.variable(value)
                with builder.if_then(is_late):
                    whole = builder.fadd(builder.fpext(value, wide), builder.fpext(late, wide))
                    self.put(self.narrow_to_odd(whole), exact)
                self.put(self.half_bits(self.get(exact)), slot)
        return self.get(slot)

    def half_bits(self, value: Value) -> Value:
        """Round to the bits of the nearest f16; CONVERT keeps the sign of numbers that become zero."""
        builder = self.builder
        bits = self.float_bits(self.half(value))
        size = self.masked(bits, 0x7FFFFFFF)
        low = builder.fmul(self.as_float(size), constant(F32, float(1 << 24)))
        low = builder.fptosi(low, vector(I32))
        high = builder.sub(builder.lshr(size, constant(I32, 13)), constant(I32, 112 << 10))
        over = builder.icmp_signed(">", high, constant(I32, 31 << 10))
        high = builder.select(over, constant(I32, 31 << 10), high)
        normal = builder.icmp_signed(">=", size, constant(I32, (BIAS - 14) << 23))
        sign = builder.lshr(self.masked(bits, 0x80000000), constant(I32, 16))
        sign_of_zero = builder.lshr(self.float_bits(value), constant(I32, 16))
        convert = self.everywhere(self.settings, layout.CONVERT)
        sign_of_zero = builder.and_(self.masked(sign_of_zero, 0x8000), builder.neg(convert))
        return builder.or_(builder.select(normal, high, low), builder.or_(sign, sign_of_zero))

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        slots = self.accumulators(group)
        late = [self.variable(constant(F32, 0.0)) for _ in slots]
        with builder.if_then(self.flag(layout.LATE)):
            for slot, late_slot in zip(slots, late, strict=True):
                value = self.get(slot)
                beyond = self.exponents(value, constant(I32, BIAS))
                self.note(builder.icmp_signed(">", beyond, constant(I32, 2 * BIAS)))
                self.put(value, late_slot)
                self.put(constant(F32, 0.0), slot)
        scales = [self.variable(constant(I32, 0)) for _ in slots]
        with builder.if_then(self.flag(layout.SCALED)):
            self.read_scales(group, scales)
            for slot, scale in zip(slots, scales, strict=True):
                self.put(self.scaled(self.get(slot), builder.neg(self.get(scale))), slot)
        length = self.setting(self.settings, layout.LENGTH)
        with self.over(self.setting(self.settings, layout.STEPS)) as step:
            self.step(group, builder.mul(step, length), slots)
        with builder.if_then(self.flag(layout.SCALED)):
            for slot, scale in zip(slots, scales, strict=True):
                self.put(self.scaled(self.get(slot), self.get(scale)), slot)
        return [
            self.finished(self.get(slot), self.get(late_slot))
            for slot, late_slot in zip(slots, late, strict=True)
        ]

    def read_scales(self, group: Group, scales: list[Value]) -> None:
        """Exponents of 2 that scale the products of each column, from biased exponents.

        They are equal for all k, so the code scales C instead, and scales D back.
        """
        builder, rows = self.builder, self.load(group.scales[0], vector(I32))
        rows = self.shuffle(rows, [4 * (lane % 4) + lane // 4 for lane in range(LANES)])
        for i, slot in enumerate(scales):
            column = self.splat(self.load(self.at(group.scales[1], self.count(2 * i)), I32))
            for x in (rows, column):
                self.note(builder.icmp_signed("==", x, constant(I32, 255)))  # NaN
            scale = builder.sub(builder.add(rows, column), constant(I32, 2 * BIAS))
            beyond = builder.sub(scale, constant(I32, DOWN))
            self.note(builder.icmp_unsigned(">", beyond, constant(I32, UP - DOWN)))
            self.put(scale, slot)

    def scaled(self, value: Value, scale: Value) -> Value:
        """Multiply by 2.0**scale; mark lanes whose result is neither normal nor zero."""
        builder, bits = self.builder, self.float_bits(value)
        size = self.masked(bits, 0x7FFFFFFF)
        field = builder.lshr(size, constant(I32, 23))
        normal = [
            builder.icmp_unsigned("<", builder.sub(x, constant(I32, 1)), constant(I32, 254))
            for x in (field, builder.add(field, scale))
        ]
        wrong = builder.not_(builder.and_(*normal))
        some = builder.icmp_unsigned("!=", size, constant(I32, 0))
        self.note(builder.and_(some, wrong))
        moved = builder.add(bits, builder.shl(scale, constant(I32, 23)))
        return self.as_float(builder.select(some, moved, bits))


class IntegerBlocks(Blocks):
    """Emitter of products of integers of at most 8 bits; a number is two integers of 16 bits."""

    number = I32

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value]:
        builder = self.builder
        down, sign, mask = (self.halves(form[x]) for x in (layout.DOWN, layout.SIGNED, layout.MASK))
        code = builder.shl(builder.and_(self.halves(words), mask), self.halves(ups))
        code = builder.xor(builder.lshr(code, down), sign)
        return (self.whole_lanes(builder.sub(code, sign)),)

    def products(self, a: Value, b: Value) -> Value:
        """Sums of the products of the elements of two numbers."""
        return self.sum_of_pairs(a, b)

    def sums(self, group: Group) -> list[Value]:
        """Sums of all products, by column."""
        slots = [self.variable(constant(I32, 0)) for _ in group.b]
        with self.fours(self.count(0), self.setting(self.settings, layout.DEPTH)) as quarter:
            for step in map(self.count, range(4)):
                of_a, of_b = self.numbers(group, quarter, step)
                for b, slot in zip(of_b, slots, strict=True):
                    self.put(self.builder.add(self.get(slot), self.products(of_a, b)), slot)
        return [self.get(slot) for slot in slots]

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        both = ir.FunctionType(vector(I32), [vector(I32)] * 2)
        saturating = arrays.declared(builder, both, f"llvm.sadd.sat.v{LANES}i32")
        saturate = self.flag(layout.SATURATE)
        return [
            builder.select(saturate, builder.call(saturating, [c, total]), builder.add(c, total))
            for c, total in zip(group.c, self.sums(group), strict=True)
        ]


class BitBlocks(IntegerBlocks):
    """Emitter of products of bits: combine 32 bits of a number, and count ones."""

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value]:
        return (self.builder.and_(words, form[layout.MASK]),)

    def products(self, a: Value, b: Value) -> Value:
        builder = self.builder
        exclusive = builder.neg(self.everywhere(self.settings, layout.XOR))
        either = builder.and_(builder.xor(a, b), exclusive)
        common = builder.and_(builder.and_(a, b), builder.not_(exclusive))
        kind = ir.FunctionType(vector(I32), [vector(I32)])
        count = arrays.declared(builder, kind, f"llvm.ctpop.v{LANES}i32")
        return builder.call(count, [builder.or_(either, common)])


class ChainBlocks(Blocks):
    """Emitter of chains of fused multiply-adds in binary64, rounded to nearest, in ascending order of k."""

    word, number = I64, F64

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value]:
        return (self.as_float(words),)

    def group(self, group: Group) -> list[Value]:
        builder = self.builder
        sums = [self.variable(self.as_float(word)) for word in group.c]
        with self.fours(self.count(0), self.setting(self.settings, layout.DEPTH)) as quarter:
            for step in map(self.count, range(4)):
                of_a, of_b = self.numbers(group, quarter, step)
                for b, slot in zip(of_b, sums, strict=True):
                    self.put(self.fused(of_a, b, self.get(slot)), slot)
        for slot in sums:  # bits of a NaN depend on the operands
            self.note(builder.fcmp_unordered("uno", self.get(slot), self.get(slot)))
        return [self.float_bits(self.get(slot)) for slot in sums]


# -- entry points of compiled loops ------------------------------------------------------------------


def _whole(builder: ir.IRBuilder, numbers: tuple[Any, ...]) -> list[Value]:
    """Convert operands to int64."""
    return [cast(builder, COUNT, x).value for x in numbers]


def decoder(kind: type[Blocks], first: bool) -> Any:
    """Make the function that decodes A (`first`) or B, see `Blocks.first` and `Blocks.second`. Its
    operands: the four fields of `Memory`, then form to exponents."""

    @primitive
    def decode(builder: ir.IRBuilder, *arguments: Any) -> None:
        x = _whole(builder, arguments)
        emitter = kind(builder)
        (emitter.first if first else emitter.second)(Memory(*x[:4]), *x[4:])

    return decode


def multiplier(kind: type[Blocks], two_columns: bool) -> Any:
    """Make the function that computes one product; it returns true if blocks cannot compute it.

    Its operands: va, ea, vb, eb; the fields of `Memory` of C, and of D; memory for one D; settings of
    the product, and of C; the address of the scales of all rows, then of all columns.
    """

    @primitive
    def multiply(builder: ir.IRBuilder, *arguments: Any) -> Number:
        x = _whole(builder, arguments)
        emitter = kind(builder, x[13], x[14], two_columns)
        c, d = Memory(*x[4:8]), Memory(*x[8:12])
        return Number(BOOLEAN, emitter.over_groups(x[0:2], x[2:4], c, d, x[12], x[15]))

    return multiply
