"""Parser of the text form of IR, so that tests can write kernels that the frontend does not make."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tensorcore_dsl.dtypes import ALL, DType, pred
from tensorcore_dsl.errors import CompileError, Loc, UnknownInstruction, listing
from tensorcore_dsl.ir.text import ATTRIBUTES
from tensorcore_dsl.isa import instruction
from tensorcore_dsl.isa.spec import Instruction

from tensorcore_dsl.ir.nodes import (  # isort: skip
    DYNAMIC_ALIGN, MAX_NESTING, Address, Assign, Block, Const, For, If, Im2col, Jump, Kernel, Node, Op,
    Param, Part, Source, TensorMap, Type, Value, While,
)  # fmt: skip

MAX_SHOWN = 200  # characters of a line in messages


def parse_kernel(text: str, lookup: Callable[[str], Instruction] = instruction) -> Kernel:
    """Parse `text`; `lookup` finds instructions by mnemonic. CompileError names the line."""
    return _Reader(text, lookup).kernel()


_INT = r"(?a:\d{1,40})\b"  # enough for all that IR has
_NUMBER = r"(true|false|nan|-?inf|-?(?a:\d{1,40}(?:\.\d{1,40})?(?:e[+-]?\d{1,4})?)\b)"
_TYPE = rf":(\w+)(?:\*({_INT}))?(?:@([\w.]+))?"
_STRING = r'"(?:[^"\\]|\\.)*"'


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _string(c: _Cursor, text: str) -> str:
    """The string that stands in quotes."""
    try:
        string = str(json.loads(text))
        string.encode()
    except ValueError as error:  # also half a surrogate pair
        raise CompileError(f"line {c.number}: {_shortened(text)} is no string: {error}") from None
    return string


@dataclass
class _Cursor:
    """One line of the text and the read position in it."""

    number: int
    text: str
    position: int = 0

    def fail(self, expected: str) -> CompileError:
        remainder = self.text[self.position :].strip()
        remainder = f"found {_shortened(remainder)!r}" if remainder else "the line ends"
        text = _shortened(self.text)
        return CompileError(f"line {self.number}: expected {expected}, {remainder}\n    {text}")

    def maybe(self, pattern: str) -> re.Match[str] | None:
        """Skip blanks and read `pattern`; None if it does not match."""
        match = re.compile(rf"\s*{pattern}").match(self.text, self.position)
        if match:
            self.position = match.end()
        return match

    def take(self, pattern: str, expected: str) -> re.Match[str]:
        match = self.maybe(pattern)
        if match is None:
            raise self.fail(expected)
        return match

    def end(self) -> None:
        self.take("$", "the end of the line")


@dataclass
class _Reader:
    text: str
    lookup: Callable[[str], Instruction]
    values: dict[int, Value] = field(default_factory=dict)
    locs: dict[int, Loc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbered = enumerate(self.text.splitlines(), 1)
        lines = [(n, x) for n, x in numbered if x.strip() and not x.lstrip().startswith("//")]
        for number, line in lines:
            if line.startswith("loc "):
                self.read_loc(_Cursor(number, line))
        self.lines = [_Cursor(n, x) for n, x in lines if not x.startswith("loc ")]
        self.last = lines[-1][0] if lines else 0
        self.at = self.depth = 0

    def next(self, expected: str) -> _Cursor:
        if self.at == len(self.lines):
            raise CompileError(f"line {self.last + 1}: expected {expected}, the text ends")
        self.at += 1
        return self.lines[self.at - 1]

    # Structure.

    def kernel(self) -> Kernel:
        c = self.next("`kernel`")
        name = c.take(r"kernel\s+([^\s(]+)\(", "`kernel name(`")[1]
        params: list[Param] = []
        while not c.maybe(r"\)"):
            if params:
                c.take(",", "`,` or `)`")
            label = c.take(r"([^\s=]+)\s*=", "`name =`")[1]
            params.append(Param(label, self.value(c), self.tensor_map(c)))
        kernel = Kernel(name, params, Block())
        if match := c.maybe(rf"shared ({_INT}) align ({_INT})"):
            kernel.shared_bytes, kernel.shared_align = int(match[1]), int(match[2])
        if match := c.maybe(rf"dynamic(?: align ({_INT}))?"):
            kernel.dynamic = int(match[1] or DYNAMIC_ALIGN)
        for attribute in ATTRIBUTES:
            if match := c.maybe(rf"{attribute} ({_INT})"):
                setattr(kernel, attribute, int(match[1]))
        if match := c.maybe(rf"cluster ({_INT}) ({_INT}) ({_INT})"):
            kernel.cluster = (int(match[1]), int(match[2]), int(match[3]))
        words = ", ".join(("shared", "dynamic", *ATTRIBUTES, "cluster"))
        c.take(r"\{", f"{words} (in this order) or `{{`")
        c.end()
        while self.at < len(self.lines) and (s := self.lines[self.at].maybe(f"string ({_STRING})")):
            kernel.strings.append(_string(self.lines[self.at], s[1]))
            self.next("a string").end()
        kernel.body, close = self.block()
        close.end()
        if self.at < len(self.lines):
            raise self.lines[self.at].fail("nothing after the kernel")
        return kernel

    def tensor_map(self, c: _Cursor) -> TensorMap | None:
        if not (match := c.maybe(rf"map ({_INT})")):
            return None
        axes, box = (self.numbers(c, word) for word in ("axes", "box"))
        swizzle = c.maybe(rf"swizzle ({_INT})")
        im2col = None
        if c.maybe(r"(?=lower )"):
            im2col = Im2col(*[self.numbers(c, word) for word in Im2col._fields])
        nan_fill = bool(c.maybe("nan"))
        swizzled = int(swizzle[1]) if swizzle else 0
        return TensorMap(int(match[1]), axes, box, swizzled, im2col=im2col, nan_fill=nan_fill)

    def numbers(self, c: _Cursor, word: str) -> tuple[int, ...]:
        return tuple(map(int, c.take(rf"{word}((?: -?{_INT})+)", f"`{word}` and numbers")[1].split()))

    def block(self) -> tuple[Block, _Cursor]:
        """Nodes up to a `}`, and the rest of that line."""
        block = Block()
        self.depth += 1
        if self.depth > MAX_NESTING:
            number = self.lines[self.at - 1].number
            raise CompileError(f"line {number}: blocks nest deeper than {MAX_NESTING}")
        while True:
            c = self.next("a statement or `}`")
            if c.maybe(r"\}"):
                self.depth -= 1
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
            c.take(mark, f"`{mark}`")
            bounds.append(self.scalar(c, index.type.dtype))
        start, stop, step = bounds
        loc = self.open(c)
        body, close = self.block()
        close.end()
        return For(index, start, stop, step, body, loc)

    def while_(self, c: _Cursor) -> While:
        loc = self.open(c)
        test, c = self.block()
        c.take("do", "`do`")
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
        c.take(r"\{", "`{`")
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
            c.take("=", "`=` or `<-`")
        instr = self.instr(c)
        operands = self.operands(c, instr)
        return Op(instr, tuple(results), operands, guard, negated, self.loc(c))

    def copy(self, c: _Cursor, target: Value) -> Assign:
        sources: list[Value | Const | Part] = []
        while not sources or c.maybe(","):
            source = self.source(c, target.type.dtype)
            if isinstance(source, Address):
                raise c.fail("a value or a constant before")
            sources.append(source)
        return Assign(target, tuple(sources), self.loc(c))

    def instr(self, c: _Cursor) -> Instruction:
        mnemonic = c.take(r"([A-Za-z][^\s]*)", "an instruction")[1]
        try:
            return self.lookup(mnemonic)
        except UnknownInstruction as error:
            raise UnknownInstruction(f"line {c.number}: {error.message}") from None

    def operands(self, c: _Cursor, instr: Instruction) -> tuple[Source, ...]:
        operands: list[Source] = []
        while not c.maybe(r"(?=$|#)"):
            if operands:
                c.take(",", "`,` or the end of the line")
            place = len(operands)
            wanted = instr.operands[place].dtype if place < len(instr.operands) else pred
            operands.append(self.source(c, wanted))
        return tuple(operands)

    def loc(self, c: _Cursor) -> Loc | None:
        mark = c.maybe(rf"#({_INT})")
        c.end()
        if mark is None:
            return None
        if int(mark[1]) not in self.locs:
            raise CompileError(f"line {c.number}: the text has no line `loc {mark[1]}`")
        return self.locs[int(mark[1])]

    def read_loc(self, c: _Cursor) -> None:
        number = int(c.take(rf"loc ({_INT})", "a number")[1])
        file, line, column, end = c.take(
            rf"({_STRING}):({_INT}):({_INT})-({_INT})", '`"file":line:column-end`'
        ).groups()
        function = _string(c, c.take(_STRING, "the function's name")[0].strip())
        caller = c.maybe(rf"from ({_INT})")
        c.end()
        if caller and int(caller[1]) not in self.locs:
            raise CompileError(f"line {c.number}: loc {caller[1]} has to come before {number}")
        called_from = self.locs[int(caller[1])] if caller else None
        self.locs[number] = Loc(_string(c, file), int(line), int(column), int(end), function, called_from)

    # Values.

    def value(self, c: _Cursor) -> Value:
        value, index = self.part(c)
        if index is not None:
            raise c.fail(f"a whole value, not register {index} of one, before")
        return value

    def part(self, c: _Cursor) -> tuple[Value, int | None]:
        """A value, with its type if it is new, and the selected register."""
        match = c.take(rf"%({_INT})(?:\.({_INT}))?", "a value such as `%5`")
        number, index = int(match[1]), match[2] and int(match[2])
        kind = c.maybe(_TYPE)
        known = self.values.get(number)
        if kind is not None:
            type_of_value = Type(self.dtype(c, kind[1]), int(kind[2] or 1), kind[3])
            if known is not None and known.type != type_of_value:
                raise CompileError(f"line {c.number}: %{number} is {known.type}, not {type_of_value}")
            known = self.values.setdefault(number, Value(number, type_of_value))
        if known is None:
            raise CompileError(f"line {c.number}: the type of %{number} is not known yet")
        return known, index  # type: ignore[return-value]

    def source(self, c: _Cursor, wanted: DType) -> Source:
        if c.maybe("(?=%)"):
            value, index = self.part(c)
            return value if index is None else Part(value, index)
        if c.maybe(r"\["):
            base = self.scalar(c, wanted)
            offset = c.maybe(rf"([+-]{_INT})")
            c.take(r"\]", "`]`")
            return Address(base, int(offset[1]) if offset else 0)
        return self.constant(c, wanted)

    def scalar(self, c: _Cursor, wanted: DType) -> Value | Const:
        return self.value(c) if c.maybe("(?=%)") else self.constant(c, wanted)

    def constant(self, c: _Cursor, wanted: DType) -> Const:
        text = c.take(_NUMBER, "a value, a constant or an address")[1]
        kind = c.maybe(r":(\w+)")
        dtype = self.dtype(c, kind[1]) if kind else wanted
        if text in ("true", "false"):
            return Const(text == "true", dtype)
        return Const(int(text) if re.fullmatch(r"-?\d+", text) else float(text), dtype)

    def dtype(self, c: _Cursor, name: str) -> DType:
        if name not in ALL:
            raise CompileError(f"line {c.number}: no type is called {name!r}; {listing(ALL)}")
        return ALL[name]
