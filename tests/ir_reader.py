"""Parser of the text form of IR, so that tests can write kernels that the frontend does not make."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tensorcore_dsl.dtypes import ALL, DType, pred
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.text import ATTRIBUTES
from tensorcore_dsl.isa import instruction
from tensorcore_dsl.isa.spec import Instruction

from tensorcore_dsl.ir.nodes import (  # isort: skip
    DYNAMIC_ALIGN, Address, Assign, Block, Const, For, If, Im2col, Jump, Kernel, Node, Op, Param, Part,
    Source, TensorMap, Type, Value, While,
)  # fmt: skip

_INT = r"(\d+)\b"
_NUMBER = r"(true|false|nan|-?inf|-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b)"
_TYPE = rf":(\w+)(?:\*{_INT})?(?:@([\w.]+))?"
_STRING = r'("(?:[^"\\]|\\.)*")'


def parse_kernel(text: str, lookup: Callable[[str], Instruction] = instruction) -> Kernel:
    """Parse `text`; `lookup` finds instructions by mnemonic. ValueError names the line."""
    return _Reader(text, lookup).kernel()


@dataclass
class _Cursor:
    """One line of the text and the read position in it."""

    number: int
    text: str
    position: int = 0

    def maybe(self, pattern: str) -> re.Match[str] | None:
        """Skip blanks and read `pattern`; None if it does not match."""
        match = re.compile(rf"\s*{pattern}").match(self.text, self.position)
        if match:
            self.position = match.end()
        return match

    def take(self, pattern: str) -> re.Match[str]:
        match = self.maybe(pattern)
        if match is None:
            remainder = self.text[self.position :]
            raise ValueError(f"line {self.number} of the IR: {remainder!r} does not begin with {pattern}")
        return match

    def end(self) -> None:
        self.take("$")


@dataclass
class _Reader:
    text: str
    lookup: Callable[[str], Instruction]
    values: dict[int, Value] = field(default_factory=dict)
    locs: dict[int, Loc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = [
            _Cursor(number, line)
            for number, line in enumerate(self.text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("//")
        ]
        for c in lines:
            if c.text.startswith("loc "):
                self.read_loc(c)
        self.lines = [c for c in lines if not c.text.startswith("loc ")]

    def next(self) -> _Cursor:
        return self.lines.pop(0)

    # Structure.

    def kernel(self) -> Kernel:
        c = self.next()
        kernel = Kernel(c.take(r"kernel\s+([^\s(]+)\(")[1], [], Block())
        while not c.maybe(r"\)"):
            label = c.take(r",?\s*([^\s=]+)\s*=")[1]
            kernel.params.append(Param(label, self.value(c), self.tensor_map(c)))
        if match := c.maybe(rf"shared {_INT} align {_INT}"):
            kernel.shared_bytes, kernel.shared_align = int(match[1]), int(match[2])
        if match := c.maybe(rf"dynamic(?: align {_INT})?"):
            kernel.dynamic = int(match[1] or DYNAMIC_ALIGN)
        for attribute in ATTRIBUTES:
            if match := c.maybe(rf"{attribute} {_INT}"):
                setattr(kernel, attribute, int(match[1]))
        if match := c.maybe(rf"cluster {_INT} {_INT} {_INT}"):
            kernel.cluster = (int(match[1]), int(match[2]), int(match[3]))
        c.take(r"\{$")
        while match := self.lines[0].maybe(f"string {_STRING}"):
            kernel.strings.append(json.loads(match[1]))
            self.next().end()
        kernel.body, close = self.block()
        close.end()
        if self.lines:
            raise ValueError(f"line {self.lines[0].number} of the IR is behind the kernel's end")
        return kernel

    def tensor_map(self, c: _Cursor) -> TensorMap | None:
        if not (match := c.maybe(rf"map {_INT}")):
            return None
        axes, box = (self.numbers(c, word) for word in ("axes", "box"))
        swizzle = c.maybe(rf"swizzle {_INT}")
        im2col = None
        if c.maybe(r"(?=lower )"):
            im2col = Im2col(*[self.numbers(c, word) for word in Im2col._fields])
        nan_fill = bool(c.maybe("nan"))
        swizzled = int(swizzle[1]) if swizzle else 0
        return TensorMap(int(match[1]), axes, box, swizzled, im2col=im2col, nan_fill=nan_fill)

    def numbers(self, c: _Cursor, word: str) -> tuple[int, ...]:
        return tuple(map(int, c.take(rf"{word}((?: -?\d+\b)+)")[1].split()))

    def block(self) -> tuple[Block, _Cursor]:
        """Nodes up to a `}`, and the rest of that line."""
        block = Block()
        while True:
            c = self.next()
            if c.maybe(r"\}"):
                return block, c
            block.nodes.append(self.node(c))

    def node(self, c: _Cursor) -> Node:
        word = c.maybe(r"(for|while|if|break|continue|return)\b(?=[\s{]|$)")
        if word is None:
            return self.statement(c)
        if word[1] == "for":
            return self.for_(c)
        if word[1] == "while":
            return self.while_(c)
        return self.if_(c) if word[1] == "if" else Jump(word[1], self.loc(c))

    def for_(self, c: _Cursor) -> For:
        index = self.value(c)
        bounds = []
        for mark in ("=", "to", "step"):
            c.take(mark)
            bounds.append(self.scalar(c, index.type.dtype))
        start, stop, step = bounds
        loc = self.open(c)
        body, close = self.block()
        close.end()
        return For(index, start, stop, step, body, loc)

    def while_(self, c: _Cursor) -> While:
        loc = self.open(c)
        test, c = self.block()
        c.take("do")
        condition = self.scalar(c, pred)
        self.open(c)
        body, close = self.block()
        close.end()
        return While(test, condition, body, loc)

    def if_(self, c: _Cursor) -> If:
        condition = self.value(c)
        loc = self.open(c)
        then, c = self.block()
        orelse = Block()
        if c.maybe("else"):
            self.open(c)
            orelse, c = self.block()
        c.end()
        return If(condition, then, orelse, loc)

    def open(self, c: _Cursor) -> Loc | None:
        c.take(r"\{")
        return self.loc(c)

    # Ops and copies.

    def statement(self, c: _Cursor) -> Op | Assign:
        guard, negated = None, False
        if mark := c.maybe("@(!?)"):
            guard, negated = self.value(c), bool(mark[1])
        results: list[Value] = []
        while c.maybe("(?=%)"):
            results.append(self.value(c))
            if not c.maybe(","):
                break
        if len(results) == 1 and guard is None and c.maybe("<-"):
            return self.copy(c, results[0])
        if results:
            c.take("=")
        instr = self.lookup(c.take(r"([A-Za-z]\S*)")[1])
        operands = self.operands(c, instr)
        return Op(instr, tuple(results), operands, guard, negated, self.loc(c))

    def copy(self, c: _Cursor, target: Value) -> Assign:
        sources = [self.source(c, target.type.dtype)]
        while c.maybe(","):
            sources.append(self.source(c, target.type.dtype))
        return Assign(target, tuple(sources), self.loc(c))  # type: ignore[arg-type]

    def operands(self, c: _Cursor, instr: Instruction) -> tuple[Source, ...]:
        operands: list[Source] = []
        while not c.maybe(r"(?=$|#)"):
            if operands:
                c.take(",")
            place = len(operands)
            wanted = instr.operands[place].dtype if place < len(instr.operands) else pred
            operands.append(self.source(c, wanted))
        return tuple(operands)

    def loc(self, c: _Cursor) -> Loc | None:
        mark = c.maybe(rf"#{_INT}")
        c.end()
        return self.locs[int(mark[1])] if mark else None

    def read_loc(self, c: _Cursor) -> None:
        number, file, line, column, end, function = c.take(
            rf"loc {_INT} {_STRING}:{_INT}:{_INT}-{_INT} {_STRING}"
        ).groups()
        caller = c.maybe(rf"from {_INT}")
        c.end()
        called_from = self.locs[int(caller[1])] if caller else None
        places = int(line), int(column), int(end)
        self.locs[int(number)] = Loc(json.loads(file), *places, json.loads(function), called_from)

    # Values.

    def value(self, c: _Cursor) -> Value:
        value = self.part(c)
        assert isinstance(value, Value), f"line {c.number} of the IR: a whole value is needed"
        return value

    def part(self, c: _Cursor) -> Value | Part:
        """A value, with its type if it is new, or one of its registers."""
        match = c.take(rf"%{_INT}(?:\.{_INT})?")
        number, register = int(match[1]), match[2]
        if kind := c.maybe(_TYPE):
            value = Value(number, Type(ALL[kind[1]], int(kind[2] or 1), kind[3]))
            assert self.values.setdefault(number, value).type == value.type, f"%{number} has two types"
        value = self.values[number]
        return value if register is None else Part(value, int(register))

    def source(self, c: _Cursor, wanted: DType) -> Source:
        if c.maybe("(?=%)"):
            return self.part(c)
        if c.maybe(r"\["):
            base = self.scalar(c, wanted)
            offset = c.maybe(r"([+-]\d+)\b")
            c.take(r"\]")
            return Address(base, int(offset[1]) if offset else 0)
        return self.constant(c, wanted)

    def scalar(self, c: _Cursor, wanted: DType) -> Value | Const:
        return self.value(c) if c.maybe("(?=%)") else self.constant(c, wanted)

    def constant(self, c: _Cursor, wanted: DType) -> Const:
        text = c.take(_NUMBER)[1]
        kind = c.maybe(r":(\w+)")
        dtype = ALL[kind[1]] if kind else wanted
        if text in ("true", "false"):
            return Const(text == "true", dtype)
        return Const(int(text) if re.fullmatch(r"-?\d+", text) else float(text), dtype)
