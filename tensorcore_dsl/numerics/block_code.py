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
    """Emitter of the decoding of operands and of the blocks of D.

    settings, form_c: addresses of those of the product and of C, needed by all but `operand`.
    """

    word: ir.Type = I32  # what registers hold
    number: ir.Type = F32  # what elements are decoded to

    def __init__(self, builder: ir.IRBuilder, settings: Value = None, form_c: Value = None) -> None:
        super().__init__(builder)
        self.settings, self.form_c = settings, form_c
        self.wrong = self.variable(constant(I32, 0))

    def note(self, wrong: Value) -> None:
        """Remember lanes (i1) whose result has to be computed otherwise."""
        wide = self.builder.sext(wrong, vector(I32))
        self.put(self.builder.or_(self.get(self.wrong), wide), self.wrong)

    @property
    def size(self) -> int:
        """Bytes of a word and of a number."""
        return 4 if self.word == I32 else 8

    def setting(self, settings: Value, index: int) -> Value:
        return self.load(self.at(settings, ir.Constant(I64, index), 8), I64)

    def everywhere(self, settings: Value, index: int, kind: ir.Type = I32) -> Value:
        """A setting in all lanes."""
        return self.splat(self.builder.trunc(self.setting(settings, index), kind))

    def words(self, base: Value, places: Value) -> Value:
        """Words at 16 places, one by one."""
        result = ir.Constant(vector(self.word), ir.Undefined)
        for lane in range(LANES):
            at = self.first(base, self.at(places, ir.Constant(I64, lane)))
            word = self.load(at, self.word)
            result = self.builder.insert_element(result, word, ir.Constant(I32, lane))
        return result

    def first(self, base: Value, places: Value) -> Value:
        """The address of the word at the first of some places."""
        word = self.builder.ashr(self.load(places, I32), ir.Constant(I32, 5))
        return self.at(base, self.builder.sext(word, I64), self.size)

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
            self.put(self.picked(self.first(base, places), far), slot)
            builder.branch(done)
        builder.position_at_end(done)

    def picked(self, address: Value, far: list[int]) -> Value:
        """The words at these distances, by loads of whole vectors, none beyond the last word."""
        count = max(far) // LANES + 1
        starts = [min(LANES * i, max(far) + 1 - LANES) for i in range(count)]
        at = [self.at(address, ir.Constant(I64, start), self.size) for start in starts]
        parts = [self.load(part, vector(self.word)) for part in at]
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

    def decode(self, words: Value, shifts: Value, form: Value) -> tuple[Value, ...]:
        """Values, and exponents if they are needed, of the elements in some words."""
        raise NotImplementedError

    def operand(
        self, spread: bool, base: Value, places: Value, kinds: Value, count: Value,
        form: Value, values: Value, exponents: Value,
    ) -> None:  # fmt: skip
        """Decode `count` vectors (4 k, 4 rows or columns); `spread` repeats rows for A."""
        builder = self.builder
        words = self.variable(constant(self.word, 0))
        way = "rows" if spread else "columns"
        with self.over(count) as index:
            at = self.at(places, index, 4 * LANES)
            kind = self.load(self.at(kinds, index), I32)
            self.gather(base, at, kind, way, words)
            shift = self.masked(self.load(at, vector(I32)), 31)
            found = self.decode(self.get(words), shift, form)
            for numbers, target in zip(found, (values, exponents), strict=False):
                if not spread:
                    self.store(numbers, self.at(target, index, self.size * LANES))
                    continue
                for k in range(4):
                    rows = [4 * k + lane // 4 for lane in range(LANES)]
                    to = builder.add(builder.mul(index, ir.Constant(I64, 4)), ir.Constant(I64, k))
                    to = self.at(target, to, self.size * LANES)
                    self.store(self.shuffle(numbers, rows), to)

    # -- blocks of D ---------------------------------------------------------------------------

    @contextmanager
    def elements(
        self, first: Value, count: Value, a: Value, bs: list[Value], kind: ir.Type
    ) -> Iterator[list[tuple[Value, list[Value]]]]:
        """A loop over `count` k from `first` on, four at a time: [(of A, [of each B])]."""
        four = ir.Constant(I64, 4)
        with self.over(self.builder.udiv(count, four)) as quarter:
            found = []
            for step in range(4):
                k = self.builder.add(self.builder.mul(quarter, four), ir.Constant(I64, step))
                k = self.builder.add(first, k)
                of_a = self.load(self.at(a, k, self.size * LANES), vector(kind))
                at_b = [self.at(b, k, self.size * 4) for b in bs]
                of_b = [self.shuffle(self.load(b, vector(kind, 4)), [0, 1, 2, 3] * 4) for b in at_b]
                found.append((of_a, of_b))
            yield found

    def flag(self, index: int) -> Value:
        return self.builder.trunc(self.setting(self.settings, index), I1)

    def read(self, memory: Memory, number: Value) -> list[Value]:
        """The words of C of two neighbouring blocks, the first of which is `number`."""
        builder = self.builder
        base, places, kinds = memory
        slots = [self.variable(constant(self.word, 0)) for _ in range(2)]
        paired = self.flag(PAIRED_C)
        for block, slot in enumerate(slots):
            index = builder.add(number, ir.Constant(I64, block))
            at, kind = self.at(places, index, 4 * LANES), self.load(self.at(kinds, index), I32)
            if not block:
                self.gather(base, at, kind, "run", slot)
                continue
            with builder.if_else(paired) as (halves, words):
                with halves:
                    self.put(builder.lshr(self.get(slots[0]), constant(self.word, 16)), slot)
                with words:
                    self.gather(base, at, kind, "run", slot)
        return [self.get(slot) for slot in slots]

    def write(self, memory: Memory, number: Value, bits: list[Value]) -> None:
        """Write D of two neighbouring blocks."""
        builder = self.builder
        base, places, kinds = memory
        with builder.if_else(self.flag(PAIRED_D)) as (halves, words):
            with halves:
                joined = builder.or_(bits[0], builder.shl(bits[1], constant(self.word, 16)))
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
        slot = self.variable(words)
        done = builder.append_basic_block("scattered")
        anywhere = builder.append_basic_block("anywhere")
        switch = builder.switch(kind, anywhere)
        for way, far in kinds_of("run").items():
            block = builder.append_basic_block("run")
            switch.add_case(ir.Constant(I32, way), block)
            builder.position_at_end(block)
            to = self.first(base, at)
            if way == RUN:
                self.store(words, to)
            else:
                for lane, distance in enumerate(far):
                    word = builder.extract_element(words, ir.Constant(I32, lane))
                    self.store(word, self.at(to, ir.Constant(I64, distance), self.size))
            builder.branch(done)
        builder.position_at_end(anywhere)
        with self.over(ir.Constant(I64, LANES)) as lane:
            word = builder.extract_element(self.get(slot), lane)
            self.store(word, self.first(base, self.at(at, lane)))
        builder.branch(done)
        builder.position_at_end(done)

    def over_blocks(self, a: list[Value], b: list[Value], c: Memory, d: Memory) -> None:
        """All blocks of D, two neighbours at a time."""
        builder = self.builder
        one, two = ir.Constant(I64, 1), ir.Constant(I64, 2)
        rows, columns, depth = (self.setting(self.settings, x) for x in (ROWS, COLUMNS, DEPTH))
        with self.over(rows) as row, self.over(builder.udiv(columns, two)) as pair:
            column = builder.mul(pair, two)
            number = builder.add(builder.mul(row, columns), column)
            of_a = [self.at(x, builder.mul(row, depth), self.size * LANES) for x in a]
            of_b = [
                [self.at(x, builder.mul(at, depth), self.size * 4) for x in b]
                for at in (column, builder.add(column, one))
            ]
            self.write(d, number, self.block(of_a, of_b, self.read(c, number)))

    def block(self, a: list[Value], b: list[list[Value]], c: list[Value]) -> list[Value]:
        """The words of D of two blocks in the same rows."""
        raise NotImplementedError
