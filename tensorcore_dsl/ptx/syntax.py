"""PTX text as functions of statements, without what instructions mean.

Operands are trees of tuples: ("name", text), ("number", text), ("group", *items) for `{a, b}`,
("address", *items) for `[a, {b, c}]`, ("sum", item, offset) for `a+4`, ("pair", item, item) for
`p|q`, ("not", item) for `!p`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NoReturn

from tensorcore_dsl.errors import Loc, UnsupportedSyntax

Item = tuple[Any, ...]

_TOKEN = re.compile(
    r"""(?P<space>(?:\s+|//[^\n]*|/\*.*?\*/)+)|(?P<string>"[^"]*")
    |(?P<name>[A-Za-z_$%.][\w$.]*(?:::[\w$.]+)*)|(?P<number>0[xX][0-9A-Fa-f]+U?|0[fFdD][0-9A-Fa-f]+|\d+(?:\.\d+)?U?)
    |(?P<sign>[{}()\[\],;:+\-*=@!|<>])""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"\.[^.]*")  # `.reg.b32` is two
_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg"}
_LINKING = {".visible", ".extern", ".weak", ".common"}


@dataclass(frozen=True)
class Token:
    text: str
    line: int


@dataclass(frozen=True)
class Variable:
    """A variable of a state space, or a parameter.

    size: bytes, 0 for an array without a size. initial: its elements, as PTX writes them; those
    behind them are 0.
    """

    name: str
    space: str
    type: str
    size: int
    align: int
    external: bool = False
    array: bool = False
    initial: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Statement:
    """An instruction. guard: a predicate, and whether it is negated."""

    opcode: str
    operands: tuple[Item, ...]
    guard: tuple[str, bool] | None
    loc: Loc


@dataclass(frozen=True)
class Label:
    name: str
    loc: Loc


@dataclass
class Function:
    """A kernel, or a function. results: of a function; registers: the type of each; directives: `.maxntid`
    and others, with their numbers; declared: has it no body?"""

    name: str
    loc: Loc
    results: list[Variable] = field(default_factory=list)
    params: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Statement | Label] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    declared: bool = False


@dataclass
class Text:
    """The declarations of a file of PTX. functions: by name, without the kernels."""

    version: str = ""
    target: str = ""
    kernels: list[Function] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)


def number_of(text: str) -> int:
    """The integer of a token, or the bits of its floating-point number."""
    return int(text[2:], 16) if text[:2].lower() in ("0f", "0d") else int(text.rstrip("U"), 0)


def renamed(item: Any, names: Mapping[str, str]) -> Any:
    """The tree of an operand with other names in it."""
    if not item or not isinstance(item, tuple):
        return item
    if item[0] == "name":
        return "name", names.get(item[1], item[1])
    return tuple(renamed(part, names) for part in item)


def with_names(node: Statement | Label, names: Mapping[str, str]) -> Statement | Label:
    """A statement or a label with other names in it."""
    if isinstance(node, Label):
        return replace(node, name=names.get(node.name, node.name))
    guard = node.guard and (names.get(node.guard[0], node.guard[0]), node.guard[1])
    return replace(node, operands=renamed(node.operands, names), guard=guard)


def parse(text: str, filename: str) -> Text:
    """The contents of a file of PTX."""
    return _Parser(text, filename).module()


class _Parser:
    """files: of `.file`, by number; source: the place that `.loc` named last. names: what the current inner
    block declares, and the names that stand for it; None outside of inner blocks."""

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.files: dict[str, str] = {}
        self.source: Loc | None = None
        self.names: dict[str, str] | None = None
        self.numbers = count()
        self.at = 0
        self.tokens: list[Token] = []
        place, line = 0, 1
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                self.refuse(f"{text[place]!r} is no part of PTX", Loc(filename, line))
            if found.lastgroup != "space":
                texts = _DIRECTIVE.findall(found[0]) if found[0][0] == "." else [found[0]]
                self.tokens += [Token(text, line) for text in texts]
            line += found[0].count("\n")
            place = found.end()
        for at, token in enumerate(self.tokens[:-2]):  # the compiler writes some behind their uses
            if token.text == ".file":
                self.files[self.tokens[at + 1].text] = self.tokens[at + 2].text.strip('"')

    # -- tokens ------------------------------------------------------------------------------------

    def refuse(self, text: str, loc: Loc | None = None) -> NoReturn:
        raise UnsupportedSyntax(text, loc or self.here)

    @property
    def here(self) -> Loc:
        token = self.tokens[min(self.at, len(self.tokens) - 1)] if self.tokens else Token("", 1)
        return Loc(self.filename, token.line)

    @property
    def next(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        text = self.next
        if not text or (expected and text != expected):
            self.refuse(f"{expected!r} is expected here, not {text or 'the end of the file'!r}")
        self.at += 1
        return text

    def accepts(self, text: str) -> bool:
        found = self.next == text
        self.at += found
        return found

    def number(self) -> int:
        return number_of(self.take())

    def skip_braces(self) -> None:
        depth = 0
        while True:
            text = self.take()
            depth += (text == "{") - (text == "}")
            if depth == 0 and text == "}":
                return

    # -- declarations ------------------------------------------------------------------------------

    def module(self) -> Text:
        found = Text()
        while self.next:
            external = False
            while self.next in _LINKING:
                external |= self.take() == ".extern"
            word = self.next
            if word in (".version", ".target"):
                self.take()
                setattr(found, word[1:], self.take())
                while self.accepts(","):
                    self.take()
            elif word == ".address_size":
                self.take()
                self.number()
            elif word == ".file":
                self.file()
            elif word == ".section":
                self.take()
                self.take()
                self.skip_braces()
            elif word == ".entry":
                found.kernels.append(self.function())
            elif word == ".func":
                function = self.function()
                if not function.declared or function.name not in found.functions:
                    found.functions[function.name] = function
            elif word == ".alias":
                self.take()
                name = self.take()
                self.take(",")
                found.functions[name] = found.functions[self.take()]
                self.take(";")
            elif word in _SPACES:
                found.variables += self.variables(external)
            else:
                self.refuse(f"{word!r} outside of functions is not supported")
        return found

    def file(self) -> None:
        for _ in range(3):
            self.take()
        while self.accepts(","):
            self.take()

    def variables(self, external: bool = False) -> list[Variable]:
        """A declaration up to its semicolon."""
        space = self.take()[1:]
        found = [self.variable(space, external)]
        while True:
            if self.accepts("="):
                item = self.item()
                found[-1] = replace(found[-1], initial=item[1:] if item[0] == "group" else (item,))
            if not self.accepts(","):
                self.take(";")
                return found
            found.append(self.variable(space, external, found[0]))

    def variable(self, space: str, external: bool, like: Variable | None = None) -> Variable:
        """`[.align N] .type name[sizes]`; of a list, all but the first have the name alone."""
        align, kind, count = 0, "" if like is None else like.type, 1
        while self.next.startswith("."):
            word = self.take()
            if word == ".align":
                align = self.number()
            elif word == ".ptr":
                while self.next.startswith("."):
                    if self.take() == ".align":
                        self.number()
            elif word in (".v2", ".v4"):
                count *= int(word[2:])
            else:
                kind = word[1:]
        name, array = self.take(), False
        while self.accepts("["):
            array = True
            count *= 0 if self.next == "]" else self.number()
            self.take("]")
        width = 1 if kind == "pred" else int(re.sub(r"\D", "", kind) or "8") // 8
        return Variable(name, space, kind, count * width, align or width, external, array)

    def function(self) -> Function:
        entry = self.take() == ".entry"
        results = [] if entry else self.parameters()
        found = Function(self.take(), self.here, results, self.parameters())
        while self.next not in ("{", ";"):
            word, numbers = self.take(), []
            while self.next[:1].isdigit():
                numbers.append(self.number())
                self.accepts(",")
            found.directives[word] = tuple(numbers)
        found.declared = self.accepts(";")
        if not found.declared:
            self.take("{")
            self.block(found)
        return found

    def parameters(self) -> list[Variable]:
        """Those between parentheses, if there are any."""
        found = []
        if self.accepts("("):
            while not self.accepts(")"):
                space = self.take()[1:]
                found.append(self.variable(space, False))
                self.accepts(",")
        return found

    # -- statements --------------------------------------------------------------------------------

    def block(self, found: Function) -> None:
        """Statements up to the brace that closes them."""
        while not self.accepts("}"):
            self.in_block(found)

    def inner_block(self, found: Function) -> None:
        """A block in another one, whose registers, labels and variables get names of their own."""
        outer, self.names = self.names, dict[str, str]()
        first, start = len(found.body), len(found.variables)
        self.block(found)
        found.body[first:] = [with_names(node, self.names) for node in found.body[first:]]
        found.variables[start:] = [
            replace(v, name=self.names.get(v.name, v.name)) for v in found.variables[start:]
        ]
        self.names = outer

    def declared(self, name: str) -> str:
        """The name that a declaration gets: in an inner block, one that no other block has."""
        if self.names is None:
            return name
        return self.names.setdefault(name, f"{name}.{next(self.numbers)}")

    def in_block(self, found: Function) -> None:
        """One statement or declaration of a block."""
        word = self.next
        if word == "{":
            self.take()
            self.inner_block(found)
        elif word == ".reg":
            self.registers(found)
        elif word == ".loc":
            self.location()
        elif word == ".pragma":
            while self.take() != ";":
                pass
        elif word in _SPACES:
            own = self.variables()
            found.variables += own
            for variable in own:
                self.declared(variable.name)
        elif self.tokens[self.at + 1].text == ":":
            found.body.append(Label(self.next, self.here))
            self.declared(self.take())
            self.take(":")
        else:
            found.body.append(self.statement())

    def registers(self, found: Function) -> None:
        self.take(".reg")
        kind = self.take()[1:]
        while True:
            name = self.take()
            if self.accepts("<"):
                names = [f"{name}{i}" for i in range(self.number())]
                self.take(">")
            else:
                names = [name]
            for each in map(self.declared, names):
                if found.registers.setdefault(each, kind) != kind:
                    self.refuse(f"{each} is declared as .{kind} here, and as .{found.registers[each]} before")
            if not self.accepts(","):
                break
        self.take(";")

    def location(self) -> None:
        """`.loc file line column` with what follows on its line."""
        line = self.tokens[self.at].line
        self.take()
        file, row, column = self.take(), self.number(), self.number()
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.take()
        self.source = Loc(self.files.get(file, f"file {file}"), row, max(column - 1, 0))

    def statement(self) -> Statement:
        loc, guard = self.source or self.here, None
        if self.accepts("@"):
            negated = self.accepts("!")
            guard = self.take(), negated
        opcode, operands = self.take(), list[Item]()
        while not self.accepts(";"):
            operands.append(self.item())
            self.accepts(",")
        return Statement(opcode, tuple(operands), guard, loc)

    def item(self) -> Item:
        """The tree of one operand."""
        text = self.take()
        if text == "{":
            found: Item = ("group", *self.items("}"))
        elif text == "[":
            found = ("address", *self.items("]"))
        elif text == "(":
            found = ("list", *self.items(")"))
        elif text == "!":
            return ("not", self.item())
        elif text == "-":
            found = ("number", f"-{self.take()}")
        else:
            found = ("number" if text[0].isdigit() else "name", text)
        if self.accepts("+"):
            sign = "-" if self.accepts("-") else ""
            found = ("sum", found, number_of(sign + self.take()))
        elif self.next == "-" and found[0] == "name":
            self.take()
            found = ("sum", found, -self.number())
        if self.accepts("|"):
            found = ("pair", found, self.item())
        return found

    def items(self, end: str) -> tuple[Item, ...]:
        found = []
        while not self.accepts(end):
            found.append(self.item())
            self.accepts(",")
        return tuple(found)


def operands_of(text: str) -> tuple[Item, ...]:
    """The trees of the operands in a text."""
    return _Parser(f"{text};", "").statement().operands
