# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code that decodes operands, and that reads C and writes D block by block.

A *block* is 4 rows by 4 columns of D, the 16 lanes of a vector in memory. Its columns are every
second one of 8, as in the registers of `mma`. A *band* is four blocks of 16 rows. A vector of a band
is a column of D, and its lanes are the rows. `transposed` converts four blocks to four columns. A
product of 8 rows has one band, whose vectors hold two columns each.

A is decoded to [band][k][16 rows]. B is decoded to [4 columns][4 k] by 4 columns and 4 k, in the
order of its registers, and each element is broadcast to all lanes.

Exponents are 16-bit numbers with the bias of binary32. A comparison treats two columns at once, in 16
lanes of 32 bits: a lane has an exponent of A twice, and those of B for two columns 4 apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from tensorcore_dsl.lowering import arrays

from .vectors import F32, I1, I32, I64, LANES, Emitter, Value, constant, vector

# Exponents of zeros (LOW), and of infinities and NaN (HIGH); LOW + HIGH still exceeds all others.
LOW, HIGH = -(1 << 13), 1 << 13 | 1 << 12
PREFETCH_DISTANCE = 2  # sets of C between the one that is read and the one that is prefetched
BAND, PAIR = 4, 2  # blocks of a set: of A, C and D; of B

# Indices into the settings of an operand, and into the settings of a product.
(MASK, DOWN, RAISED, MIN_EXPONENT, FIRST_SPECIAL, SIGNED, FORMAT) = range(7)
(
    BANDS,
    COLUMNS,
    DEPTH,
    LENGTH,
    PART,
    ALIGNED,
    BOTTOM,
    KEPT,
    NEAREST,
    LATE,
    CONVERT,
    SATURATE,
    XOR,
    MIN_C,
    SINGLE_C,
    SINGLE_D,
    PAIRED_D,
    STEPS,
    PARTS,
    SCALED,
    FINE_SCALES,
    SETTINGS,
) = range(22)

# Layout of the words of a set of blocks. AGAIN: the words of the set before. RUN: each block is 16
# adjacent words. ROWS, ACROSS: four runs of 4 words at equal distances, as rows or columns.
AGAIN, RUN, ROWS, ACROSS, ANYWHERE = range(5)


class Memory(NamedTuple):
    """Addresses that describe an operand in memory.

    Attributes
    ----------
    words : Value
        The words.
    bit_offsets : Value
        16 numbers for each block, 32 * word + lowest bit.
    ups : Value
        Numbers of bits by which elements are shifted up to the highest bit.
    kinds : Value
        Layout of each set, AGAIN to ANYWHERE.
    """

    words: Value
    bit_offsets: Value
    ups: Value
    kinds: Value


class Group(NamedTuple):
    """Operands of four columns of a band.

    Attributes
    ----------
    a, exponents_a : Value
        Addresses of the numbers and exponents of A.
    b : list of list of Value
        Addresses of the numbers of B by vector and, with two columns in a vector, by column.
    exponents_b : list of list of Value
        Addresses of the exponents of B by pair of vectors: 0 and 2, 1 and 3.
    c : list of Value
        Words of C by column.
    up : Value
        Number of bits by which elements of C are shifted up.
    scales : tuple of Value
        Addresses of the scales of the rows, and of every second scale of the columns.
    """

    a: Value
    exponents_a: Value
    b: list[list[Value]]
    exponents_b: list[list[Value]]
    c: list[Value]
    up: Value
    scales: tuple[Value, Value]


class Blocks(Emitter):
    """Emitter of the decoding of operands and of the blocks of D.

    settings, form_c: addresses of the settings of the product and of C. two_columns: a vector holds
    8 rows of two columns. Decoding needs none of these.
    """

    word: ir.Type = I32  # type of a register
    number: ir.Type = F32  # type of a decoded element

    def __init__(
        self, builder: ir.IRBuilder, settings: Value = None, form_c: Value = None, two_columns: bool = False
    ) -> None:
        super().__init__(builder)
        self.settings, self.form_c, self.two_columns = settings, form_c, two_columns
        self.wrong = self.variable(constant(I32, 0))

    def note(self, wrong: Value) -> None:
        """Mark lanes (i1) whose result `fallback` must compute."""
        wide = self.builder.sext(wrong, vector(I32))
        self.put(self.builder.or_(self.get(self.wrong), wide), self.wrong)

    @property
    def size(self) -> int:
        """Bytes of a word and of a number."""
        return 4 if self.word == I32 else 8

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector of words or of numbers."""
        return LANES * self.size

    def setting(self, settings: Value, index: int) -> Value:
        return self.load(self.at(settings, self.count(index), 8), I64)

    def everywhere(self, settings: Value, index: int, kind: ir.Type = I32) -> Value:
        """Broadcast a setting to all lanes."""
        return self.splat(self.builder.trunc(self.setting(settings, index), kind))

    def format(self, form: Value) -> list[Value]:
        """Broadcast the settings of an operand to all lanes."""
        return [self.everywhere(form, i) for i in range(FORMAT)]

    def flag(self, index: int) -> Value:
        return self.builder.trunc(self.setting(self.settings, index), I1)

    # -- memory --------------------------------------------------------------------------------

    def pointer_to(self, memory: Memory, block: Value, lane: int = 0) -> Value:
        """Address of the word of a lane."""
        index = self.builder.add(self.builder.mul(block, self.count(LANES)), self.count(lane))
        return self.word_at(memory.words, self.load(self.at(memory.bit_offsets, index), I32))

    def word_at(self, base: Value, bit_offset: Value) -> Value:
        word = self.builder.ashr(bit_offset, ir.Constant(I32, 5))
        return self.at(base, self.builder.sext(word, I64), self.size)

    def prefetch(self, base: Value, bit_offsets: Value, count: Value) -> None:
        """Fetch the first words of `count` blocks into the cache."""
        with self.over(count) as number:
            bit_offset = self.load(self.at(bit_offsets, number, 4 * LANES), I32)
            arrays.prefetch(self.builder, self.word_at(base, bit_offset))

    def prefetch_later(self, memory: Memory, number: Value, last: Value) -> None:
        """Prefetch the set PREFETCH_DISTANCE after `number`, at most set `last`."""
        later = self.builder.add(number, self.count(PREFETCH_DISTANCE))
        later = self.builder.select(self.builder.icmp_signed("<", later, last), later, last)
        bit_offsets = self.at(memory.bit_offsets, later, 4 * LANES * BAND)
        self.prefetch(memory.words, bit_offsets, self.count(BAND))

    def fetch(self, memory: Memory, number: Value, slots: list[Value]) -> None:
        """Load the words of the blocks of a set into slots."""
        builder, count = self.builder, len(slots)
        first = builder.mul(number, self.count(count))
        blocks = [builder.add(first, self.count(i)) for i in range(count)]
        done = builder.append_basic_block("fetched")
        switch = builder.switch(self.load(self.at(memory.kinds, number), I32), done)
        for kind, method in ((RUN, self.run), (ROWS, self.rows), (ACROSS, self.across)):
            with self.case(switch, kind, done):
                for block, slot in zip(blocks, slots, strict=True):
                    self.put(method(memory, block), slot)
        with self.case(switch, ANYWHERE, done):
            words = self.room(vector(self.word), count)
            self.each_word(memory, first, count, words, self.copy)
            for i, slot in enumerate(slots):
                at = self.at(words, self.count(i), self.vector_bytes)
                self.put(self.load(at, vector(self.word)), slot)
        builder.position_at_end(done)

    @contextmanager
    def case(self, switch: Value, kind: int, done: Value) -> Iterator[None]:
        block = self.builder.append_basic_block("case")
        switch.add_case(ir.Constant(I32, kind), block)
        self.builder.position_at_end(block)
        yield
        self.builder.branch(done)

    def run(self, memory: Memory, block: Value) -> Value:
        return self.load(self.pointer_to(memory, block), vector(self.word))

    def rows(self, memory: Memory, block: Value) -> Value:
        starts = [self.pointer_to(memory, block, 4 * i) for i in range(4)]
        return self.joined([self.load(at, vector(self.word, 4)) for at in starts])

    def across(self, memory: Memory, block: Value) -> Value:
        starts = [self.pointer_to(memory, block, i) for i in range(4)]
        columns = self.joined([self.load(at, vector(self.word, 4)) for at in starts])
        return self.shuffle(columns, [lane // 4 + lane % 4 * 4 for lane in range(LANES)])

    def each_word(self, memory: Memory, first: Value, count: int, ours: Value, move) -> None:
        """Call move(address of a word, address of its copy in `ours`) for the lanes of blocks."""
        start = self.builder.mul(first, self.count(LANES))
        with self.over(self.count(LANES * count)) as lane:
            at = self.at(memory.bit_offsets, self.builder.add(start, lane))
            move(self.word_at(memory.words, self.load(at, I32)), self.at(ours, lane, self.size))

    def copy(self, source: Value, target: Value) -> None:
        self.store(self.load(source, self.word), target)

    def put_words(self, memory: Memory, number: Value, words: Value) -> None:
        """Write the words of a set of blocks of D, which lie at the address `words`."""
        builder = self.builder
        first = builder.mul(number, self.count(BAND))
        runs = builder.not_(self.differs(self.load(self.at(memory.kinds, number), I32), RUN))
        with builder.if_else(runs) as (in_runs, apart):
            with in_runs:
                for i in range(BAND):
                    part = self.load(self.at(words, self.count(i), self.vector_bytes), vector(self.word))
                    self.store(part, self.pointer_to(memory, builder.add(first, self.count(i))))
            with apart:
                self.each_word(memory, first, BAND, words, lambda word, copy: self.copy(copy, word))

    def transposed(self, four: list[Value]) -> list[Value]:
        """(block, row, column) as (column, row, block), the last two being the lanes; and back."""
        ones, twos = (
            [[4 * i + s + x for i in range(4) for x in steps] for s in (0, 2)]
            for steps in ((0, LANES, 1, LANES + 1), (0, 1, LANES, LANES + 1))
        )
        a, b, c, d = (self.shuffle(four[i], lanes, four[i + 1]) for i in (0, 2) for lanes in ones)
        return [self.shuffle(x, lanes, y) for x, y in ((a, c), (b, d)) for lanes in twos]

    # -- elements ------------------------------------------------------------------------------

    def decode(self, words: Value, ups: Value, form: list[Value]) -> tuple[Value, ...]:
        """Decode words to numbers, and to exponents (int32) if the engine needs them."""
        raise NotImplementedError

    def first(
        self, memory: Memory, form: Value, bands: Value, quarters: Value, numbers: Value, exponents: Value
    ) -> None:
        """Decode A: for each band `quarters` sets, of 4 k each."""
        slots = [self.variable(constant(self.word, 0)) for _ in range(BAND)]
        columns_of_k = [self.variable(constant(self.word, 0)) for _ in range(BAND)]
        fields = self.format(form)
        with self.over(self.builder.mul(bands, quarters)) as number:
            again = self.load(self.at(memory.kinds, number), I32)
            with self.builder.if_then(self.differs(again, AGAIN)):
                self.fetch(memory, number, slots)
                columns = self.transposed(list(map(self.get, slots)))
                for words, slot in zip(columns, columns_of_k, strict=True):
                    self.put(words, slot)
            ups = self.at(memory.ups, number, 4 * LANES * BAND)
            target = self.builder.mul(number, self.count(4))
            for k, slot in enumerate(columns_of_k):
                up = self.splat(self.load(self.at(ups, self.count(k)), I32))
                decoded = self.decode(self.get(slot), up, fields)
                to = self.builder.add(target, self.count(k))
                self.store(decoded[0], self.at(numbers, to, self.vector_bytes))
                if decoded[1:]:
                    self.store(self.pair(decoded[1], decoded[1]), self.at(exponents, to, 4 * LANES))

    def second(
        self, memory: Memory, form: Value, pairs: Value, quarters: Value, numbers: Value, exponents: Value
    ) -> None:
        """Decode B: for each pair of blocks of 4 columns `quarters` sets, of 4 k each."""
        builder = self.builder
        slots = [self.variable(constant(self.word, 0)) for _ in range(PAIR)]
        fields = self.format(form)
        with self.over(pairs) as pair, self.over(quarters) as quarter:
            number = builder.add(builder.mul(pair, quarters), quarter)
            self.fetch(memory, number, slots)
            both = []
            for i, slot in enumerate(slots):
                block = builder.add(builder.mul(number, self.count(PAIR)), self.count(i))
                up = self.load(self.at(memory.ups, block, 4 * LANES), vector(I32))
                both.append(self.decode(self.get(slot), up, fields))
                four = builder.add(builder.mul(pair, self.count(PAIR)), self.count(i))
                to = builder.add(builder.mul(four, quarters), quarter)
                self.store(both[i][0], self.at(numbers, to, self.vector_bytes))
            if both[0][1:]:
                joined = self.pair(both[0][1], both[1][1])
                self.store(joined, self.at(exponents, number, 4 * LANES))

    def pair(self, low: Value, high: Value) -> Value:
        """Pack two 16-bit numbers into each lane of 32 bits."""
        return self.builder.or_(self.masked(low, 0xFFFF), self.builder.shl(high, constant(I32, 16)))

    # -- blocks of D ---------------------------------------------------------------------------

    @contextmanager
    def fours(self, first: Value, count: Value) -> Iterator[Value]:
        """Loop over the groups of four k, from `first` on, `count` k in all."""
        start = self.builder.udiv(first, self.count(4))
        with self.over(self.builder.udiv(count, self.count(4))) as quarter:
            yield self.builder.add(start, quarter)

    def numbers(self, group: Group, quarter: Value, step: Value) -> tuple[Value, list[Value]]:
        """Load the numbers of one k: of A, and of B by column, broadcast to all lanes."""
        k = self.builder.add(self.builder.mul(quarter, self.count(4)), step)
        of_a = self.load(self.at(group.a, k, self.vector_bytes), vector(self.number))
        return of_a, [self.one(b, quarter, step, self.number) for b in group.b]

    def one(self, columns: list[Value], quarter: Value, step: Value, kind: ir.Type) -> Value:
        """Load a value of each column of a vector for one k, broadcast to the column's lanes."""
        size = 8 if kind == self.number and self.size == 8 else 4
        values = []
        for base in columns:
            at = self.at(self.at(base, quarter, LANES * size), step, size)
            values.append(self.splat(self.load(at, kind)))
        if len(values) == 1:
            return values[0]
        lanes = [lane if lane % 4 < 2 else LANES + lane for lane in range(LANES)]
        return self.shuffle(values[0], lanes, values[1])

    def read(self, memory: Memory, number: Value) -> list[Value]:
        """Load the words of C of a set, by column."""
        slots = [self.variable(constant(self.word, 0)) for _ in range(BAND)]
        self.fetch(memory, number, slots)
        return self.transposed([self.get(slot) for slot in slots])

    def over_groups(
        self, a: list[Value], b: list[Value], c: Memory, d: Memory, results: Value, scales: Value
    ) -> Value:
        """Compute D in `results`, group by group, then write it. Returns whether a lane is marked by
        `note`; nothing is written in this case, so that D may lie where C does."""
        builder = self.builder
        bands, columns, depth = (self.setting(self.settings, x) for x in (BANDS, COLUMNS, DEPTH))
        quarters = builder.udiv(depth, self.count(4))
        with self.over(bands) as band, self.over(columns) as column:
            number = builder.add(builder.mul(band, columns), column)
            self.prefetch_later(c, number, builder.sub(builder.mul(bands, columns), self.count(1)))
            eight, odd = builder.lshr(column, self.count(1)), builder.and_(column, self.count(1))
            if self.two_columns:
                eight = column
            first = builder.mul(eight, self.count(PAIR))  # blocks of B
            fours = [builder.mul(builder.add(first, self.count(i)), quarters) for i in range(PAIR)]
            columns_of_vector = [self.count(0), self.count(1)] if self.two_columns else [odd]
            lines = [
                [builder.mul(builder.add(x, self.count(i)), self.count(4)) for x in columns_of_vector]
                for i in (0, 2)
            ]
            group = Group(
                self.at(a[0], builder.mul(band, depth), self.vector_bytes),
                self.at(a[1], builder.mul(band, depth), 4 * LANES),
                [[self.at(self.at(b[0], four, self.vector_bytes), line, self.size) for line in some]
                 for four in fours for some in lines],
                [[self.at(self.at(b[1], builder.mul(eight, quarters), 4 * LANES), line, 4)
                  for line in some] for some in lines],
                self.read(c, number),
                self.load(self.at(c.ups, number, 4 * LANES * BAND), I32),
                (self.at(scales, builder.mul(band, self.count(LANES))),
                 self.at(scales, builder.add(
                     builder.mul(bands, self.count(LANES)),
                     builder.add(builder.shl(eight, self.count(3)), odd)))),
            )  # fmt: skip
            for i, words in enumerate(self.transposed(self.group(group))):
                at = builder.add(builder.mul(number, self.count(BAND)), self.count(i))
                self.store(words, self.at(results, at, self.vector_bytes))
        wrong = self.any(builder.icmp_signed("!=", self.get(self.wrong), constant(I32, 0)))
        with builder.if_then(builder.not_(wrong)):
            self.write(d, builder.mul(bands, columns), results)
        return wrong

    def write(self, memory: Memory, sets: Value, results: Value) -> None:
        """Write all of D; join two neighbouring sets that share words."""
        builder, size = self.builder, BAND * self.vector_bytes
        paired = self.setting(self.settings, PAIRED_D)
        with builder.if_then(builder.trunc(paired, I1)), self.over(builder.lshr(sets, self.count(1))) as pair:
            low = self.at(results, builder.shl(pair, self.count(1)), size)
            for i in range(BAND):
                at = self.at(low, self.count(i), self.vector_bytes)
                upper = self.load(self.at(at, self.count(1), size), vector(self.word))
                upper = builder.shl(upper, constant(self.word, 16))
                self.store(builder.or_(self.load(at, vector(self.word)), upper), at)
        with self.over(builder.lshr(sets, paired)) as index:
            number = builder.shl(index, paired)
            self.put_words(memory, number, self.at(results, number, size))

    def group(self, group: Group) -> list[Value]:
        """Compute the words of D of a group, by column."""
        raise NotImplementedError
