# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code of sums of scaled groups of 4-bit elements.

The sum of a group is an integer in units of 1/4. int32 holds it, also multiplied by two scales.
Aligned sums are integers below 2**50, which binary64 holds.
"""

from __future__ import annotations

from llvmlite import ir

from tensorcore_dsl.lowering import arrays

from . import block_code as layout
from .block_code import LOW, Group
from .block_sums import BIAS, MAX_EXPONENT, IntegerBlocks
from .vectors import F32, F64, I16, I32, I64, LANES, Value, constant, vector

MAX_GROUPS = 8  # groups of one product
ROOM = 16  # sums of all groups are below 2.0**ROOM times their largest scale
FINE = 3  # fraction bits of scales of type ue4m3; those of ue8m0 have none


class GroupedBlocks(IntegerBlocks):
    """Emitter of exact sums of groups of e2m1, which are scaled, aligned, truncated and added."""

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value]:
        """Decode elements to twice their values, as int16."""
        builder, zero, one = self.builder, constant(I16, (0,) * 32), constant(I16, (1,) * 32)
        code = builder.and_(self.halves(words), self.halves(form[layout.MASK]))
        code = builder.shl(code, self.halves(ups))
        field = builder.lshr(builder.shl(code, one), constant(I16, (14,) * 32))
        tail = builder.and_(builder.lshr(code, constant(I16, (12,) * 32)), one)
        normal = builder.zext(builder.icmp_unsigned("!=", field, zero), zero.type)
        significand = builder.or_(tail, builder.shl(normal, one))
        size = builder.lshr(builder.shl(significand, field), normal)
        sign = builder.ashr(code, constant(I16, (15,) * 32))
        return (self.whole_lanes(builder.sub(builder.xor(size, sign), sign)),)

    def sizes(self, number: Value) -> Value:
        """Absolute values of both halves."""
        builder, halves = self.builder, self.halves(number)
        negative = builder.icmp_signed("<", halves, constant(I16, (0,) * 32))
        return self.whole_lanes(builder.select(negative, builder.neg(halves), halves))

    def scale(self, codes: Value, fine: Value) -> tuple[Value, Value]:
        """Decode scales to integer significands and exponents of 2; mark lanes with NaN."""
        builder, last = self.builder, (1 << FINE) - 1
        nan = builder.select(fine, constant(I32, 0x7F), constant(I32, 0xFF))
        self.note(builder.icmp_unsigned("==", builder.and_(codes, nan), nan))
        field = self.masked(builder.lshr(codes, constant(I32, FINE)), 15)
        normal = builder.icmp_unsigned("!=", field, constant(I32, 0))
        hidden = builder.shl(builder.zext(normal, vector(I32)), constant(I32, FINE))
        significand = builder.or_(self.masked(codes, last), hidden)
        exponent = builder.sub(self.larger(field, constant(I32, 1)), constant(I32, 7 + FINE))
        return (
            builder.select(fine, significand, constant(I32, 1)),
            builder.select(fine, exponent, builder.sub(codes, constant(I32, 127))),
        )

    def exact(self, group: Group, number: Value) -> list[tuple[Value, Value]]:
        """Sums of a group by column, in units of 1/4, and sums of absolute values."""
        builder, count = self.builder, self.setting(self.settings, layout.PART)
        slots = [[self.variable(constant(I32, 0)) for _ in range(2)] for _ in group.b]
        with self.fours(builder.mul(number, count), count) as quarter:
            for step in map(self.count, range(4)):
                of_a, of_b = self.numbers(group, quarter, step)
                for b, pair in zip(of_b, slots, strict=True):
                    both = self.products(of_a, b), self.products(self.sizes(of_a), self.sizes(b))
                    for slot, terms in zip(pair, both, strict=True):
                        self.put(builder.add(self.get(slot), terms), slot)
        return [(self.get(sums), self.get(sizes)) for sums, sizes in slots]

    def scales(self, group: Group, number: Value) -> list[tuple[Value, Value]]:
        """Products of the scales of A and B of a group by column: significand and exponent."""
        builder = self.builder
        bands, columns, parts, steps = (
            self.setting(self.settings, x) for x in (layout.BANDS, layout.COLUMNS, layout.PARTS, layout.STEPS)
        )
        fine = self.flag(layout.FINE_SCALES)
        part = builder.udiv(builder.mul(number, parts), steps)
        m, n = builder.mul(bands, self.count(LANES)), builder.mul(columns, self.count(4))
        rows = self.load(self.at(group.scales[0], builder.mul(part, m)), vector(I32))
        rows = self.shuffle(rows, [4 * (lane % 4) + lane // 4 for lane in range(LANES)])
        of_rows = self.scale(rows, fine)
        rows_between = builder.mul(builder.sub(parts, self.count(1)), m)  # scales of rows in between
        first = self.at(group.scales[1], builder.add(rows_between, builder.mul(part, n)))
        products = []
        for i in range(len(group.b)):
            column = self.splat(self.load(self.at(first, self.count(2 * i)), I32))
            of_column = self.scale(column, fine)
            products.append((builder.mul(of_rows[0], of_column[0]), builder.add(of_rows[1], of_column[1])))
        return products

    def group(self, group: Group) -> list[Value]:
        builder, columns = self.builder, len(group.b)
        steps = self.setting(self.settings, layout.STEPS)
        terms, exponents = (self.room(vector(I32), MAX_GROUPS * columns) for _ in range(2))
        bottom = self.everywhere(self.settings, layout.BOTTOM)
        largest = [self.variable(self.larger(self.exponent(c), bottom)) for c in group.c]
        with self.over(steps) as number:
            exact, scales = self.exact(group, number), self.scales(group, number)
            for i, ((total, some), (scale, exponent)) in enumerate(zip(exact, scales, strict=True)):
                alive = builder.and_(*(builder.icmp_signed("!=", x, constant(I32, 0)) for x in (some, scale)))
                at = builder.add(builder.mul(number, self.count(columns)), self.count(i))
                # The unit is 1/4 of a product of two significands with FINE fraction bits each.
                self.store(builder.mul(total, scale), self.at(terms, at, self.vector_bytes))
                self.store(exponent, self.at(exponents, at, self.vector_bytes))
                raised = builder.select(alive, exponent, constant(I32, LOW))
                # `scale` returns exponents that are FINE too low for fine scales.
                raised = builder.add(raised, self.lowered())
                self.put(self.larger(self.get(largest[i]), raised), largest[i])
        results = []
        for i, (word, slot) in enumerate(zip(group.c, largest, strict=True)):
            self.note(builder.icmp_signed(">", self.get(slot), constant(I32, MAX_EXPONENT - ROOM)))
            shift = builder.sub(self.everywhere(self.settings, layout.ALIGNED), self.get(slot))
            c = builder.fpext(self.as_float(word), vector(F64))
            total = self.variable(self.cut(c, shift))
            with self.over(steps) as number:
                at = builder.add(builder.mul(number, self.count(columns)), self.count(i))
                term = self.load(self.at(terms, at, self.vector_bytes), vector(I32))
                exponent = self.load(self.at(exponents, at, self.vector_bytes), vector(I32))
                exponent = builder.sub(builder.add(exponent, shift), constant(I32, 2))
                term = self.cut(builder.sitofp(term, vector(F64)), exponent)
                self.put(builder.fadd(self.get(total), term), total)
            down = self.power(builder.neg(shift))
            results.append(self.single(builder.fmul(self.get(total), down)))
        return results

    def lowered(self) -> Value:
        """Correction of the exponents of two scales for the fraction bits of their significands."""
        low = constant(I32, 2 * FINE), constant(I32, 0)
        return self.builder.select(self.flag(layout.FINE_SCALES), *low)

    def exponent(self, word: Value) -> Value:
        """Exponent of a binary32 number; LOW for zeros. Mark infinities and NaN."""
        builder, size = self.builder, self.masked(word, 0x7FFFFFFF)
        field = builder.lshr(size, constant(I32, 23))
        self.note(builder.icmp_unsigned("==", field, constant(I32, 255)))
        exponent = builder.sub(self.larger(field, constant(I32, 1)), constant(I32, BIAS))
        zero = builder.icmp_unsigned("==", size, constant(I32, 0))
        return builder.select(zero, constant(I32, LOW), exponent)

    def power(self, exponent: Value) -> Value:
        """2.0**exponent in binary64."""
        builder = self.builder
        biased = builder.sext(builder.add(exponent, constant(I32, 1023)), vector(I64))
        return self.as_float(builder.shl(biased, constant(I64, 52)))

    def cut(self, value: Value, exponent: Value) -> Value:
        """Truncate value * 2.0**exponent to an integer."""
        kind = ir.FunctionType(vector(F64), [vector(F64)])
        trunc = arrays.declared(self.builder, kind, f"llvm.trunc.v{LANES}f64")
        return self.builder.call(trunc, [self.builder.fmul(value, self.power(exponent))])

    def single(self, value: Value) -> Value:
        """Round binary64 to binary32 towards zero, as bits; zeros become +0."""
        builder = self.builder
        near = builder.fptrunc(value, vector(F32))
        sizes = [
            self.as_float(self.masked(self.float_bits(x), (1 << 63) - 1))
            for x in (builder.fpext(near, vector(F64)), value)
        ]
        beyond = builder.sext(builder.fcmp_ordered(">", *sizes), vector(I32))
        bits = builder.add(self.float_bits(near), beyond)
        zero = builder.icmp_unsigned("==", self.masked(bits, 0x7FFFFFFF), constant(I32, 0))
        return builder.select(zero, constant(I32, 0), bits)
