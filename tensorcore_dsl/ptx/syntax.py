"""Parse PTX text to functions and statements; instructions get no meaning yet.

Operands are trees of tuples: ("name", text), ("number", text), ("group", *items) for `{a, b}`,
("address", *items) for `[a, {b, c}]`, ("sum", item, offset) for `a+4`, ("pair", item, item) for
`p|q`, ("not", item) for `!p`, ("list", *items) for `(a, b)`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, NoReturn

from tensorcore_dsl.errors import Loc, TensorCoreError, UnsupportedSyntax

Item = tuple[Any, ...]

_TOKEN = re.compile(
    r"""(?P<space>(?:\s+|//[^\n]*|/\*.*?\*/)+)|(?P<string>"[^"]*")
    |(?P<name>[A-Za-z_$%.][\w$.]*(?:::[\w$.]+)*)|(?P<number>
    0[xX][0-9A-Fa-f]+U?|0[bB][01]+U?|0[fF][0-9A-Fa-f]{8}|0[dD][0-9A-Fa-f]{16}|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?U?)
    |(?P<sign>[{}()\[\],;:+\-*=@!|<>])""",
    re.VERBOSE | re.DOTALL,
)
_IMAGES = {"0f": (32, ">f"), "0d": (64, ">d")}  # bits of the literals with these prefixes
_DIRECTIVE = re.compile(r"\.[^.]*")  # `.reg.b32` is two directives.
_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg"}
LISTS = (".branchtargets", ".calltargets", ".callprototype")
_LINKING = {".visible", ".extern", ".weak", ".common"}
_DIRECTIVES = (
    ".maxnreg", ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".noreturn", ".abi_preserve",
    ".abi_preserve_control", ".reqnctapercluster", ".explicitcluster", ".maxclusterrank",
    ".blocksareclusters",
)  # fmt: skip


class Token(NamedTuple):
    text: str
    line: int


@dataclass(frozen=True)
class Variable:
    """A variable of a state space, or a parameter.

    Attributes
    ----------
    size : int
        Bytes; 0 for an array without a size.
    external, array : bool
        Declared as `.extern`; declared with brackets.
    initial : tuple of Item
        Initial values of the first elements. The rest are 0.
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
    """An instruction. guard: a predicate, and whether it is negated. ptx: its location in PTX, if `loc`
    is the location of a `.loc`.
    """

    opcode: str
    operands: tuple[Item, ...]
    guard: tuple[str, bool] | None
    loc: Loc
    ptx: Loc | None = None


@dataclass(frozen=True)
class Label:
    name: str
    loc: Loc


@dataclass
class Function:
    """A kernel or a device function.

    Attributes
    ----------
    results : list of Variable
        Return parameters; empty for a kernel.
    registers : dict
        The type of each register.
    directives : dict
        The numbers of `.maxntid` and similar directives.
    declared : bool
        The function has no body.
    """

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
    """The declarations of a PTX file. `functions` holds device functions by name."""

    version: str = ""
    target: str = ""
    target_loc: Loc | None = None
    kernels: list[Function] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)

    def address_of(self, function: str) -> int:
        """Return the number that stands for the address of a device function."""
        return 16 * (1 + list(self.functions).index(function))


def number_of(text: str, bits: int = 32) -> int:
    """Return the integer of a token, or the image of its floating-point number in 32 or 64 `bits`."""
    digits, kind = text.lstrip("-").rstrip("U"), text[:2].lower()
    if kind in ("0f", "0d") and bits == _IMAGES[kind][0]:
        return int(digits[2:], 16)
    if kind in ("0f", "0d") or is_decimal(text):
        value = (
            struct.unpack(_IMAGES[kind][1], bytes.fromhex(digits[2:])) if kind in _IMAGES else [float(text)]
        )
        return int.from_bytes(struct.pack(">d" if bits == 64 else ">f", *value))
    number = int(digits, 8 if digits.isdigit() and digits[0] == "0" else 0)
    return -number if text[0] == "-" else number


def is_decimal(text: str) -> bool:
    """Return whether a token is a floating-point number in decimal digits."""
    return text[:2].lower() not in ("0x", "0b", "0f", "0d") and bool({".", "e", "E"} & {*text})


def renamed(item: Any, names: Mapping[str, str]) -> Any:
    """Return an operand's tree with names replaced by `names`."""
    if not item or not isinstance(item, tuple):
        return item
    if item[0] == "name":
        return "name", names.get(item[1], item[1])
    return tuple(renamed(child, names) for child in item)


def with_names(node: Statement | Label, names: Mapping[str, str]) -> Statement | Label:
    """Return a statement or a label with names replaced by `names`."""
    if isinstance(node, Label):
        return replace(node, name=names.get(node.name, node.name))
    guard = node.guard and (names.get(node.guard[0], node.guard[0]), node.guard[1])
    return replace(node, operands=renamed(node.operands, names), guard=guard)


def parse(text: str, filename: str) -> Text:
    """Parse the text of a PTX file. Errors name `filename`."""
    return _Parser(text, filename).module()


class _Parser:
    """Recursive-descent parser over the tokens of a file.

    Attributes
    ----------
    files : dict
        File names of `.file`, by number.
    source : Loc or None
        Source line of the last `.loc`.
    names : dict or None
        Unique names of the declarations of the current inner block; None outside of inner blocks.
    """

    def __init__(self, text: str, filename: str) -> None:
        self.filename = filename
        self.files: dict[str, str] = {}
        self.source: Loc | None = None
        self.names: dict[str, str] | None = None
        self.numbers = count()
        self.at = 0
        self.tokens: list[Token] = []
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.refuse(f"{text[position]!r} is not part of PTX", Loc(filename, line))
            if match.lastgroup != "space":
                texts = _DIRECTIVE.findall(match[0]) if match[0][0] == "." else [match[0]]
                self.tokens += [Token(text, line) for text in texts]
            line += match[0].count("\n")
            position = match.end()
        for at, token in enumerate(self.tokens[:-2]):  # Some compilers write .file after its uses.
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

    @property
    def shown(self) -> str:
        return repr(self.next) if self.next else "the end of the file"

    def take(self, *expected: str) -> str:
        text = self.next
        if not text or (expected and text not in expected):
            what = " or ".join(map(repr, expected)) or "more"
            self.refuse(f"{what} is expected here, not {self.shown}")
        self.at += 1
        return text

    def accepts(self, text: str) -> bool:
        matches = self.next == text
        self.at += matches
        return matches

    def name(self) -> str:
        if not re.match(r"[A-Za-z_$%]", self.next):
            self.refuse(f"a name is expected here, not {self.shown}")
        return self.take()

    def number(self) -> int:
        if not self.next[:1].isdigit() or is_decimal(self.next):
            self.refuse(f"an integer is expected here, not {self.shown}")
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
        parsed = Text()
        while self.next:
            external = False
            while self.next in _LINKING:
                external |= self.take() == ".extern"
            word = self.next
            if word in (".version", ".target", ".address_size"):
                self.header(parsed)
            elif word == ".file":
                self.file()
            elif word == ".section":
                self.take()
                self.take()
                self.skip_braces()
            elif word == ".entry":
                parsed.kernels.append(self.function())
            elif word == ".func":
                function = self.function()
                if not function.declared or function.name not in parsed.functions:
                    parsed.functions[function.name] = function
            elif word == ".alias":
                self.take()
                name = self.take()
                self.take(",")
                parsed.functions[name] = parsed.functions[self.take()]
                self.take(";")
            elif word == ".pragma":
                self.skip_statement()
            elif word in _SPACES:
                parsed.variables += self.variables(external)
            else:
                self.refuse(
                    f"{word!r} outside of functions is not supported; .entry, .func and variables are"
                )
        if not parsed.version or not parsed.target:
            self.refuse("PTX starts with .version and .target, such as .version 8.0 and .target sm_90a")
        return parsed

    def header(self, parsed: Text) -> None:
        """Parse `.version`, `.target` or `.address_size`."""
        word, text = self.take(), self.next
        if word == ".target":
            parsed.target_loc = self.here
        if word == ".address_size" and text != "64":
            self.refuse(f".address_size {text} is not supported; 64 is")
        if word == ".version" and not re.fullmatch(r"\d+\.\d+", text):
            self.refuse(f".version {text} is not a version of PTX, such as 8.0")
        self.take()
        while self.accepts(","):
            self.take()
        if word != ".address_size":
            setattr(parsed, word[1:], text)

    def file(self) -> None:
        for _ in range(3):
            self.take()
        while self.accepts(","):
            self.take()

    def skip_statement(self) -> None:
        while self.take() != ";":
            pass

    def variables(self, external: bool = False) -> list[Variable]:
        """Parse a declaration up to its semicolon."""
        space = self.take()[1:]
        declared = [self.variable(space, external)]
        while True:
            if self.accepts("="):
                item = self.item()
                declared[-1] = replace(declared[-1], initial=item[1:] if item[0] == "group" else (item,))
            if not self.accepts(","):
                self.take(";")
                return declared
            declared.append(self.variable(space, external, declared[0]))

    def variable(self, space: str, external: bool, like: Variable | None = None) -> Variable:
        """Parse `[.align N] .type name[sizes]`. In a list, later names take the type of `like`."""
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
        name, array = self.name(), False
        while self.accepts("["):
            array = True
            count *= 0 if self.next == "]" else self.number()
            self.take("]")
        width = 1 if kind == "pred" else int(re.sub(r"\D", "", kind) or "8") // 8
        return Variable(name, space, kind, count * width, align or width, external, array)

    def function(self) -> Function:
        entry = self.take() == ".entry"
        results = [] if entry else self.parameters()
        function = Function(self.name(), self.here, results, self.parameters())
        while self.next not in ("{", ";"):
            if self.next == ".pragma":
                self.skip_statement()
                continue
            if self.next not in _DIRECTIVES:
                self.refuse(f"{self.next!r} is not a directive of a kernel: {', '.join(_DIRECTIVES)}")
            word, numbers = self.take(), []
            while self.next[:1].isdigit():
                numbers.append(self.number())
                self.accepts(",")
            function.directives[word] = tuple(numbers)
        function.declared = self.accepts(";")
        if not function.declared:
            self.take("{")
            self.block(function)
        return function

    def parameters(self) -> list[Variable]:
        """Parse a parameter list in parentheses; empty if there is none."""
        parameters = []
        if self.accepts("("):
            while not self.accepts(")"):
                space = self.take()[1:]
                parameters.append(self.variable(space, False))
                self.accepts(",")
        return parameters

    # -- statements --------------------------------------------------------------------------------

    def block(self, function: Function) -> None:
        """Parse statements up to the closing brace."""
        while not self.accepts("}"):
            self.in_block(function)

    def inner_block(self, function: Function) -> None:
        """Parse a nested block. Its registers, labels and variables get unique names."""
        outer, self.names = self.names, dict[str, str]()
        first, start = len(function.body), len(function.variables)
        self.block(function)
        function.body[first:] = [with_names(node, self.names) for node in function.body[first:]]
        function.variables[start:] = [
            replace(v, name=self.names.get(v.name, v.name)) for v in function.variables[start:]
        ]
        self.names = outer

    def declared(self, name: str) -> str:
        """Return the name for a declaration, which is unique in the function."""
        if self.names is None:
            return name
        return self.names.setdefault(name, f"{name}.{next(self.numbers)}")

    def in_block(self, function: Function) -> None:
        """Parse one statement or declaration of a block."""
        word = self.next
        if word == "{":
            self.take()
            self.inner_block(function)
        elif word == ".reg":
            self.registers(function)
        elif word == ".loc":
            self.location()
        elif word == ".pragma":
            self.skip_statement()
        elif word in _SPACES:
            variables = self.variables()
            function.variables += variables
            for variable in variables:
                self.declared(variable.name)
        elif any(token.text == ":" for token in self.tokens[self.at + 1 : self.at + 2]):
            function.body.append(Label(self.next, self.here))
            self.declared(self.take())
            self.take(":")
        else:
            function.body.append(self.statement())

    def registers(self, function: Function) -> None:
        self.take(".reg")
        kind = self.take()[1:]
        if self.next.startswith("."):
            self.refuse(f".reg .{kind} {self.next}: registers with several elements are not supported")
        while True:
            name = self.name()
            if self.accepts("<"):
                names = [f"{name}{i}" for i in range(self.number())]
                self.take(">")
            else:
                names = [name]
            for unique in map(self.declared, names):
                if function.registers.setdefault(unique, kind) != kind:
                    self.refuse(
                        f"{unique} is declared as .{kind} here, and as .{function.registers[unique]} before"
                    )
            if not self.accepts(","):
                break
        self.take(";")

    def location(self) -> None:
        """Parse `.loc file line column` and skip the rest of its line."""
        line = self.tokens[self.at].line
        self.take()
        file, row, column = self.take(), self.number(), self.number()
        while self.at < len(self.tokens) and self.tokens[self.at].line == line:
            self.take()
        self.source = Loc(self.files.get(file, f"file {file}"), row, max(column - 1, 0))

    def statement(self) -> Statement:
        loc, guard = self.source or self.here, None
        ptx = None if self.source is None else self.here
        if self.accepts("@"):
            negated = self.accepts("!")
            guard = self.take(), negated
        if self.next not in LISTS and not self.next[:1].isalpha():
            self.refuse(f"an instruction is expected here, not {self.shown}")
        opcode = self.take()
        if opcode == ".callprototype":
            self.skip_statement()
            return Statement(opcode, (), None, loc)
        return Statement(opcode, self.items(";"), guard, loc, ptx)

    def item(self) -> Item:
        """Parse one operand to its tree."""
        text = self.take()
        if text == "{":
            parsed: Item = ("group", *self.items("}"))
        elif text == "[":
            parsed = ("address", *self.items("]"))
        elif text == "(":
            parsed = ("list", *self.items(")"))
        elif text == "!":
            return ("not", self.item())
        elif text == "-" and self.next[:1].isdigit():
            parsed = ("number", f"-{self.take()}")
        elif re.match(r"[\w$%.\"]", text):
            parsed = ("number" if text[0].isdigit() else "name", text)
        else:
            self.at -= 1
            self.refuse(f"an operand is expected here, not {text!r}")
        if self.accepts("+"):
            sign = -1 if self.accepts("-") else 1
            parsed = ("sum", parsed, sign * self.number())
        elif self.next == "-" and parsed[0] == "name":
            self.take()
            parsed = ("sum", parsed, -self.number())
        if self.accepts("|"):
            parsed = ("pair", parsed, self.item())
        return parsed

    def items(self, end: str) -> tuple[Item, ...]:
        """Parse operands up to and with the token `end`."""
        parsed = list[Item]()
        while not self.accepts(end):
            parsed.append(self.item())
            if self.next != end:
                self.take(",", end)
        return tuple(parsed)


def text_of(item: Item) -> str:
    """Return the text of an operand."""
    kind, *parts = item
    if kind in ("name", "number"):
        return str(parts[0])
    texts = [text_of(part) if isinstance(part, tuple) else str(part) for part in parts]
    start, separator, end = {
        "group": ("{", ", ", "}"), "address": ("[", ", ", "]"), "sum": ("", "+", ""), "pair": ("", "|", ""),
        "not": ("!", "", ""), "list": ("(", ", ", ")"),
    }[kind]  # fmt: skip
    return start + separator.join(texts) + end


@contextmanager
def operands_checked(s: Statement) -> Iterator[None]:
    """Raise UnsupportedSyntax if the block takes operands that the statement lacks.

    Errors at the location of a `.loc` also name the location in PTX.
    """
    in_ptx = "" if s.ptx is None else f"\n  in PTX at {s.ptx}"
    try:
        yield
    except (IndexError, ValueError) as error:
        operands = ", ".join(map(text_of, s.operands)) or "none"
        raise UnsupportedSyntax(
            f"{s.opcode} does not take these operands: {operands}{in_ptx}", s.loc
        ) from error
    except TensorCoreError as error:
        if error.loc == s.loc:
            error.message += in_ptx
        raise


def operands_of(text: str) -> tuple[Item, ...]:
    """Parse the operands of a statement's text."""
    return _Parser(f"{text};", "").statement().operands
