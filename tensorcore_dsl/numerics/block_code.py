# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code that decodes operands, and that reads C and writes D block by block.

A block is 4 rows by 4 columns of D, the 16 lanes of a vector; its columns are every second one of
8, as in the registers of `mma`. Elements of A and B become binary32 numbers, with the exponents
that alignment sees. A is stored as [block of rows][k][16 lanes], every element in the 4 lanes of
its row, and B as [block of columns][k][4 columns].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from .vectors import F32, I1, I32, I64, LANES, Emitter, Value, constant, vector

LOW = -(1 << 20)  # exponent of a zero
HIGH = 1 << 24  # exponent of infinities and NaN, also when the other factor is a zero

# Indices into the settings of an operand, and into those of a product.
(BITS, FRACTION, FACTOR, LEAST_EXPONENT, FIRST_SPECIAL, SHIFT_UP, SIGNED, SCALE, OFFSET,
 FORMAT) = range(10)  # fmt: skip
(ROWS, COLUMNS, DEPTH, LENGTH, PART, ALIGNED, BOTTOM, KEPT, NEAREST, LATE, CONVERT, SATURATE,
 ADDED, LEAST_C, SINGLE_C, SINGLE_D, PAIRED_C, PAIRED_D, SETTINGS) = range(19)  # fmt: skip

# How the 16 words of a vector lie in memory: like those before it, anywhere, or at these distances
# from the first word. The lanes of A and B are (k, row) and (k, column), the low two bits being row
# and column; the strides are registers of a thread where these are neighbours in memory.
AGAIN, ANYWHERE = range(2)
DISTANCES = {
    "run": [lane for lane in range(LANES)],
    "rows": [4 * (lane % 4) + lane // 4 for lane in range(LANES)],
    "columns": [8 * (lane % 4) + lane // 4 for lane in range(LANES)],
}
WAYS = [(name, stride) for name in DISTANCES for stride in (1, 2, 4)]
RUN = 2 + WAYS.index(("run", 1))


def distances(name: str, stride: int) -> list[int]:
    return [stride * distance for distance in DISTANCES[name]]


def kinds_of(name: str) -> dict[int, list[int]]:
    """{kind: distances} of a way to lie in memory, for all strides."""
    return {2 + i: distances(*way) for i, way in enumerate(WAYS) if way[0] == name}


Memory = tuple[Value, Value, Value]  # words, places and kinds of C or D


class Blocks(Emitter):
    """Emitter of the decoding of operands and of the blocks of D."""

    def setting(self, settings: Value, index: int) -> Value:
        return self.load(self.at(settings, ir.Constant(I64, index), 8), I64)

    def everywhere(self, settings: Value, index: int, kind: ir.Type = I32) -> Value:
        """A setting in all lanes."""
        return self.splat(self.builder.trunc(self.setting(settings, index), kind))

    def words(self, base: Value, places: Value) -> Value:
        """Words at 16 places, one by one."""
        result = ir.Constant(vector(I32), ir.Undefined)
        for lane in range(LANES):
            place = self.load(self.at(places, ir.Constant(I64, lane)), I32)
            index = self.builder.sext(self.builder.ashr(place, ir.Constant(I32, 5)), I64)
            word = self.load(self.at(base, index), I32)
            result = self.builder.insert_element(result, word, ir.Constant(I32, lane))
        return result

    def gather(self, base: Value, places: Value, kind: Value, way: str, slot: Value) -> None:
        """Put the words at 16 places into `slot`; `way` is how they usually lie in memory."""
        builder = self.builder
        done = builder.append_basic_block("gathered")
        anywhere = builder.append_basic_block("anywhere")
        switch = builder.switch(kind, anywhere)
        switch.add_case(ir.Constant(I32, AGAIN), done)
        builder.position_at_end(anywhere)
        self.put(self.words(base, places), slot)
        builder.branch(done)
        for number, far in kinds_of(way).items():
            block = builder.append_basic_block(way)
            switch.add_case(ir.Constant(I32, number), block)
            builder.position_at_end(block)
            first = builder.ashr(self.load(places, I32), ir.Constant(I32, 5))
            self.put(self.picked(self.at(base, builder.sext(first, I64)), far), slot)
            builder.branch(done)
        builder.position_at_end(done)

    def picked(self, address: Value, far: list[int]) -> Value:
        """The words at these distances, by loads of whole vectors, none beyond the last word."""
        count = max(far) // LANES + 1
        starts = [min(LANES * i, max(far) + 1 - LANES) for i in range(count)]
        parts = [self.load(self.at(address, ir.Constant(I64, s)), vector(I32)) for s in starts]
        lanes = [LANES * (x // LANES) + x - starts[x // LANES] for x in far]
        while len(parts) > 2:  # halve the number of parts: of each lane, one of two is needed
            joined = []
            for i in range(0, len(parts), 2):
                own = [x - LANES * i if x // LANES // 2 == i // 2 else 0 for x in lanes]
                joined.append(self.shuffle(parts[i], own, (parts + parts)[i + 1]))
            parts = joined
            lanes = [LANES * (x // LANES // 2) + lane for lane, x in enumerate(lanes)]
        return self.shuffle(parts[0], lanes, parts[1] if parts[1:] else None)

    # -- elements ------------------------------------------------------------------------------

    def decode(self, code: Value, form: Value) -> tuple[Value, Value]:
        """(values, exponents) of the codes of a floating-point format."""
        builder = self.builder
        high = builder.sub(constant(I32, 32), self.everywhere(form, BITS))
        sign = self.masked(builder.shl(code, high), 0x80000000)
        size = builder.lshr(builder.shl(code, builder.add(high, constant(I32, 1))),
                            builder.add(high, constant(I32, 1)))  # fmt: skip
        value = self.as_float(builder.shl(size, self.everywhere(form, SHIFT_UP)))
        value = builder.fmul(value, self.power(self.everywhere(form, FACTOR)))
        special = builder.icmp_unsigned(">=", size, self.everywhere(form, FIRST_SPECIAL))
        exponent = self.exponents(value, self.everywhere(form, LEAST_EXPONENT))
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

    def integers(self, code: Value, form: Value) -> Value:
        """Values of the codes of an integer format, as multiples of SCALE plus OFFSET halves."""
        builder = self.builder
        high = builder.sub(constant(I32, 32), self.everywhere(form, BITS))
        code = builder.shl(code, high)
        signed = builder.trunc(self.setting(form, SIGNED), I1)
        code = builder.select(signed, builder.ashr(code, high), builder.lshr(code, high))
        code = builder.mul(code, self.everywhere(form, SCALE))
        code = builder.add(code, self.everywhere(form, OFFSET))
        return builder.fmul(builder.sitofp(code, vector(F32)), constant(F32, 0.5))

    def operand(
        self, exact: bool, spread: bool, base: Value, places: Value, kinds: Value, count: Value,
        form: Value, values: Value, exponents: Value,
    ) -> None:  # fmt: skip
        """Decode `count` vectors (4 k, 4 rows or columns); `spread` repeats rows for A."""
        builder = self.builder
        words = self.variable(ir.Constant(vector(I32), [0] * LANES))
        way = "rows" if spread else "columns"
        with self.over(count) as index:
            at = self.at(places, index, 4 * LANES)
            kind = self.load(self.at(kinds, index), I32)
            self.gather(base, at, kind, way, words)
            shift = self.masked(self.load(at, vector(I32)), 31)
            code = builder.lshr(self.get(words), shift)
            found = (self.integers(code, form),) if exact else self.decode(code, form)
            for numbers, target in zip(found, (values, exponents), strict=False):
                if not spread:
                    self.store(numbers, self.at(target, index, 4 * LANES))
                    continue
                for k in range(4):
                    rows = [4 * k + lane // 4 for lane in range(LANES)]
                    to = self.at(self.at(target, index, 16 * LANES), ir.Constant(I64, k), 4 * LANES)
                    self.store(self.shuffle(numbers, rows), to)

    # -- blocks of D ---------------------------------------------------------------------------

    @contextmanager
    def elements(
        self, first: Value, count: Value, a: Value, bs: list[Value], lanes: ir.Type
    ) -> Iterator[list[tuple[Value, list[Value]]]]:
        """A loop over `count` k from `first` on, four at a time: [(of A, [of each B])]."""
        four = ir.Constant(I64, 4)
        with self.over(self.builder.udiv(count, four)) as quarter:
            found = []
            for step in range(4):
                k = self.builder.add(self.builder.mul(quarter, four), ir.Constant(I64, step))
                k = self.builder.add(first, k)
                of_a = self.load(self.at(a, k, 4 * LANES), vector(lanes))
                of_b = [
                    self.shuffle(self.load(self.at(b, k, 16), vector(lanes, 4)), [0, 1, 2, 3] * 4)
                    for b in bs
                ]
                found.append((of_a, of_b))
            yield found

    def flag(self, settings: Value, index: int) -> Value:
        return self.builder.trunc(self.setting(settings, index), I1)

    def read(self, settings: Value, memory: Memory, number: Value) -> list[Value]:
        """The words of C of two neighbouring blocks, the first of which is `number`."""
        builder = self.builder
        base, places, kinds = memory
        slots = [self.variable(constant(I32, 0)) for _ in range(2)]
        paired = self.flag(settings, PAIRED_C)
        for block, slot in enumerate(slots):
            index = builder.add(number, ir.Constant(I64, block))
            at, kind = self.at(places, index, 4 * LANES), self.load(self.at(kinds, index), I32)
            if not block:
                self.gather(base, at, kind, "run", slot)
                continue
            with builder.if_else(paired) as (halves, words):
                with halves:
                    self.put(builder.lshr(self.get(slots[0]), constant(I32, 16)), slot)
                with words:
                    self.gather(base, at, kind, "run", slot)
        return [self.get(slot) for slot in slots]

    def write(self, settings: Value, memory: Memory, number: Value, bits: list[Value]) -> None:
        """Write D of two neighbouring blocks."""
        builder = self.builder
        base, places, kinds = memory
        with builder.if_else(self.flag(settings, PAIRED_D)) as (halves, words):
            with halves:
                joined = builder.or_(bits[0], builder.shl(bits[1], constant(I32, 16)))
                self.scatter(base, places, kinds, number, joined)
            with words:
                for block, word in enumerate(bits):
                    index = builder.add(number, ir.Constant(I64, block))
                    self.scatter(base, places, kinds, index, word)

    def scatter(
        self, base: Value, places: Value, kinds: Value, number: Value, words: Value
    ) -> None:
        builder = self.builder
        at, kind = self.at(places, number, 4 * LANES), self.load(self.at(kinds, number), I32)
        first = builder.sext(builder.ashr(self.load(at, I32), ir.Constant(I32, 5)), I64)
        slot = self.variable(words)
        done = builder.append_basic_block("scattered")
        anywhere = builder.append_basic_block("anywhere")
        switch = builder.switch(kind, anywhere)
        for number, far in kinds_of("run").items():
            block = builder.append_basic_block("run")
            switch.add_case(ir.Constant(I32, number), block)
            builder.position_at_end(block)
            to = self.at(base, first)
            if number == RUN:
                self.store(words, to)
            else:
                for lane, distance in enumerate(far):
                    word = builder.extract_element(words, ir.Constant(I32, lane))
                    self.store(word, self.at(to, ir.Constant(I64, distance)))
            builder.branch(done)
        builder.position_at_end(anywhere)
        with self.over(ir.Constant(I64, LANES)) as lane:
            place = builder.ashr(self.load(self.at(at, lane), I32), ir.Constant(I32, 5))
            word = builder.extract_element(self.get(slot), lane)
            self.store(word, self.at(base, builder.sext(place, I64)))
        builder.branch(done)
        builder.position_at_end(done)

    def over_blocks(
        self, settings: Value, a: list[Value], b: list[Value], c: Memory, d: Memory
    ) -> None:
        """All blocks of D, two neighbours at a time."""
        builder = self.builder
        two = ir.Constant(I64, 2)
        rows, columns = self.setting(settings, ROWS), self.setting(settings, COLUMNS)
        depth = self.setting(settings, DEPTH)
        with self.over(rows) as row, self.over(builder.udiv(columns, two)) as pair:
            column = builder.mul(pair, two)
            number = builder.add(builder.mul(row, columns), column)
            of_a = [self.at(x, builder.mul(row, depth), 4 * LANES) for x in a]
            of_b = [
                [
                    self.at(x, builder.mul(builder.add(column, ir.Constant(I64, i)), depth), 16)
                    for x in b
                ]
                for i in range(2)
            ]
            self.write(settings, d, number, self.block(of_a, of_b, self.read(settings, c, number)))

    def block(self, a: list[Value], b: list[list[Value]], c: list[Value]) -> list[Value]:
        """The words of D of two blocks in the same rows."""
        raise NotImplementedError
