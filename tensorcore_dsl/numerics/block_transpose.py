# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False, disallow-incomplete-defs=False
"""Vector code that transposes register images: (threads, registers) to (registers, threads)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tensorcore_dsl.lowering import compiled, primitive
from tensorcore_dsl.lowering.values import COUNT, cast

from .vectors import I64, LANES, Emitter, Value, vector

PART = 4  # registers, and threads, of one transposed vector


class Transposition(Emitter):
    """Emitter of the transposition of one product's image. size: bytes of a register.

    image: address of (threads, registers). transposed: address of (registers, threads). Both are
    contiguous.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        size: int,
        image: Value,
        registers: Value,
        threads: Value,
        transposed: Value,
    ) -> None:
        super().__init__(builder)
        self.word, self.size = ir.IntType(8 * size), size
        self.image, self.transposed = image, transposed
        self.registers, self.threads = registers, threads

    def emit(self, back: bool) -> None:
        """Emit the transposition of the image, or the way back."""
        builder = self.builder
        vectors = builder.udiv(self.threads, self.count(LANES))
        with self.over(vectors) as index:
            done = builder.append_basic_block("transposed")
            general = builder.append_basic_block("other")
            switch = builder.switch(self.registers, general)
            for registers in (2, PART):
                block = builder.append_basic_block("transpose")
                switch.add_case(self.count(registers), block)
                builder.position_at_end(block)
                if registers == PART:
                    self.fours(index, self.count(0), back, True)
                else:
                    self.pairs(index, back)
                builder.branch(done)
            builder.position_at_end(general)
            self.any_number(index, back)
            builder.branch(done)
            builder.position_at_end(done)

    def any_number(self, part: Value, back: bool) -> None:
        """Transpose any number of registers, four at a time and then one by one."""
        builder = self.builder
        whole = builder.udiv(self.registers, self.count(PART))
        with self.over(whole) as index:
            self.fours(part, builder.mul(index, self.count(PART)), back, False)
        first = builder.mul(whole, self.count(PART))
        with self.over(builder.sub(self.registers, first)) as index:
            self.single(part, builder.add(first, index), back)

    def of_thread(self, part: Value, lane: Any, register: Value) -> Value:
        """Address of a register in the image (threads, registers)."""
        lane = self.count(lane) if isinstance(lane, int) else lane
        thread = self.builder.add(self.builder.mul(part, self.count(LANES)), lane)
        index = self.builder.add(self.builder.mul(thread, self.registers), register)
        return self.at(self.image, index, self.size)

    def of_register(self, part: Value, register: Value) -> Value:
        """Address of a register of 16 threads in the transposed image."""
        thread = self.builder.mul(part, self.count(LANES))
        index = self.builder.add(self.builder.mul(register, self.threads), thread)
        return self.at(self.transposed, index, self.size)

    def fours(self, part: Value, first: Value, back: bool, dense: bool) -> None:
        """Transpose four registers. dense: a thread has four registers in all, so they are contiguous."""
        targets = [self.of_register(part, self.builder.add(first, self.count(i))) for i in range(4)]
        starts = [self.of_thread(part, thread, first) for thread in range(LANES)]
        eight, lanes = range(8), range(LANES)
        if back:
            v = [self.load(target, vector(self.word)) for target in targets]
            halves = [[8 * half + x + y for y in (0, LANES) for x in eight] for half in range(2)]
            for half, low, high in (
                (half, self.shuffle(v[0], mask, v[1]), self.shuffle(v[2], mask, v[3]))
                for half, mask in enumerate(halves)
            ):  # (2 registers, 8 threads)
                for four in range(2):
                    mask = [8 * (x % 4 % 2) + x % 4 // 2 * LANES + 4 * four + x // 4 for x in lanes]
                    self.put_threads(self.shuffle(low, mask, high), starts[8 * half + 4 * four :], dense)
            return
        u = [self.threads_of(starts[4 * i : 4 * i + 4], dense) for i in range(4)]
        for two in range(2):
            mask = [x % 8 // 4 * LANES + 4 * (x % 4) + x // 8 + 2 * two for x in lanes]
            low, high = (self.shuffle(u[i], mask, u[i + 1]) for i in (0, 2))
            for one in range(2):
                both = [8 * one + x + y for y in (0, LANES) for x in eight]
                self.store(self.shuffle(low, both, high), targets[2 * two + one])

    def threads_of(self, starts: list[Value], dense: bool) -> Value:
        """Load four registers of four threads."""
        if dense:
            return self.load(starts[0], vector(self.word))
        return self.joined([self.load(start, vector(self.word, 4)) for start in starts])

    def put_threads(self, words: Value, starts: list[Value], dense: bool) -> None:
        if dense:
            self.store(words, starts[0])
            return
        for i in range(4):
            self.store(self.shuffle(words, list(range(4 * i, 4 * i + 4))), starts[i])

    def pairs(self, part: Value, back: bool) -> None:
        """Transpose the registers of threads that have two."""
        near = [self.of_thread(part, thread, self.count(0)) for thread in (0, 8)]
        far = [self.of_register(part, self.count(i)) for i in range(2)]
        source, target = (far, near) if back else (near, far)
        a, b = (self.load(start, vector(self.word)) for start in source)
        for i in range(2):
            mask = [x % 2 * LANES + 8 * i + x // 2 if back else 2 * x + i for x in range(LANES)]
            self.store(self.shuffle(a, mask, b), target[i])

    def single(self, part: Value, register: Value, back: bool) -> None:
        with self.over(self.count(LANES)) as lane:
            near = self.of_thread(part, lane, register)
            far = self.at(self.of_register(part, register), lane, self.size)
            source, target = (far, near) if back else (near, far)
            self.store(self.load(source, self.word), target)


def _transposer(size: int, back: bool) -> Any:
    """Make a compiled transposition. Its operands: address of the image (threads, registers), numbers
    of registers and threads, address of the image (registers, threads). size: bytes of a register."""

    @primitive
    def emit(builder: ir.IRBuilder, *operands: Any) -> None:
        Transposition(builder, size, *(cast(builder, COUNT, x).value for x in operands)).emit(back)

    @compiled
    def transpose(image: int, registers: int, threads: int, transposed: int) -> None:
        emit(image, registers, threads, transposed)

    return transpose


# Bytes of a register -> transposition from (threads, registers) to (registers, threads), and back.
TRANSPOSERS = {size: (_transposer(size, False), _transposer(size, True)) for size in (4, 8)}


@primitive
def transpose_at(builder: ir.IRBuilder, address: Any, *image: Any) -> None:
    """Call one of TRANSPOSERS by its address."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(image))
    function = builder.inttoptr(cast(builder, COUNT, address).value, kind.as_pointer())
    builder.call(function, [cast(builder, COUNT, x).value for x in image])
