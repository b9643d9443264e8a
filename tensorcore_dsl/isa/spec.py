"""The data model of the table: text, operands, layouts, targets and semantics of instructions.

An `Instruction` is one PTX instruction with all its modifiers fixed; its mnemonic is its key. A
`Row` declares an instruction family: a mnemonic with `{axes}`, the operands, and the values of each
axis. Rows are expanded when an instruction of their opcode is first looked up.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import Requires
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import OperandError, public
from tensorcore_dsl.isa.access import Access, effects_of, parse_accesses
from tensorcore_dsl.isa.effects import PURE, Effect
from tensorcore_dsl.layout import Layout, html
from tensorcore_dsl.tracing import emitter
from tensorcore_dsl.viz.html import html_table


@dataclass(frozen=True)
class Operand:
    """One operand of an instruction.

    Attributes
    ----------
    name : str
        As in the manual: "a", "d".
    dtype : dtype
        Of a register; of an element, if the operand is a fragment.
    registers : int
        Of each thread.
    kind : str
        "reg" (registers), "imm" (a constant in the text) or "addr" (`[base+offset]`; `dtype` is the
        type of the base register).
    layout : Layout or None
        Of a fragment: which thread holds which element.
    values : tuple of int or None
        Allowed values of an immediate.
    drawing : Layout or None
        Of metadata and block scales: what their bits belong to, for all values of the selectors.
    """

    name: str
    dtype: DType
    registers: int = 1
    kind: str = "reg"
    layout: Layout | None = None
    values: tuple[int, ...] | None = None  # allowed values of an immediate
    drawing: Layout | None = field(default=None, compare=False)

    @property
    def is_fragment(self) -> bool:
        return self.layout is not None

    @property
    def is_descriptor(self) -> bool:
        """True if it is a matrix descriptor, one 64-bit value for a warpgroup."""
        return self.name.startswith("desc") and self.register_bits == 64

    @property
    def register_bits(self) -> int:
        """Width of each register."""
        return self.dtype.register_bits if self.layout is None else self.dtype.fragment_register_bits

    @property
    def type_name(self) -> str:
        """The operand's type in messages and in the IR's text."""
        base = self.dtype.name if self.registers == 1 else f"{self.dtype.name}x{self.registers}"
        return f"{base}:{self.layout.name}" if self.layout else base

    def zeros(self) -> Any:
        """A fragment of this operand filled with zeros, in a kernel.

        Returns
        -------
        RegisterGroup
            Of its layout.

        Raises
        ------
        OperandError
            Outside of a kernel.
        """
        return emitter().zeros(self)

    def __str__(self) -> str:
        drawn = self.layout or self.drawing
        return str(drawn) if drawn else f"{self.name}: {self.type_name}"

    def _repr_html_(self) -> str:
        drawn = self.layout or self.drawing
        return html(drawn) if drawn else f"<code>{escape(str(self))}</code>"

    def __getstate__(self) -> dict[str, Any]:
        """All but the drawing, whose layout no name of the table finds again."""
        return {name: value for name, value in vars(self).items() if name != "drawing"}

    def plot(self, path: str | None = None) -> Any:
        """Draw the layout with matplotlib; save the figure if `path` is given."""
        from tensorcore_dsl.viz.plot import plot_layout

        drawn = self.layout or self.drawing
        if drawn is None:
            raise OperandError(f"operand {self.name} has no layout to draw")
        return plot_layout(drawn, path)


Execute = Callable[..., Any]


@dataclass(frozen=True)
class MmaOrdering:
    """Names of the instructions that order an asynchronous matrix product, for messages.

    late_inputs: register operands that the product reads until its group is waited for.
    """

    fence: str
    commit: str
    wait: str
    late_inputs: tuple[str, ...]


@cache
def _opcode(mnemonic: str) -> str:
    return mnemonic.split(".", 1)[0]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction of the table; called inside a kernel, it emits itself.

    Its operands are attributes too: `mma.a`, `mma.d`.

    Attributes
    ----------
    mnemonic : str
        The text of the table; `ptx` is that of PTX.
    results, operands : tuple of Operand
        Operands in the order of PTX.
    requires : Requires
        The targets that have it.
    version : tuple of int
        The first version of PTX.
    section : str
        Of the PTX manual.
    accesses : tuple of Access
        What happens at its addresses, in the order of the operands.
    """

    mnemonic: str
    results: tuple[Operand, ...]
    operands: tuple[Operand, ...]
    requires: Requires
    version: tuple[int, int]
    section: str
    execute: Execute = field(repr=False)
    effects: Effect = PURE
    accesses: tuple[Access, ...] = ()  # accesses at the addresses, in the order of the operands
    template: str = ""
    tied: str | None = None  # the operand that should share the result's registers
    params: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    ordering: MmaOrdering | None = None  # set for an asynchronous matrix product

    @property
    def ptx(self) -> str:
        """The PTX text; a few instructions share theirs and have a longer mnemonic."""
        return str(self.params.get("ptx", self.mnemonic))

    @property
    def opcode(self) -> str:
        return _opcode(self.mnemonic)

    @property
    def sides(self) -> tuple[Operand, ...]:
        """Results, then operands."""
        return (*self.results, *self.operands)

    @property
    def threads(self) -> int:
        """Threads that execute it together: a warp or a warpgroup."""
        layouts = [o.layout.threads for o in self.sides if o.layout is not None]
        return max(layouts, default=128 if Effect.WGMMA in self.effects else 32)

    @property
    def space(self) -> str:
        """State space of the first address, as `Access.space`; "" without addresses."""
        return self.accesses[0].space if self.accesses else ""

    def in_registers(self, operand: Operand) -> str:
        """Mnemonic of the variant that takes a descriptor operand from registers; "" for none."""
        return f"{self.mnemonic}.registers" if operand.name == "desc_a" else ""

    @property
    def lines(self) -> tuple[int, int, int] | None:
        """Describe the matrix that wmma.load or wmma.store moves; None for other instructions.

        It has a number of lines, the bytes of a line, and the elements between lines if no operand says.
        """
        layout = next((o.layout for o in self.sides if o.name == "r"), None)
        if "order" not in self.params or layout is None:
            return None
        by_row = self.params["order"] == "row"
        lines, length = (layout.rows, layout.cols)[:: 1 if by_row else -1]
        return lines, length * layout.dtype.storage_bits // 8, length

    @property
    def summary(self) -> str:
        """The words of its name that tell what it does, for messages."""
        words = self.mnemonic.split(".")
        return ".".join(words[: 4 if "tensor" in words[:5] else 3 if words[0] == "cp" else 2])

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(m, n, k) of a matrix product."""
        match = re.search(r"m(\d+)n(\d+)k(\d+)", self.mnemonic)
        return (int(match[1]), int(match[2]), int(match[3])) if match else None

    def operand(self, name: str) -> Operand:
        for op in self.sides:
            if op.name == name:
                return op
        raise AttributeError(f"{self.mnemonic} has no operand {name!r}")

    if not TYPE_CHECKING:  # checkers know the operands of each namespace from _typing.pyi

        def __getattr__(self, name: str) -> Operand:
            if name.startswith("_"):
                raise AttributeError(name)
            return self.operand(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(o.name for o in self.sides)]

    @public
    def __call__(self, *operands: Any, **options: Any) -> Any:
        return emitter().emit(self, operands, options)

    def __str__(self) -> str:
        return self.mnemonic

    def _repr_html_(self) -> str:
        """Its text, targets, and the layouts of its fragments."""
        layouts = dict.fromkeys(filter(None, (o.layout or o.drawing for o in self.sides)))
        drawn = "".join(f"<details><summary>{each.name}</summary>{html(each)}</details>" for each in layouts)
        rows = [(o.name, o.type_name) for o in self.sides]
        return html_table(f"{self.ptx}: {self.requires}", ["operand", "type"], rows) + drawn

    def __repr__(self) -> str:
        return f"<{self.mnemonic}>"

    @property
    def signature(self) -> str:
        """`d:f32 = a:f32, b:f32`."""
        left = ", ".join(f"{o.name}:{o.type_name}" for o in self.results)
        right = ", ".join(f"{o.name}:{o.type_name}" for o in self.operands)
        return f"{left} = {right}" if left else right

    def text(self, results: Sequence[str], operands: Sequence[str]) -> str:
        """The PTX statement without guard and semicolon."""
        names = [o.name for o in self.sides]
        if self.template:
            bound = dict(zip(names, (*results, *operands), strict=True))
            body = self.template.format(**bound)
            return body[1:] if body.startswith("!") else f"{self.mnemonic} {body}".rstrip()
        return f"{self.mnemonic} {', '.join((*results, *operands))}".rstrip()


@dataclass(frozen=True)
class Row:
    """An instruction family.

    `mnemonic` and `signature` may contain axes in braces; `axes` lists the values of each axis as a
    tuple of strings, or as one string with blanks between. `-` (`""` in a tuple) is an absent
    modifier; other values include their dot. An axis `s_d` binds `s` and `d` together: its values
    are `u16/u32 u32/u64`. `where` drops combinations that do not exist.

    In the signature `d:f32 = a:f32*4, n:#u32(1|2), p:[u64]`, `*4` is a vector of four registers,
    `#` an immediate with its allowed values, and brackets an address. `template` is the text of the
    operands where it differs from the plain list; with a leading `!` it is the whole statement, for
    mnemonics with several variants (`mov.b32`). `access` says what happens at the addresses
    (`Access`): a row with addresses, or with loads or stores among its effects, must say it.
    """

    mnemonic: str
    signature: str
    axes: Mapping[str, str | Iterable[str]]
    requires: str
    version: tuple[int, int]
    section: str
    execute: Execute
    effects: Effect = PURE
    access: str = ""
    template: str = ""
    where: Callable[[Mapping[str, str]], bool] = lambda axes: True
    note: str = ""
    tied: str | None = None

    @property
    def opcode(self) -> str:
        return re.split(r"[.{]", self.mnemonic, maxsplit=1)[0]

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of the family, in the order of the axes."""
        names = {name for key in self.axes for name in key.split("_")}
        clash = names & set(re.findall(r"(\w+):", self.signature)) if self.template else set()
        assert not clash, f"{self.mnemonic}: {clash} name both an axis and an operand"
        for combination in itertools.product(*map(_bindings, self.axes, self.axes.values())):
            axes = dict(itertools.chain.from_iterable(combination))
            if self.where(axes):
                yield self._instruction(axes)

    def _instruction(self, axes: dict[str, str]) -> Instruction:
        left, _, right = self.signature.format_map(axes).rpartition("=")
        operands, accesses = parse_operands(right), parse_accesses(self.access.format_map(axes))
        silent = {o.name for o in operands if o.kind == "addr"} - {a.operand for a in accesses}
        moves = not accesses and len(operands) > 1 and self.effects & (Effect.LOAD | Effect.STORE)
        assert not silent and not moves, f"{self.mnemonic}: access= does not say what it accesses"
        return Instruction(
            mnemonic=self.mnemonic.format_map(axes),
            results=parse_operands(left),
            operands=operands,
            requires=Requires(self.requires),
            version=self.version,
            section=self.section,
            execute=self.execute,
            accesses=accesses,
            effects=self.effects | effects_of(accesses),
            template=_fill(self.template, axes),
            tied=self.tied,
            params=axes,
            note=self.note,
        )


def row(
    mnemonic: str,
    signature: str,
    section: str,
    execute: Execute,
    *,
    requires: str = "20",
    ptx: str = "1.0",
    **more: Any,
) -> Row:
    """A `Row` on one line of a table. Keywords that are no fields of `Row` are axes."""
    major, minor = ptx.split(".")
    fields = {name: value for name, value in more.items() if name in Row.__dataclass_fields__}
    axes = {name: value for name, value in more.items() if name not in fields}
    return Row(mnemonic, signature, axes, requires, (int(major), int(minor)), section, execute, **fields)


def _bindings(name: str, values: str | Iterable[str]) -> list[tuple[tuple[str, str], ...]]:
    """The axis names and values that each entry binds: `s_d` with `u16/u32` binds s and d."""
    names = name.split("_")
    if isinstance(values, str):
        values = ["" if v == "-" else v for v in values.split()]
    return [tuple(zip(names, v.split("/"), strict=True)) for v in values]


def _fill(template: str, axes: Mapping[str, str]) -> str:
    """A template with its axes replaced; operands stay in braces."""
    for name, value in axes.items():
        template = template.replace("{" + name + "}", value)
    return template


@cache
def parse_operands(text: str) -> tuple[Operand, ...]:
    return tuple(parse_operand(part) for part in text.split(",") if part.strip())


@cache
def parse_operand(text: str) -> Operand:
    """`d:f32*4`, `n:#u32`, `size:#u32(4|8|16)`, `p:[u64]`."""
    match = re.fullmatch(r"\s*(\w+):(#|\[)?(\w+?)(?:\*(\d+))?\]?(?:\(([\d|]+)\))?\s*", text)
    assert match, f"bad operand {text!r}"
    name, mark, dtype, count, values = match.groups()
    kind = {"#": "imm", "[": "addr", None: "reg"}[mark]
    allowed = tuple(int(v) for v in values.split("|")) if values else None
    return Operand(name, dtypes.named(dtype), int(count or 1), kind, None, allowed)
