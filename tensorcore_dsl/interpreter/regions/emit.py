"""Emit a region as an LLVM function: `i64 name(ptr frame, i64 low, i64 high)`.

It executes the region for the threads from `low` to `high`, which are whole warps. It returns 0
unless one of them has failed a check. A warp is two vectors of sixteen lanes. A warp loads registers where
it enters the region, and stores them where it leaves.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.interpreter.regions.layout import (
    ACTIVE,
    BUDGET,
    COUNTERS,
    ENTRY,
    HELPERS,
    KEPT,
    LANES_THERE,
    LEAVING,
    MERGE,
    MISTAKE,
    POSITION,
    WARPS,
    WRONG,
    FrameLayout,
)
from tensorcore_dsl.interpreter.regions.micro_ops import VECTOR, WHOLE, Pair, RegionEmitter, kinds
from tensorcore_dsl.interpreter.regions.plan import PRODUCTS, RegionBlock, Slot
from tensorcore_dsl.isa.lanes import operation
from tensorcore_dsl.numerics.lanes import FLOATS, LANES

INLINED = 5  # instructions of an operation, at most; more would be compiled for each micro-operation


class Module:
    """Functions of regions, and of the operations in them, which are inlined."""

    def __init__(self) -> None:
        self._module = ir.Module()
        self._functions: list[str] = []
        self._names: dict[tuple[str, int], str] = {}

    def operation(self, name: str, bits: int) -> str:
        """The name of the function of an operation."""
        name_of_function = self._names.get((name, bits))
        if name_of_function is None:
            name_of_function = self._names[name, bits] = f"operation{len(self._names)}"
            op = operation(name, bits)
            lanes = 2 * LANES if op.whole else LANES
            result, *given = (
                ir.VectorType(ir.FloatType() if kind == FLOATS else ir.IntType(width), lanes)
                for kind, width in zip(kinds(op), (op.result or 1, *op.operands), strict=True)
            )
            given += [ir.IntType(64)] * op.literals
            function = ir.Function(self._module, ir.FunctionType(result, given), name_of_function)
            function.linkage = "internal"
            block = function.append_basic_block()
            builder = ir.IRBuilder(block)
            builder.ret(op.emit(builder, *function.args))
            short = len(block.instructions) <= INLINED
            function.attributes.add("alwaysinline" if short else "noinline")
        return name_of_function

    def add(self, name: str, layout: FrameLayout) -> None:
        """Add the function of a region."""
        self._functions.append(_Function(self.operation, name, layout).text())

    def __str__(self) -> str:
        intrinsics = "declare i32 @llvm.ctpop.i32(i32)\ndeclare i32 @llvm.cttz.i32(i32, i1)\n"
        return "\n".join([str(self._module), intrinsics, *self._functions])


class _Function(RegionEmitter, EagerDict):
    """The code of a region."""

    # -- blocks ------------------------------------------------------------------------------------

    def text(self) -> str:  # noqa: PLR0915
        self.put("%mistakes = alloca i64, align 8")
        for name in ("wrong", "position", "left"):
            self.put(f"%{name} = alloca i64, align 8")
        self.put("%there = alloca i32, align 8")
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
            entry = self.word(ENTRY)
        if self.pieces or self.layout.guarded:
            counters = self.pointer(self.word(COUNTERS))
            self.put(f"%counters = getelementptr i64, ptr {counters}, i64 0")
        active, warps = self.word(ACTIVE), self.word(WARPS)
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
        if self.layout.inputs:
            self.put(f"%cta = sdiv i64 %warp, {warps}")
            self.put(f"%before = mul i64 %cta, {warps}")
            self.put("%inside = sub i64 %warp, %before")
        if self.pieces:
            self.blocks(mask, entry)
        else:
            self.mask, self.halves = mask, self.lanes_of(mask)
            (block,) = self.region.blocks
            self.body(block)
            self.keep(mask, {s: self.read(s) for s in self.kept if s not in self.homed})
            self.put("br label %next")
        self.mistake()
        head = f'define i64 @"{self.name}"(ptr %frame, i64 %low, i64 %high) nounwind {{\nentry:'
        return "\n".join([head, *self.lines, *self.failures, "}"])

    @staticmethod
    def _room(how: Any) -> int:
        return 2 * LANES * (16 if how.kind not in HELPERS else how.width * how.words)

    @cached_property
    def passed(self) -> list[Slot]:
        """The registers that lie in variables between blocks."""
        words = self.layout.words
        passed = self.region.passed - self.fixed
        return [w for w in words if isinstance(w[0], int) and w[0] in passed]

    @cached_property
    def kept(self) -> list[Slot]:
        """Slots that the block stores."""
        return sorted(slot for slot in self.layout.written if slot[0] in self.region.kept)

    @cached_property
    def heads(self) -> list[int]:
        """The blocks to which others jump back."""
        return sorted(
            {
                self.numbers[block.jump[0]]
                for block in self.region.blocks
                if block.jump is not None and block.jump[0] in self.numbers and block.jump[0] < block.end
            }
        )

    def body(self, block: RegionBlock) -> None:
        for at, micro_op in block.micro_ops:
            if micro_op.guard is not None:
                self.guarded(at, micro_op)
            elif micro_op.name == PRODUCTS:
                self.multiply(at, micro_op)
            else:
                (self.operate if micro_op.access is None else self.access)(at, micro_op)

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
        pointer = f"%stop{self.stops[at]}"
        old = self.let(f"load i32, ptr {pointer}, align 4")
        self.put(f"store i32 {self.let(f'or i32 {old}, {lanes}')}, ptr {pointer}, align 4")

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
        starts = [at for at in self.region.reads_at_entry]
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
        self.env, self.fresh, self.homed = {}, set(), set()
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
        pointer = self.pointer(self.let(f"add i64 {first}, %offset1"))
        self.put(f"store {WHOLE[8]} {flags}, ptr {pointer}, align 1")
        self.put(f"br label %{end}")
        self.label(end)

    def block(self, number: int, block: RegionBlock, following: str) -> None:  # noqa: PLR0915
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
        self.env, self.fresh, self.homed = {}, set(), set()
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
        """Record the failed check of a warp: that of the first position, and there of the first warp."""
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
            (POSITION, at),
            (WRONG, self.let("load i64, ptr %wrong, align 8")),
            (LANES_THERE, self.let(f"zext i32 {there} to i64")),
        ):
            pointer = self.let(f"getelementptr i64, ptr {noted}, i64 {number}")
            self.put(f"store i64 {value}, ptr {pointer}, align 8")
        self.put("br label %next")
