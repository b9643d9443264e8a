"""Emit the elementary operations of a region in LLVM's language, for one warp.

A warp is two vectors of sixteen lanes.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorcore_dsl.interpreter.regions.layout import (
    CHECK,
    FINISH,
    FROM_OFFSET,
    MEMORY,
    OFFSET,
    RANKED,
    REFERENCE,
    SIZE,
    TO_OFFSET,
    FrameLayout,
    Key,
    helper,
    operands,
    results,
)
from tensorcore_dsl.interpreter.regions.plan import PRODUCTS, SPECIAL_REGISTER, MicroOp, Slot
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN
from tensorcore_dsl.isa.lanes import COPY, operation
from tensorcore_dsl.numerics.lanes import FLOATS, LANES, NAN, WORDS, Operation

LIST = ", ".join(f"i32 {i}" for i in range(2 * LANES))
LOW, HIGH = (", ".join(f"i32 {i}" for i in range(n, n + LANES)) for n in (0, LANES))
VECTOR = {bits: f"<{LANES} x i{bits}>" for bits in (1, 8, 16, 32, 64)}
FLOAT = f"<{LANES} x float>"
WHOLE = {bits: f"<{2 * LANES} x i{bits}>" for bits in (1, 8, 16, 32, 64)}


def kinds(op: Operation) -> str:
    return op.kinds or WORDS * (1 + len(op.operands))


Pair = tuple[str, str]  # the names of the two vectors of a warp
Value = dict[str, Pair]  # the kinds in which a register is at hand


class RegionEmitter:
    """The code of micro-operations, for one warp: registers are values with names, loaded when first read."""

    def __init__(self, operation: Callable[[str, int], str], name: str, layout: FrameLayout) -> None:
        self.operation, self.name, self.layout = operation, name, layout
        self.region, self.constants, self.fixed = layout.region, layout.constants, layout.parameters
        self.lines: list[str] = []
        self.count = 0
        self.pieces = not self.region.is_single_path
        self.numbers = {block.start: i for i, block in enumerate(self.region.blocks)}
        inner = (block.start for block in self.region.blocks)
        self.stops = {at: i for i, at in enumerate(dict.fromkeys((*self.layout.stops, *inner)))}
        self.env: dict[Key, Value] = {}
        self.fresh: set[Key] = set()  # written in the block
        self.homed: set[Key] = set()  # equal to the block's memory of registers
        self.halves: Pair = ("", "")
        self.mask = ""
        self.failures: list[str] = []

    # -- lines -------------------------------------------------------------------------------------

    def put(self, line: str) -> None:
        self.lines.append("  " + line)

    def let(self, expression: str) -> str:
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def word(self, number: int) -> str:
        """A word of the frame."""
        pointer = self.let(f"getelementptr i64, ptr %frame, i64 {number}")
        return self.let(f"load i64, ptr {pointer}, align 8")

    def pointer(self, address: str) -> str:
        return self.let(f"inttoptr i64 {address} to ptr")

    def bump(self, number: int, amount: str, most: bool = False) -> None:
        """Add to a counter, or raise it to a number."""
        pointer = self.let(f"getelementptr i64, ptr %counters, i64 {number}")
        old = self.let(f"load i64, ptr {pointer}, align 8")
        if most:
            larger = self.let(f"icmp sgt i64 {amount}, {old}")
            new = self.let(f"select i1 {larger}, i64 {amount}, i64 {old}")
        else:
            new = self.let(f"add i64 {old}, {amount}")
        self.put(f"store i64 {new}, ptr {pointer}, align 8")

    # -- registers ---------------------------------------------------------------------------------

    def home(self, slot: Slot) -> Pair:
        """Addresses of the two halves of a register of this warp in memory."""
        pointer = self.let(f"getelementptr i64, ptr %frame, i64 {self.layout.words[slot]}")
        base, size = self.let(f"load ptr, ptr {pointer}, align 8"), slot[2]
        low = self.let(f"getelementptr i8, ptr {base}, i64 %offset{size}")
        return low, self.let(f"getelementptr i8, ptr {low}, i64 {LANES * size}")

    def load_home(self, slot: Slot) -> Pair:
        load = f"load {VECTOR[8 * slot[2]]}, ptr {{}}, align {slot[2]}"
        low, high = (self.let(load.format(pointer)) for pointer in self.home(slot))
        return low, high

    def store_home(self, slot: Slot, value: Pair) -> None:
        for pointer, lanes in zip(self.home(slot), value, strict=True):
            self.put(f"store {VECTOR[8 * slot[2]]} {lanes}, ptr {pointer}, align {slot[2]}")

    def select(self, lanes: str, kind: str, yes: str, no: str) -> str:
        return self.let(f"select {VECTOR[1]} {lanes}, {kind} {yes}, {kind} {no}")

    def variable(self, slot: Slot) -> Pair:
        """Variables that hold the two halves of a register between blocks."""
        return tuple(f"%r.{slot[0]}.{slot[1]}.{half}" for half in "ab")  # type: ignore[return-value]

    def value(self, slot: Slot) -> Value:
        vreg, _, size = slot
        if vreg in self.constants:
            bits = 8 * size
            number = self.constants[vreg] % (1 << bits)
            number -= (number >> bits - 1) << bits
            return {WORDS: (f"splat (i{bits} {number})",) * 2}  # type: ignore[dict-item]
        value = self.env.get(slot)
        if value is None and vreg in self.fixed:
            word = self.word(self.layout.words[slot])
            if size < 8:
                word = self.let(f"trunc i64 {word} to i{8 * size}")
            value = self.env[slot] = {WORDS: self.splat(8 * size, word)}
        if value is None:
            if self.pieces and vreg in self.region.passed and slot not in self.homed:
                kind, pointers = VECTOR[8 * size], self.variable(slot)
                pair = tuple(self.let(f"load {kind}, ptr {at}, align 64") for at in pointers)
            else:
                pair = self.load_home(slot)
            value = self.env[slot] = {WORDS: pair}  # type: ignore[dict-item]
        return value

    def splat(self, bits: int, number: str) -> Pair:
        """One number in all lanes."""
        kind = VECTOR[bits]
        first = self.let(f"insertelement {kind} poison, i{bits} {number}, i64 0")
        order = f"<{LANES} x i32> zeroinitializer"
        whole = self.let(f"shufflevector {kind} {first}, {kind} poison, {order}")
        return whole, whole

    def read(self, slot: Slot, kind: str = WORDS) -> Pair:
        value = self.value(slot)
        words = VECTOR[32]
        if kind not in value and kind == FLOATS:
            value[kind] = tuple(self.let(f"bitcast {words} {x} to {FLOAT}") for x in value[WORDS])  # type: ignore[assignment]
        elif kind not in value:
            bits = [self.let(f"bitcast {FLOAT} {x} to {words}") for x in value[FLOATS]]
            nans = [self.let(f"fcmp uno {FLOAT} {x}, zeroinitializer") for x in value[FLOATS]]
            value[kind] = tuple(  # type: ignore[assignment]
                self.select(nan, words, f"splat (i32 {NAN})", x) for nan, x in zip(nans, bits, strict=True)
            )
        return value[kind]

    def write(self, slot: Slot, value: Pair, kind: str = WORDS) -> None:
        self.env[slot] = {kind: value}
        self.wrote(slot)

    def wrote(self, slot: Slot) -> None:
        self.fresh.add(slot)
        self.homed.discard(slot)

    def lanes_of(self, mask: str) -> Pair:
        """Unpack a mask into its lanes, two vectors of bits."""
        low = self.let(f"trunc i32 {mask} to i{LANES}")
        high = self.let(f"trunc i32 {self.let(f'lshr i32 {mask}, {LANES}')} to i{LANES}")
        return tuple(self.let(f"bitcast i{LANES} {x} to {VECTOR[1]}") for x in (low, high))  # type: ignore[return-value]

    def bits_of(self, lanes: Pair) -> str:
        """Pack lanes, two vectors of bits, into a mask."""
        low, high = (
            self.let(f"zext i{LANES} {self.let(f'bitcast {VECTOR[1]} {x} to i{LANES}')} to i32")
            for x in lanes
        )
        return self.let(f"or i32 {low}, {self.let(f'shl i32 {high}, {LANES}')}")

    def joined(self, bits: int, value: Pair) -> str:
        kind = VECTOR[bits]
        return self.let(f"shufflevector {kind} {value[0]}, {kind} {value[1]}, <{2 * LANES} x i32> <{LIST}>")

    def parted(self, bits: int, whole: str) -> Pair:
        kind = WHOLE[bits]
        return tuple(  # type: ignore[return-value]
            self.let(f"shufflevector {kind} {whole}, {kind} poison, <{LANES} x i32> <{part}>")
            for part in (LOW, HIGH)
        )

    # -- micro-operations ---------------------------------------------------------------------------

    def operate(self, at: int, micro_op: MicroOp) -> None:
        if micro_op.name == "copy":
            self.env[micro_op.slots[0]] = dict(self.value(micro_op.slots[1]))
            self.wrote(micro_op.slots[0])
            return
        if micro_op.name == SPECIAL_REGISTER:
            self.write(micro_op.slots[0], self.input(micro_op))
            return
        op, name = operation(micro_op.name, micro_op.bits), self.operation(micro_op.name, micro_op.bits)
        made, *taken = tuple(kinds(op))
        values = [self.read(slot, kind) for slot, kind in zip(micro_op.slots[1:], taken, strict=True)]
        if micro_op.function:
            frame_words = [self.layout.words[REFERENCE, micro_op.function, i] for i in range(op.literals)]
            numbers = list(map(self.word, frame_words))
        else:
            numbers = [str(number) for number in micro_op.numbers]
        given = [f"i64 {number}" for number in numbers]
        if op.whole:
            words = [
                f"{WHOLE[bits]} {self.joined(bits, value)}"
                for bits, value in zip(op.operands, values, strict=True)
            ]
            found = self.let(f"call {WHOLE[op.result]} @{name}({', '.join(words + given)})")
            self.write(micro_op.slots[0], self.parted(op.result, found))
            return
        result: list[str] = []
        for half in range(2):
            words = [
                f"{FLOAT if kind == FLOATS else VECTOR[bits]} {value[half]}"
                for kind, bits, value in zip(taken, op.operands, values, strict=True)
            ]
            kind = FLOAT if made == FLOATS else VECTOR[op.result or 1]
            result.append(self.let(f"call {kind} @{name}({', '.join(words + given)})"))
        if op.result:
            self.write(micro_op.slots[0], (result[0], result[1]), made)
            return
        wrong = tuple(self.let(f"and {VECTOR[1]} {x}, {m}") for x, m in zip(result, self.halves))
        bits = self.bits_of(wrong)  # type: ignore[arg-type]
        lane = self.let(f"call i32 @llvm.cttz.i32(i32 {bits}, i1 false)")
        code = self.let(f"or i64 {self.let(f'zext i32 {lane} to i64')}, {CHECK << 32}")
        self.fail(at, micro_op, self.let(f"icmp ne i32 {bits}, 0"), code)

    def multiply(self, at: int, micro_op: MicroOp) -> None:
        """Matrix products of a whole warp, between registers in memory."""
        for slot in operands(micro_op):
            moved = self.pieces or slot in self.fresh
            if moved and slot not in self.homed:
                self.store_home(slot, self.read(slot))
                self.homed.add(slot)
        function, words = (self.word(self.layout.words[PRODUCTS, at, i]) for i in range(2))
        following = self.let("add i64 %warp, 1")
        given = f"i64 {words}, i64 %warp, i64 {following}"
        left = self.let(f"call i64 {self.pointer(function)}({given})")
        self.count += 1
        rest, go = f"rest{self.count}", f"go{self.count}"
        self.put(f"br i1 {self.let(f'icmp eq i64 {left}, 0')}, label %{go}, label %{rest}")
        self.label(rest)
        self.put(f"call void {self.pointer(self.word(FINISH))}(i64 {at}, i64 %warp)")
        self.put(f"br label %{go}")
        self.label(go)
        for slot in results(micro_op):
            self.env.pop(slot, None)
            self.fresh.add(slot)
            self.homed.add(slot)

    def input(self, micro_op: MicroOp) -> Pair:
        """A special register."""
        base, apart = (self.word(self.layout.words[SPECIAL_REGISTER, micro_op.function, i]) for i in range(2))
        size, (varies,) = micro_op.slots[0][2], micro_op.numbers
        index = f"mul i64 %inside, {2 * LANES * size}" if varies else f"mul i64 %cta, {apart}"
        at = self.pointer(self.let(f"add i64 {base}, {self.let(index)}"))
        if not varies:
            return self.splat(micro_op.bits, self.let(f"load i{micro_op.bits}, ptr {at}, align {size}"))
        upper = self.let(f"getelementptr i8, ptr {at}, i64 {LANES * size}")
        load = f"load {VECTOR[micro_op.bits]}, ptr {{}}, align {size}"
        return self.let(load.format(at)), self.let(load.format(upper))

    def fail(self, at: int, micro_op: MicroOp, wrong: str, code: str) -> None:
        """Leave where `wrong`: note the position, and store the operands of the step."""
        self.count += 1
        here, go = f"fail{self.count}", f"go{self.count}"
        self.put(f"br i1 {wrong}, label %{here}, label %{go}")
        lines, self.lines = self.lines, []
        self.label(here)
        guard = () if micro_op.guard is None else ((micro_op.guard[0], 0, 1),)
        for slot in (*operands(micro_op), *guard):
            if slot[0] not in self.constants and slot[0] not in self.fixed:
                self.store_home(slot, self.env[slot][WORDS])
        self.put(f"store i64 {self.let(f'add i64 {code}, %offset1')}, ptr %wrong, align 8")
        self.put(f"store i32 {self.mask}, ptr %there, align 4")
        self.put(f"store i64 {at}, ptr %position, align 8")
        self.put("br label %mistake")
        self.failures += self.lines
        self.lines = lines
        self.label(go)

    def addresses(self, slot: Slot, offset: int, target: str, ranked: bool = False) -> None:
        """Store the addresses of the lanes, or what else there is of each, at `target`."""
        bits = 8 * slot[2]
        kind = VECTOR[bits]
        for half, value in enumerate(self.read(slot)):
            if offset:
                value = self.let(f"add {kind} {value}, splat (i{bits} {offset})")
            if ranked:
                upper = self.let(f"lshr {kind} {value}, splat (i32 {CLUSTER_SHIFT})")
                own = self.let(f"icmp eq {kind} {upper}, splat (i32 {OWN})")
                lower = self.let(f"and {kind} {value}, splat (i32 {(1 << CLUSTER_SHIFT) - 1})")
                value = self.select(own, kind, lower, value)
            at = target if half == 0 else self.let(f"getelementptr i8, ptr {target}, i64 {LANES * slot[2]}")
            self.put(f"store {kind} {value}, ptr {at}, align 8")

    def counted(self, lanes: str) -> str:
        return self.let(f"zext i32 {self.let(f'call i32 @llvm.ctpop.i32(i32 {lanes})')} to i64")

    def guarded(self, at: int, micro_op: MicroOp) -> None:
        """An access of the lanes where its guard holds."""
        assert micro_op.guard is not None
        vreg, negated = micro_op.guard
        test = f"icmp {'eq' if negated else 'ne'} {VECTOR[8]}"
        low, high = (self.let(f"{test} {x}, zeroinitializer") for x in self.read((vreg, 0, 1)))
        lanes = self.let(f"and i32 {self.mask}, {self.bits_of((low, high))}")
        self.bump(self.layout.guarded[at], self.counted(lanes))
        old = {slot: self.read(slot) for slot in results(micro_op)}
        around = self.mask, self.halves
        self.mask, self.halves = lanes, self.lanes_of(lanes)
        self.access(at, micro_op)
        for slot, before in old.items():
            some = zip(self.halves, self.read(slot), before, strict=True)
            kind = VECTOR[8 * slot[2]]
            low, high = (self.select(there, kind, new, kept) for there, new, kept in some)
            self.write(slot, (low, high))
        self.mask, self.halves = around

    def access(self, at: int, micro_op: MicroOp) -> None:
        how = micro_op.access
        assert how is not None
        lanes = self.let(f"zext i32 {self.mask} to i64")
        first, memory = "%offset1", self.word(MEMORY)
        if how.kind == COPY:
            targets = "%narrow", "%wide", "%bytes"
            offsets = micro_op.numbers[TO_OFFSET], micro_op.numbers[FROM_OFFSET], 0
            for slot, offset, target in zip(micro_op.slots[1:4], offsets, targets, strict=True):
                self.addresses(slot, offset, target)
            function = self.pointer(self.word(helper(how)))
            numbers = [
                memory, *(self.let(f"ptrtoint ptr {x} to i64") for x in targets), lanes,
                str(micro_op.numbers[SIZE]),
                *(self.word(self.layout.words["copy", at, i]) for i in range(4)), first,
            ]  # fmt: skip
        else:
            base = micro_op.slots[1]
            target = "%wide" if base[2] == 8 else "%narrow"
            self.addresses(base, micro_op.numbers[OFFSET], target, bool(micro_op.numbers[RANKED]))
            if not results(micro_op):
                for i, slot in enumerate(operands(micro_op)[1:]):
                    kind = VECTOR[8 * slot[2]]
                    for half, value in enumerate(self.read(slot)):
                        pointer = self.let(
                            f"getelementptr i8, ptr %words, i64 {LANES * slot[2] * (2 * i + half)}"
                        )
                        self.put(f"store {kind} {value}, ptr {pointer}, align 8")
            function = self.pointer(self.word(helper(how)))
            numbers = [
                memory, self.let(f"ptrtoint ptr {target} to i64"), lanes,
                self.let("ptrtoint ptr %words to i64"), str(how.width), str(how.words),
                str(how.kind), first, str(at),
            ]  # fmt: skip
        given = ", ".join(f"i64 {number}" for number in numbers)
        wrong = self.let(f"call i64 {function}({given})")
        self.fail(at, micro_op, self.let(f"icmp ne i64 {wrong}, 0"), wrong)
        for i, slot in enumerate(results(micro_op)):
            kind, size = VECTOR[8 * slot[2]], slot[2]
            halves = []
            for half in range(2):
                pointer = self.let(f"getelementptr i8, ptr %words, i64 {LANES * size * (2 * i + half)}")
                halves.append(self.let(f"load {kind}, ptr {pointer}, align 8"))
            self.write(slot, (halves[0], halves[1]))
