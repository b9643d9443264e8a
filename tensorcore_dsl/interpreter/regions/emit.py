"""A region as a function in LLVM's language: `i64 name(ptr frame, i64 low, i64 high)`.

It executes the region for the threads from `low` to `high`, which are whole warps, and returns
whether one of them has failed a check. A warp is two vectors of sixteen lanes. Registers are
loaded where the region begins for a warp, and stored where the warp leaves it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir

from tensorcore_dsl.interpreter.regions.plan import NOTHING, Block, Region, Row, Slot
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, OWN
from tensorcore_dsl.isa.lanes import (
    COPY,
    LOAD_GLOBAL,
    LOAD_SHARED,
    STORE_GLOBAL,
    STORE_SHARED,
    Access,
)
from tensorcore_dsl.numerics.lanes import (
    ANY,
    FLOATS,
    LANES,
    NAN,
    OPERATIONS,
    WORDS,
    Operation,
)

# Words of a frame: the flags of the active threads, the number of the block where they start, what
# memory there is, counters (see `Layout`), the flags of those that leave at each exit, where a
# mistake is noted, the table of kept registers (see `memory.merge`), the backward jumps
# of a warp until others are asked, and the functions of `memory`. Behind these lie the words of `Layout.words`.
(
    ACTIVE, ENTRY, MEMORY, COUNTERS, LEAVING, MISTAKE, KEPT, BUDGET, GLOBAL, SHARED, MATRIX, ASYNC,
    MERGE, FIRST,
) = range(14)  # fmt: skip
# What is noted of the first mistake: its position, its code and thread, and the lanes of its warp.
POSITION, WRONG, LANES_THERE, NOTED = range(4)
INLINED = 5  # instructions of an operation, at most; more would be compiled once for each row
CHECK = 63  # code of a failed check of an operation; accesses have other codes
Key = tuple[int, int, int]  # a slot: place, register, bytes

_HELPERS = {LOAD_GLOBAL: GLOBAL, STORE_GLOBAL: GLOBAL, LOAD_SHARED: SHARED, STORE_SHARED: SHARED}
# Numbers of a row that accesses memory: what is added to the address, whether addresses of the own
# CTA may hold its rank; of a copy: what is added to its target and to its source, and its bytes.
OFFSET, RANKED = range(2)
TO_OFFSET, FROM_OFFSET, SIZE = range(3)
LIST = ", ".join(f"i32 {i}" for i in range(2 * LANES))
LOW, HIGH = (", ".join(f"i32 {i}" for i in range(n, n + LANES)) for n in (0, LANES))
VECTOR = {bits: f"<{LANES} x i{bits}>" for bits in (1, 8, 16, 32, 64)}
FLOAT = f"<{LANES} x float>"
WHOLE = {bits: f"<{2 * LANES} x i{bits}>" for bits in (1, 8, 16, 32, 64)}


def helper(how: Access) -> int:
    """The word of the function for an access."""
    return _HELPERS.get(how.kind, ASYNC if how.kind == COPY else MATRIX)


def _group(slot: Slot, count: int) -> tuple[Slot, ...]:
    """Registers of a group, from one on."""
    return tuple((slot[0], slot[1] + i, slot[2]) for i in range(count))


def results(row: Row) -> tuple[Slot, ...]:
    """The registers that a row writes."""
    if row.slots[0] == NOTHING:
        return ()
    how = row.access
    return _group(row.slots[0], 1 if how is None else how.words if how.kind in _HELPERS else 4)


def operands(row: Row) -> tuple[Slot, ...]:
    """The registers, and constants, that a row reads."""
    if row.access is None or row.access.kind not in (STORE_GLOBAL, STORE_SHARED):
        return row.slots[1:]
    return (row.slots[1], *_group(row.slots[2], row.access.words))


class Layout:
    """What the words of a region's frame from FIRST on, and its counters, stand for.

    words: a slot, ("unit", function, number) or ("copy", row, number). Counters, for each block: the
    warps that executed it, their lanes, and most jumps of a warp back to it; then the lanes that
    leave at each of `stops`. written: the registers that it writes. registers: their places, the
    bytes in front of each in a group, as parts of a thread, and their words; kept: the words and
    sizes of those that it stores.
    """

    def __init__(self, region: Region, constants: dict[int, int]) -> None:
        self.words: dict[Any, int] = {}
        self.written: set[Slot] = set()
        for block in region.blocks:
            for at, row in block.rows:
                self.written.update(results(row))
                for slot in (*results(row), *operands(row)):
                    if slot[0] not in constants:
                        self._add(slot)
                if row.function:
                    for number in range(4):
                        self._add(("unit", row.function, number))
                if row.access is not None and row.access.kind == COPY:
                    for number in range(4):
                        self._add(("copy", at, number))
            if block.jump is not None and block.jump[1] is not None:
                self._add((block.jump[1], 0, 1))
        slots = [(w, n) for w, n in self.words.items() if isinstance(w[0], int)]
        self.units = [(w, n) for w, n in self.words.items() if w[0] == "unit"]
        self.registers = tuple(
            np.array(column, np.int64)
            for column in (
                [w[0] for w, _ in slots], [w[1] * w[2] for w, _ in slots], [n for _, n in slots]
            )
        )  # fmt: skip
        kept = [(n, w[2]) for w, n in slots if w[0] in region.kept and w in self.written]
        self.kept = [n for n, _ in kept], [size for _, size in kept]
        blocks = region.blocks if region.stops else ()
        self.stops = (*region.exits, *(block.start for block in blocks))
        self.counters = 3 * len(region.blocks) + len(self.stops)

    def _add(self, word: Any) -> None:
        self.words.setdefault(word, FIRST + len(self.words))


class Module:
    """Functions of regions, and of the operations in them, which are inlined."""

    def __init__(self) -> None:
        self._module = ir.Module()
        self._functions: list[str] = []
        self._names: dict[tuple[str, int], str] = {}

    def operation(self, name: str, bits: int) -> str:
        """The name of the function of an operation."""
        found = self._names.get((name, bits))
        if found is None:
            found = self._names[name, bits] = f"operation{len(self._names)}"
            op = OPERATIONS[name, bits]
            lanes = 2 * LANES if op.whole else LANES
            result, *given = (
                ir.VectorType(ir.FloatType() if kind == FLOATS else ir.IntType(width), lanes)
                for kind, width in zip(_kinds(op), (op.result or 1, *op.operands), strict=True)
            )
            given += [ir.IntType(64)] * op.literals
            function = ir.Function(self._module, ir.FunctionType(result, given), found)
            function.linkage = "internal"
            block = function.append_basic_block()
            builder = ir.IRBuilder(block)
            builder.ret(op.emit(builder, *function.args))
            short = len(block.instructions) <= INLINED
            function.attributes.add("alwaysinline" if short else "noinline")
        return found

    def add(self, name: str, region: Region, constants: dict[int, int]) -> None:
        self._functions.append(_Function(self, name, region, constants).text())

    def __str__(self) -> str:
        intrinsics = "declare i32 @llvm.ctpop.i32(i32)\ndeclare i32 @llvm.cttz.i32(i32, i1)\n"
        return "\n".join([str(self._module), intrinsics, *self._functions])


def _kinds(op: Operation) -> str:
    return op.kinds or WORDS * (1 + len(op.operands))


Pair = tuple[str, str]  # the names of the two vectors of a warp
Value = dict[str, Pair]  # the kinds in which a register is at hand


class _Function:
    def __init__(
        self, module: Module, name: str, region: Region, constants: dict[int, int]
    ) -> None:
        self.module, self.name, self.region, self.constants = module, name, region, constants
        self.layout = Layout(region, constants)
        self.lines: list[str] = []
        self.count = 0
        self.pieces = not region.straight
        self.numbers = {block.start: i for i, block in enumerate(region.blocks)}
        inner = (block.start for block in region.blocks)
        self.stops = {at: i for i, at in enumerate(dict.fromkeys((*self.layout.stops, *inner)))}
        self.env: dict[Key, Value] = {}
        self.fresh: set[Key] = set()  # written in the block
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
        place = self.let(f"getelementptr i64, ptr %frame, i64 {number}")
        return self.let(f"load i64, ptr {place}, align 8")

    def pointer(self, address: str) -> str:
        return self.let(f"inttoptr i64 {address} to ptr")

    def bump(self, number: int, amount: str, most: bool = False) -> None:
        """Add to a counter, or raise it to a number."""
        place = self.let(f"getelementptr i64, ptr %counters, i64 {number}")
        old = self.let(f"load i64, ptr {place}, align 8")
        if most:
            larger = self.let(f"icmp sgt i64 {amount}, {old}")
            new = self.let(f"select i1 {larger}, i64 {amount}, i64 {old}")
        else:
            new = self.let(f"add i64 {old}, {amount}")
        self.put(f"store i64 {new}, ptr {place}, align 8")

    # -- registers ---------------------------------------------------------------------------------

    def home(self, slot: Slot) -> Pair:
        """Where the halves of a register of this warp lie."""
        place = self.let(f"getelementptr i64, ptr %frame, i64 {self.layout.words[slot]}")
        base, size = self.let(f"load ptr, ptr {place}, align 8"), slot[2]
        low = self.let(f"getelementptr i8, ptr {base}, i64 %offset{size}")
        return low, self.let(f"getelementptr i8, ptr {low}, i64 {LANES * size}")

    def load_home(self, slot: Slot) -> Pair:
        load = f"load {VECTOR[8 * slot[2]]}, ptr {{}}, align {slot[2]}"
        low, high = (self.let(load.format(place)) for place in self.home(slot))
        return low, high

    def store_home(self, slot: Slot, value: Pair) -> None:
        for place, lanes in zip(self.home(slot), value, strict=True):
            self.put(f"store {VECTOR[8 * slot[2]]} {lanes}, ptr {place}, align {slot[2]}")

    def select(self, lanes: str, kind: str, yes: str, no: str) -> str:
        return self.let(f"select {VECTOR[1]} {lanes}, {kind} {yes}, {kind} {no}")

    def variable(self, slot: Slot) -> Pair:
        """Where a register lies between blocks."""
        return tuple(f"%r.{slot[0]}.{slot[1]}.{half}" for half in "ab")  # type: ignore[return-value]

    def value(self, slot: Slot) -> Value:
        place, _, size = slot
        if place in self.constants:
            bits = 8 * size
            number = self.constants[place] % (1 << bits)
            number -= (number >> bits - 1) << bits
            return {WORDS: (f"splat (i{bits} {number})",) * 2}  # type: ignore[dict-item]
        found = self.env.get(slot)
        if found is None:
            if self.pieces and place in self.region.passed:
                kind = VECTOR[8 * size]
                pair = tuple(self.let(f"load {kind}, ptr {at}, align 64") for at in self.variable(slot))
            else:
                pair = self.load_home(slot)
            found = self.env[slot] = {WORDS: pair}  # type: ignore[dict-item]
        return found

    def read(self, slot: Slot, kind: str = WORDS) -> Pair:
        value = self.value(slot)
        if kind == ANY and WORDS in value:
            kind = WORDS
        if kind not in value:
            words = VECTOR[32]
            if kind == FLOATS:
                pair = tuple(self.let(f"bitcast {words} {x} to {FLOAT}") for x in value[WORDS])
            else:
                pair = tuple(self.let(f"bitcast {FLOAT} {x} to {words}") for x in value[FLOATS])
            if kind == WORDS:
                nans = [self.let(f"fcmp uno {FLOAT} {x}, zeroinitializer") for x in value[FLOATS]]
                pair = tuple(
                    self.select(nan, words, f"splat (i32 {NAN})", x)
                    for nan, x in zip(nans, pair, strict=True)
                )
            value[kind] = pair  # type: ignore[assignment]
        return value[kind]

    def write(self, slot: Slot, value: Pair, kind: str = WORDS) -> None:
        self.env[slot] = {kind: value}
        self.fresh.add(slot)

    def lanes_of(self, mask: str) -> Pair:
        """The lanes of a mask, as vectors of bits."""
        low = self.let(f"trunc i32 {mask} to i{LANES}")
        high = self.let(f"trunc i32 {self.let(f'lshr i32 {mask}, {LANES}')} to i{LANES}")
        return tuple(self.let(f"bitcast i{LANES} {x} to {VECTOR[1]}") for x in (low, high))  # type: ignore[return-value]

    def bits_of(self, lanes: Pair) -> str:
        """The reverse."""
        low, high = (
            self.let(f"zext i{LANES} {self.let(f'bitcast {VECTOR[1]} {x} to i{LANES}')} to i32")
            for x in lanes
        )
        return self.let(f"or i32 {low}, {self.let(f'shl i32 {high}, {LANES}')}")

    def joined(self, bits: int, value: Pair) -> str:
        kind = VECTOR[bits]
        return self.let(
            f"shufflevector {kind} {value[0]}, {kind} {value[1]}, <{2 * LANES} x i32> <{LIST}>"
        )

    def parted(self, bits: int, whole: str) -> Pair:
        kind = WHOLE[bits]
        return tuple(  # type: ignore[return-value]
            self.let(f"shufflevector {kind} {whole}, {kind} poison, <{LANES} x i32> <{part}>")
            for part in (LOW, HIGH)
        )

    # -- rows --------------------------------------------------------------------------------------

    def operate(self, at: int, row: Row) -> None:
        if row.name == "copy":
            self.env[row.slots[0]] = dict(self.value(row.slots[1]))
            self.fresh.add(row.slots[0])
            return
        op, name = OPERATIONS[row.name, row.bits], self.module.operation(row.name, row.bits)
        made, *taken = _kinds(op)
        values = [self.read(slot, kind) for slot, kind in zip(row.slots[1:], taken, strict=True)]
        if row.function:
            numbers = [self.word(self.layout.words["unit", row.function, i]) for i in range(4)]
        else:
            numbers = [str(number) for number in row.numbers]
        given = [f"i64 {number}" for number in numbers]
        if op.whole:
            words = [
                f"{WHOLE[bits]} {self.joined(bits, value)}"
                for bits, value in zip(op.operands, values, strict=True)
            ]
            found = self.let(f"call {WHOLE[op.result]} @{name}({', '.join(words + given)})")
            self.write(row.slots[0], self.parted(op.result, found))
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
            self.write(row.slots[0], (result[0], result[1]), made)
            return
        wrong = tuple(
            self.let(f"and {VECTOR[1]} {x}, {m}") for x, m in zip(result, self.halves)
        )
        bits = self.bits_of(wrong)  # type: ignore[arg-type]
        lane = self.let(f"zext i32 {self.let(f'call i32 @llvm.cttz.i32(i32 {bits}, i1 false)')} to i64")
        code = self.let(f"or i64 {lane}, {CHECK << 32}")
        self.fail(at, row, self.let(f"icmp ne i32 {bits}, 0"), code)

    def fail(self, at: int, row: Row, wrong: str, code: str) -> None:
        """Leave where `wrong`: note the position, and store the operands of the step."""
        self.count += 1
        here, go = f"fail{self.count}", f"go{self.count}"
        self.put(f"br i1 {wrong}, label %{here}, label %{go}")
        lines, self.lines = self.lines, []
        self.label(here)
        for slot in operands(row):
            if slot[0] not in self.constants:
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
            at = target if half == 0 else self.let(
                f"getelementptr i8, ptr {target}, i64 {LANES * slot[2]}"
            )
            self.put(f"store {kind} {value}, ptr {at}, align 8")

    def access(self, at: int, row: Row) -> None:
        how = row.access
        assert how is not None
        lanes = self.let(f"zext i32 {self.mask} to i64")
        first, memory = "%offset1", self.word(MEMORY)
        if how.kind == COPY:
            targets = "%narrow", "%wide", "%bytes"
            offsets = row.numbers[TO_OFFSET], row.numbers[FROM_OFFSET], 0
            for slot, offset, target in zip(row.slots[1:4], offsets, targets, strict=True):
                self.addresses(slot, offset, target)
            function = self.pointer(self.word(helper(how)))
            numbers = [
                memory, *(self.let(f"ptrtoint ptr {x} to i64") for x in targets), lanes,
                str(row.numbers[SIZE]),
                *(self.word(self.layout.words["copy", at, i]) for i in range(4)), first,
            ]  # fmt: skip
        else:
            base = row.slots[1]
            target = "%wide" if base[2] == 8 else "%narrow"
            self.addresses(base, row.numbers[OFFSET], target, bool(row.numbers[RANKED]))
            if not results(row):
                for i, slot in enumerate(operands(row)[1:]):
                    kind = VECTOR[8 * slot[2]]
                    for half, value in enumerate(self.read(slot)):
                        place = self.let(
                            f"getelementptr i8, ptr %words, i64 {LANES * slot[2] * (2 * i + half)}"
                        )
                        self.put(f"store {kind} {value}, ptr {place}, align 8")
            function = self.pointer(self.word(helper(how)))
            numbers = [
                memory, self.let(f"ptrtoint ptr {target} to i64"), lanes,
                self.let("ptrtoint ptr %words to i64"), str(how.width), str(how.words),
                str(how.kind), first, str(at),
            ]  # fmt: skip
        given = ", ".join(f"i64 {number}" for number in numbers)
        wrong = self.let(f"call i64 {function}({given})")
        self.fail(at, row, self.let(f"icmp ne i64 {wrong}, 0"), wrong)
        for i, slot in enumerate(results(row)):
            kind, size = VECTOR[8 * slot[2]], slot[2]
            halves = []
            for half in range(2):
                place = self.let(
                    f"getelementptr i8, ptr %words, i64 {LANES * size * (2 * i + half)}"
                )
                halves.append(self.let(f"load {kind}, ptr {place}, align 8"))
            self.write(slot, (halves[0], halves[1]))

    # -- blocks ------------------------------------------------------------------------------------

    def text(self) -> str:
        self.put("%mistakes = alloca i64, align 8")
        for name, kind in (("wrong", "i64"), ("position", "i64"), ("there", "i32"), ("left", "i64")):
            self.put(f"%{name} = alloca {kind}, align 8")
        if self.region.accesses:
            words = max(self._room(how) for how in self.region.accesses)
            for name, size in (("wide", 256), ("narrow", 128), ("bytes", 128), ("words", words)):
                self.put(f"%{name} = alloca [{size} x i8], align 64")
        self.put("store i64 0, ptr %mistakes, align 8")
        if self.pieces:
            for slot in self.passed:
                for name in self.variable(slot):
                    self.put(f"{name} = alloca {VECTOR[8 * slot[2]]}, align 64")
            for number in self.stops.values():
                self.put(f"%stop{number} = alloca i32, align 4")
            for number in self.heads:
                self.put(f"%turns{number} = alloca i64, align 8")
            counters = self.pointer(self.word(COUNTERS))
            self.put(f"%counters = getelementptr i64, ptr {counters}, i64 0")
            entry = self.word(ENTRY)
        active = self.word(ACTIVE)
        first, last = (self.let(f"sdiv i64 %{x}, {2 * LANES}") for x in ("low", "high"))
        self.put("br label %test")
        self.label("test")
        self.put(f"%warp = phi i64 [ {first}, %entry ], [ %following, %next ]")
        more = self.let(f"icmp slt i64 %warp, {last}")
        self.put(f"br i1 {more}, label %begin, label %done")
        self.label("next")
        self.put("%following = add i64 %warp, 1")
        self.put("br label %test")
        self.label("done")
        self.put("%result = load i64, ptr %mistakes, align 8")
        self.put("ret i64 %result")
        self.label("begin")
        for size in (1, 2, 4, 8):
            self.put(f"%offset{size} = mul i64 %warp, {2 * LANES * size}")
        flags = self.pointer(self.let(f"add i64 {active}, %offset1"))
        loaded = self.let(f"load {WHOLE[8]}, ptr {flags}, align 1")
        on = self.let(f"icmp ne {WHOLE[8]} {loaded}, zeroinitializer")
        mask = self.let(f"bitcast {WHOLE[1]} {on} to i32")
        idle = self.let(f"icmp eq i32 {mask}, 0")
        self.put(f"br i1 {idle}, label %next, label %start")
        self.label("start")
        if self.pieces:
            self.blocks(mask, entry)
        else:
            self.mask, self.halves = mask, self.lanes_of(mask)
            (block,) = self.region.blocks
            self.body(block)
            self.keep(mask, {slot: self.read(slot) for slot in self.kept})
            self.put("br label %next")
        self.mistake()
        head = f'define i64 @"{self.name}"(ptr %frame, i64 %low, i64 %high) nounwind {{\nentry:'
        return "\n".join([head, *self.lines, *self.failures, "}"])

    @staticmethod
    def _room(how: Any) -> int:
        return 2 * LANES * (16 if how.kind not in _HELPERS else how.width * how.words)

    @cached_property
    def passed(self) -> list[Slot]:
        """The registers that lie in variables between blocks."""
        words = self.layout.words
        return [w for w in words if isinstance(w[0], int) and w[0] in self.region.passed]

    @cached_property
    def kept(self) -> list[Slot]:
        """Those that it stores."""
        return sorted(slot for slot in self.layout.written if slot[0] in self.region.kept)

    @cached_property
    def heads(self) -> list[int]:
        """The blocks to which others jump back."""
        return sorted({
            self.numbers[block.jump[0]]
            for block in self.region.blocks
            if block.jump is not None and block.jump[0] in self.numbers
            and block.jump[0] < block.end
        })  # fmt: skip

    def body(self, block: Block) -> None:
        for at, row in block.rows:
            (self.operate if row.access is None else self.access)(at, row)

    def keep(self, mask: str, values: dict[Slot, Pair]) -> None:
        """Store registers of the lanes in a mask, where it is not full with the help of `merge`."""
        if not values:
            return
        self.count += 1
        some, go, mix, end = (f"{name}{self.count}" for name in ("save", "keep", "mix", "kept"))
        self.put(f"br i1 {self.full(mask)}, label %{go}, label %{some}")
        for name, after in ((some, go), (go, "")):
            self.label(name)
            if after:
                self.merge(mask, False)
                self.put(f"br label %{after}")
        for slot, value in values.items():
            self.store_home(slot, value)
        self.put(f"br i1 {self.full(mask)}, label %{end}, label %{mix}")
        self.label(mix)
        self.merge(mask, True)
        self.put(f"br label %{end}")
        self.label(end)

    def full(self, mask: str) -> str:
        return self.let(f"icmp eq i32 {mask}, -1")

    def merge(self, mask: str, back: bool) -> None:
        """Call `memory.merge` for the registers that are kept."""
        lanes = self.let(f"zext i32 {mask} to i64")
        numbers = [self.word(KEPT), "%warp", lanes, str(int(back))]
        given = ", ".join(f"i64 {number}" for number in numbers)
        self.put(f"call void {self.pointer(self.word(MERGE))}({given})")

    def pend(self, at: int, lanes: str) -> None:
        """Let lanes go to a position."""
        place = f"%stop{self.stops[at]}"
        old = self.let(f"load i32, ptr {place}, align 4")
        self.put(f"store i32 {self.let(f'or i32 {old}, {lanes}')}, ptr {place}, align 4")

    def blocks(self, mask: str, entry: str) -> None:
        for number in self.stops.values():
            self.put(f"store i32 0, ptr %stop{number}, align 4")
        for number in self.heads:
            self.put(f"store i64 0, ptr %turns{number}, align 8")
        self.put(f"store i64 {self.word(BUDGET)}, ptr %left, align 8")
        for slot in self.passed:
            if slot[0] not in self.region.loaded:
                continue
            for name, half in zip(self.variable(slot), self.load_home(slot), strict=True):
                self.put(f"store {VECTOR[8 * slot[2]]} {half}, ptr {name}, align 64")
        starts = [at for at in self.region.reads]
        cases = " ".join(f"i64 {self.numbers[at]}, label %at{self.numbers[at]}" for at in starts)
        self.put(f"switch i64 {entry}, label %at{self.numbers[starts[0]]} [ {cases} ]")
        for at in starts:
            self.label(f"at{self.numbers[at]}")
            self.put(f"store i32 {mask}, ptr %stop{self.stops[at]}, align 4")
            self.put(f"br label %block{self.numbers[at]}")
        count = len(self.region.blocks)
        for number, block in enumerate(self.region.blocks):
            self.block(number, block, f"%block{number + 1}" if number + 1 < count else "%leave")
        self.label("leave")
        self.env, self.fresh = {}, set()
        self.keep(mask, {slot: self.read(slot) for slot in self.kept})
        for number in range(len(self.layout.stops)):
            self.depart(number)
        for number in self.heads:
            turns = self.let(f"load i64, ptr %turns{number}, align 8")
            self.bump(3 * number + 2, turns, most=True)
        self.put("br label %next")

    def depart(self, number: int) -> None:
        """Note the lanes that leave at a position."""
        lanes = self.let(f"load i32, ptr %stop{number}, align 4")
        self.count += 1
        some, end = f"some{self.count}", f"end{self.count}"
        self.put(f"br i1 {self.let(f'icmp eq i32 {lanes}, 0')}, label %{end}, label %{some}")
        self.label(some)
        self.bump(3 * len(self.region.blocks) + number, self.counted(lanes))
        bits = self.let(f"bitcast i32 {lanes} to {WHOLE[1]}")
        flags = self.let(f"zext {WHOLE[1]} {bits} to {WHOLE[8]}")
        row = self.let(f"getelementptr i64, ptr %frame, i64 {LEAVING}")
        base = self.let(f"load i64, ptr {row}, align 8")
        table = self.pointer(base)
        at = self.let(f"getelementptr i64, ptr {table}, i64 {number}")
        first = self.let(f"load i64, ptr {at}, align 8")
        place = self.pointer(self.let(f"add i64 {first}, %offset1"))
        self.put(f"store {WHOLE[8]} {flags}, ptr {place}, align 1")
        self.put(f"br label %{end}")
        self.label(end)

    def counted(self, lanes: str) -> str:
        return self.let(f"zext i32 {self.let(f'call i32 @llvm.ctpop.i32(i32 {lanes})')} to i64")

    def block(self, number: int, block: Block, following: str) -> None:
        own = f"%stop{self.stops[block.start]}"
        self.label(f"block{number}")
        lanes = self.mask = self.let(f"load i32, ptr {own}, align 4")
        idle = self.let(f"icmp eq i32 {lanes}, 0")
        self.put(f"br i1 {idle}, label {following}, label %body{number}")
        self.label(f"body{number}")
        if block.whole:
            full = self.let(f"icmp eq i32 {lanes}, -1")
            self.put(f"br i1 {full}, label %whole{number}, label %leave")
            self.label(f"whole{number}")
        self.put(f"store i32 0, ptr {own}, align 4")
        self.halves = self.lanes_of(lanes)
        self.env, self.fresh = {}, set()
        self.bump(3 * number, "1")
        if block.accesses:
            self.bump(3 * number + 1, self.counted(lanes))
        self.body(block)
        stay = lanes
        if block.jump is not None and block.jump[1] is not None:
            flags = self.read((block.jump[1], 0, 1))
            kind = VECTOR[8]
            truths = tuple(self.let(f"icmp ne {kind} {x}, zeroinitializer") for x in flags)
            stay = self.let(f"and i32 {lanes}, {self.bits_of(truths)}")  # type: ignore[arg-type]
        for slot in sorted(self.fresh):
            if slot[0] in self.region.passed:
                for at, new in zip(self.variable(slot), self.read(slot), strict=True):
                    kind = VECTOR[8 * slot[2]]
                    if self.region.forks:
                        old = self.let(f"load {kind}, ptr {at}, align 64")
                        half = self.halves[at.endswith("b")]
                        new = self.select(half, kind, new, old)
                    self.put(f"store {kind} {new}, ptr {at}, align 64")
        if block.jump is None:
            self.pend(block.end, lanes)
        else:
            target, condition = block.jump
            away = lanes
            if condition is not None:
                self.pend(block.end, stay)
                away = self.let(f"xor i32 {lanes}, {stay}")
            self.pend(target, away)
            if target in self.numbers and target < block.end:
                self.back(self.numbers[target], away, following)
                return
        self.put(f"br label {following}")

    def back(self, head: int, lanes: str, following: str) -> None:
        """Jump back, if a lane does."""
        self.count += 1
        again, turn = f"again{self.count}", f"turn{self.count}"
        some = self.let(f"icmp ne i32 {lanes}, 0")
        self.put(f"br i1 {some}, label %{turn}, label {following}")
        self.label(turn)
        for name, step in ((f"%turns{head}", 1), ("%left", -1)):
            old = self.let(f"load i64, ptr {name}, align 8")
            new = self.let(f"add i64 {old}, {step}")
            self.put(f"store i64 {new}, ptr {name}, align 8")
        self.put(f"br i1 {self.let(f'icmp sgt i64 {new}, 0')}, label %{again}, label %leave")
        self.label(again)
        self.put(f"br label %block{head}")

    def mistake(self) -> None:
        """Where a warp has failed a check: the first position counts, and there the first warp."""
        self.label("mistake")
        noted = self.pointer(self.word(MISTAKE))
        at = self.let("load i64, ptr %position, align 8")
        best = self.let(f"load i64, ptr {noted}, align 8")
        self.put("store i64 1, ptr %mistakes, align 8")
        earlier = self.let(f"icmp slt i64 {at}, {best}")
        self.put(f"br i1 {earlier}, label %note, label %next")
        self.label("note")
        there = self.let("load i32, ptr %there, align 4")
        for number, value in (
            (POSITION, at), (WRONG, self.let("load i64, ptr %wrong, align 8")),
            (LANES_THERE, self.let(f"zext i32 {there} to i64")),
        ):  # fmt: skip
            place = self.let(f"getelementptr i64, ptr {noted}, i64 {number}")
            self.put(f"store i64 {value}, ptr {place}, align 8")
        self.put("br label %next")
