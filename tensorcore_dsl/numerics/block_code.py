# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code that decodes operands, and that reads C and writes D block by block.

A block is 4 rows by 4 columns of D, the 16 lanes of a vector; its columns are every second one of
8, as in the registers of `mma`. A group is two blocks of rows by two neighbouring ones of columns.
Elements of A and B become binary32 numbers, with the exponents that alignment sees, of 16 bits.
Numbers of A are stored as [block of rows][k][16 lanes], every element in the 4 lanes of its row,
and those of B as [block of columns][k][4 columns]. Exponents are compared for two blocks of columns
at once, in 32 lanes (row, block, column): those of A are stored as [block of rows][k][32 lanes],
those of B as [pair of blocks][k][8 columns].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from tensorcore_dsl.lowering import arrays

from .vectors import F32, I1, I16, I32, I64, LANES, Emitter, Value, constant, vector

# Exponents of zeros, and of infinities and NaN. The sum of both shows that there is one of these.
LOW, HIGH = -(1 << 13), 1 << 13 | 1 << 12
LATER = 8  # vectors of C between the one that is read and the one that is fetched into the cache
BOTH = 2  # blocks of rows, and of columns, of a group

# Indices into the settings of an operand, and into those of a product.
(BITS, FRACTION, FACTOR, LEAST_EXPONENT, FIRST_SPECIAL, SHIFT_UP, SIGNED, SCALE, OFFSET,
 FORMAT) = range(10)  # fmt: skip
(ROWS, COLUMNS, DEPTH, LENGTH, PART, ALIGNED, BOTTOM, KEPT, NEAREST, LATE, CONVERT, SATURATE,
 ADDED, LEAST_C, SINGLE_C, SINGLE_D, PAIRED_C, PAIRED_D, SETTINGS) = range(19)  # fmt: skip

# How the 16 words of a vector lie in memory: like those before it, anywhere, or at these distances
# from the first word. The lanes of A and B are (k, row) and (k, column), the low two bits being row
# and column; the strides are registers of a thread where these are neighbours in memory. Neighbours
# in lines of 32 bytes along K are rows of A at the distances of "columns" of registers, and columns
# of B, every second one, at those of "lines".
AGAIN, ANYWHERE = range(2)
DISTANCES = {
    "run": [lane for lane in range(LANES)],
    "rows": [4 * (lane % 4) + lane // 4 for lane in range(LANES)],
    "columns": [8 * (lane % 4) + lane // 4 for lane in range(LANES)],
    "lines": [16 * (lane % 4) + lane // 4 for lane in range(LANES)],
}
WAYS = [(name, stride) for name in ("run", "rows", "columns") for stride in (1, 2, 4)]
WAYS.append(("lines", 1))
RUN = 2 + WAYS.index(("run", 1))
WAYS_OF_A, WAYS_OF_B = ("rows", "columns"), ("columns", "lines")


def distances(name: str, stride: int) -> list[int]:
    return [stride * distance for distance in DISTANCES[name]]


def kinds_of(*names: str) -> dict[int, list[int]]:
    """{kind: distances} of some ways to lie in memory, for all strides."""
    return {2 + i: distances(*way) for i, way in enumerate(WAYS) if way[0] in names}


Memory = tuple[Value, Value, Value]  # words, places and kinds of C or D


class Group(NamedTuple):
    """Operands of a group: addresses of the numbers of A and B by block, of the exponents of A by
    block and of B, and the words of C by block, row by row."""

    a: list[Value]
    b: list[Value]
    exponents_a: list[Value]
    exponents_b: Value
    c: list[Value]

    def pairs(self) -> list[tuple[int, int]]:
        """(block of rows, block of columns), row by row."""
        return [(i, j) for i in range(BOTH) for j in range(BOTH)]


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

    def prefetch(self, base: Value, places: Value, count: Value) -> None:
        """Fetch the first words of `count` vectors into the cache."""
        with self.over(count) as number:
            at = self.first(base, self.at(places, number, 4 * LANES))
            arrays.prefetch(self.builder, at)

    def prefetch_later(self, memory: Memory, number: Value, last: Value) -> None:
        """The same for two vectors some groups behind `number`; those from `last` on end it."""
        base, places, _ = memory
        later = self.builder.add(number, ir.Constant(I64, LATER))
        later = self.builder.select(self.builder.icmp_signed("<", later, last), later, last)
        self.prefetch(base, self.at(places, later, 4 * LANES), ir.Constant(I64, BOTH))

    def first(self, base: Value, places: Value) -> Value:
        """The address of the word at the first of some places."""
        word = self.builder.ashr(self.load(places, I32), ir.Constant(I32, 5))
        return self.at(base, self.builder.sext(word, I64), self.size)

    def gather(
        self, base: Value, places: Value, kind: Value, ways: Sequence[str], slot: Value
    ) -> None:
        """Put the words at 16 places into `slot`; `ways` are how they usually lie in memory."""
        builder = self.builder
        done = builder.append_basic_block("gathered")
        anywhere = builder.append_basic_block("anywhere")
        switch = builder.switch(kind, anywhere)
        switch.add_case(ir.Constant(I32, AGAIN), done)
        builder.position_at_end(anywhere)
        self.put(self.words(base, places), slot)
        builder.branch(done)
        for number, far in kinds_of(*ways).items():
            block = builder.append_basic_block("gathered")
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
        quarters: Value, form: Value, values: Value, exponents: Value,
    ) -> None:  # fmt: skip
        """Decode `count` vectors (4 k, 4 rows or columns), `quarters` of them for each block.

        spread: the operand is A, whose elements are repeated in all lanes of their rows.
        """
        builder = self.builder
        words = self.variable(constant(self.word, 0))
        ways = WAYS_OF_A if spread else WAYS_OF_B
        with self.over(builder.udiv(count, quarters)) as block, self.over(quarters) as quarter:
            index = builder.add(builder.mul(block, quarters), quarter)
            at = self.at(places, index, 4 * LANES)
            kind = self.load(self.at(kinds, index), I32)
            self.gather(base, at, kind, ways, words)
            shift = self.masked(self.load(at, vector(I32)), 31)
            found = self.decode(self.get(words), shift, form)
            if spread:
                for numbers, target in zip(found, (values, exponents), strict=False):
                    self.spread(numbers, self.at(target, index, 4 * self.size * LANES))
            else:
                self.store(found[0], self.at(values, index, self.size * LANES))
                self.pair(found[1:], exponents, block, quarters, quarter)

    def spread(self, numbers: Value, address: Value) -> None:
        """Store numbers (4 k, 4 rows) with each in all lanes of its row: 64 bytes or more a k."""
        lanes = BOTH * LANES if numbers.type.element == I16 else LANES
        for k in range(4):
            rows = [4 * k + lane * 4 // lanes for lane in range(lanes)]
            to = self.at(address, ir.Constant(I64, k), self.size * LANES)
            self.store(self.shuffle(numbers, rows), to)

    def pair(
        self, found: tuple[Value, ...], address: Value, block: Value, quarters: Value,
        quarter: Value,
    ) -> None:  # fmt: skip
        """Store exponents (4 k, 4 columns) of B beside those of the other block of the pair."""
        builder, four = self.builder, ir.Constant(I64, 4)
        for numbers in found:
            pair = builder.mul(builder.lshr(block, ir.Constant(I64, 1)), quarters)
            half = builder.and_(block, ir.Constant(I64, 1))
            first = builder.mul(builder.add(pair, quarter), four)
            for k in range(4):
                at = self.at(address, builder.add(first, ir.Constant(I64, k)), 16)
                columns = list(range(4 * k, 4 * k + 4))
                self.store(self.shuffle(numbers, columns), self.at(at, half, 8))

    # -- blocks of D ---------------------------------------------------------------------------

    @contextmanager
    def fours(self, first: Value, count: Value) -> Iterator[list[Value]]:
        """A loop over `count` k from `first` on, four at a time."""
        four = ir.Constant(I64, 4)
        with self.over(self.builder.udiv(count, four)) as quarter:
            start = self.builder.add(first, self.builder.mul(quarter, four))
            yield [self.builder.add(start, ir.Constant(I64, step)) for step in range(4)]

    def numbers(self, a: list[Value], b: list[Value], k: Value) -> tuple[list[Value], list[Value]]:
        """The numbers of k in some blocks of rows and of columns, in the lanes of a block of D."""
        of_a = [self.load(self.at(x, k, self.size * LANES), vector(self.number)) for x in a]
        of_b = [self.load(self.at(x, k, self.size * 4), vector(self.number, 4)) for x in b]
        return of_a, [self.shuffle(x, [0, 1, 2, 3] * 4) for x in of_b]

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
                self.gather(base, at, kind, ("run",), slot)
                continue
            with builder.if_else(paired) as (halves, words):
                with halves:
                    self.put(builder.lshr(self.get(slots[0]), constant(self.word, 16)), slot)
                with words:
                    self.gather(base, at, kind, ("run",), slot)
        return [self.get(slot) for slot in slots]

    def keep(self, results: Value, number: Value, bits: list[Value]) -> None:
        """Keep D of two neighbouring blocks; joined, where they share words."""
        builder = self.builder
        joined = builder.or_(bits[0], builder.shl(bits[1], constant(self.word, 16)))
        first = builder.select(self.flag(PAIRED_D), joined, bits[0])
        for block, word in enumerate((first, bits[1])):
            index = builder.add(number, ir.Constant(I64, block))
            self.store(word, self.at(results, index, self.size * LANES))

    def write(self, memory: Memory, results: Value) -> None:
        """Write all of D to the registers."""
        builder = self.builder
        base, places, kinds = memory
        rows, columns = self.setting(self.settings, ROWS), self.setting(self.settings, COLUMNS)
        paired = self.setting(self.settings, PAIRED_D)
        with self.over(builder.lshr(builder.mul(rows, columns), paired)) as index:
            number = builder.shl(index, paired)
            words = self.load(self.at(results, number, self.size * LANES), vector(self.word))
            self.scatter(base, places, kinds, number, words)

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

    def over_groups(
        self, a: list[Value], b: list[Value], c: Memory, d: Memory, results: Value
    ) -> Value:
        """Compute D in `results`, group by group, and write it. Is any of it to be computed
        otherwise? Then nothing is written, so that D may lie where C does."""
        builder = self.builder
        two = ir.Constant(I64, BOTH)
        rows, columns, depth = (self.setting(self.settings, x) for x in (ROWS, COLUMNS, DEPTH))
        bands, pairs = builder.udiv(rows, two), builder.udiv(columns, two)
        last = builder.sub(builder.mul(rows, columns), two)
        with self.over(bands) as band, self.over(pairs) as pair:
            down = [builder.add(builder.mul(band, two), ir.Constant(I64, i)) for i in range(BOTH)]
            across = [builder.add(builder.mul(pair, two), ir.Constant(I64, i)) for i in range(BOTH)]
            numbers = [builder.add(builder.mul(row, columns), across[0]) for row in down]
            for number in numbers:
                self.prefetch_later(c, number, last)
            group = Group(
                [self.at(a[0], builder.mul(row, depth), self.size * LANES) for row in down],
                [self.at(b[0], builder.mul(column, depth), self.size * 4) for column in across],
                [self.at(a[1], builder.mul(row, depth), self.size * LANES) for row in down],
                self.at(b[1], builder.mul(pair, depth), 16),
                [word for number in numbers for word in self.read(c, number)],
            )
            words = self.group(group)
            for i, number in enumerate(numbers):
                self.keep(results, number, words[BOTH * i : BOTH * i + BOTH])
        wrong = self.any(builder.icmp_signed("!=", self.get(self.wrong), constant(I32, 0)))
        with builder.if_then(builder.not_(wrong)):
            self.write(d, results)
        return wrong

    def group(self, group: Group) -> list[Value]:
        """The words of D of a group, row by row."""
        raise NotImplementedError
