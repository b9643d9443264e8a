"""Lookup in the table: `instruction(text)` and `instructions(opcode)`.

The instructions of an opcode are created at the first lookup of that opcode, and cached.
"""

from __future__ import annotations

import copyreg
import difflib
import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from operator import eq
from pickle import PicklingError
from types import MappingProxyType
from typing import Any, Protocol

from tensorcore_dsl.dtypes import ALL
from tensorcore_dsl.errors import UnknownInstruction, listing
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.layout import Layout

from tensorcore_dsl.isa import (  # isort: skip
    barrier, block_scale, bounds, bulk, convert, generic, matrix, memory, mma, multimem, printing, scalar, sparse, special,
    tensormap, warp, wgmma, wmma,
)  # fmt: skip


class Family(Protocol):
    """A line of the table: a `Row`, or a family of matrix products."""

    @property
    def opcode(self) -> str: ...

    def instructions(self) -> Iterator[Instruction]: ...


_MODULES = (
    scalar,
    convert,
    special,
    warp,
    generic,
    memory,
    barrier,
    bulk,
    tensormap,
    multimem,
    matrix,
    mma,
    sparse,
    block_scale,
    wgmma,
    wmma,
)


# Instructions outside the table. They refer to strings of the kernel, or call the system.
_MADE = {"vprintf": printing.instruction, "check": bounds.instruction, "call": printing.system_function}


def _rows() -> dict[str, list[Family]]:
    rows: dict[str, list[Family]] = {}
    for module in _MODULES:
        for row in module.ROWS:
            rows.setdefault(row.opcode, []).append(row)
    return rows


_ROWS = _rows()


def opcodes() -> tuple[str, ...]:
    """Every opcode of the table: `add`, `ld`, `mma`, ..."""
    return tuple(_ROWS)


@cache
def _family(opcode: str) -> MappingProxyType[str, Instruction]:
    family: dict[str, Instruction] = {}
    for row in _ROWS.get(opcode, ()):
        for instr in row.instructions():
            if instr.mnemonic in family:
                raise AssertionError(f"two rows of the table make {instr.mnemonic}")
            family[instr.mnemonic] = instr
    return MappingProxyType(family)


def instructions(opcode: str | None = None) -> Iterator[Instruction]:
    """All instructions of `opcode`, or of the whole table."""
    for name in (opcode,) if opcode is not None else _ROWS:
        yield from _family(name).values()


def instruction(mnemonic: str) -> Instruction:
    """The instruction with this mnemonic.

    Parameters
    ----------
    mnemonic : str
        The text of PTX without operands, for example "add.rn.f32". Modifiers other than element
        types and layouts may have any order; `.shared` and `.shared::cta` are the same.

    Returns
    -------
    Instruction
        With operands, layouts, the least target and PTX version, and the section of the manual.
        Inside a kernel, calling it emits it.

    Raises
    ------
    UnknownInstruction
        No such text in the table; the error names what is near.

    Examples
    --------
    >>> add = tc.instruction("add.rn.f32")
    >>> add.section, [operand.name for operand in add.operands]
    ('9.7.3.3', ['a', 'b'])
    """
    text = mnemonic.strip().rstrip(";")
    constructor = _MADE.get(text.split(".", 1)[0])
    if constructor is not None:
        return constructor(text)
    result = _family(text.split(".", 1)[0]).get(text) or _in_other_words(text)
    if result is None:
        raise UnknownInstruction(_explain(text))
    return result


# Modifiers whose order has a meaning: element types and layouts.
_ORDERED = re.compile(r"(?:b|bf|e|f|s|tf|u|ue)\d\w*|pred|row|col")
# How many modifiers belong to the name of an opcode, or have a fixed order.
_NAMED_BY = {"barrier": 2, "cp": 3, "createpolicy": 3, "fence": 2, "mbarrier": 2, "wgmma": 1, "wmma": 1}


def _in_other_words(text: str) -> Instruction | None:
    """Return the instruction whose modifiers `text` has in another order, which ptxas accepts."""
    known = _by_modifiers(text.split(".", 1)[0])
    short = text.replace(".shared::cta", ".shared")
    spellings = text, short, short.replace(".shared.", ".shared::cta.")
    return next(filter(None, (known.get(modifiers(spelling)) for spelling in spellings)), None)


@cache
def _by_modifiers(opcode: str) -> dict[tuple[str, ...], Instruction | None]:
    """Return the instructions of an opcode by `modifiers`; None for ambiguous modifiers."""
    by_modifiers: dict[tuple[str, ...], Instruction | None] = {}
    for instr in _family(opcode).values():
        key = modifiers(instr.mnemonic)
        by_modifiers[key] = None if key in by_modifiers else instr
    return by_modifiers


def modifiers(text: str) -> tuple[str, ...]:
    """The words that belong to the opcode, the modifiers with a fixed order, and the others."""
    opcode, *words = text.split(".")
    named = _NAMED_BY.get(opcode, 0)
    fixed = [word for word in words[named:] if _ORDERED.fullmatch(word)]
    return (*words[:named], *fixed, *sorted(w for w in words[named:] if not _ORDERED.fullmatch(w)))


# Opcodes of the manual that the table lacks.
_ABSENT = {
    "tcgen05": "tensor memory is not supported",
    "tex|tld4|txq|istypep|su(ld|st|red|q)": "textures and surfaces are not supported",
    "v(add|sub|absdiff|min|max|avrg|set)[24]?|vsh[lr]|vmad": "video instructions are not supported",
    "alloca|stack(save|restore)": "memory on the stack is not supported",
    "clusterlaunchcontrol": "cluster launch control is not supported",
    "pmevent": "performance events are not supported",
}


def _explain(text: str) -> str:
    """Error text for an unknown mnemonic: the wrong part, and the allowed parts."""
    opcode, *modifiers = text.split(".")
    family = _family(opcode)
    if not family:
        for pattern, topic in _ABSENT.items():
            if re.fullmatch(pattern, opcode):
                return f"the table has no instruction {opcode!r}: {topic}"
        near = difflib.get_close_matches(opcode, _ROWS, n=6, cutoff=0.5)
        hint = f"; nearest: {listing(near)}" if near else ""
        return f"no instruction is called {opcode!r}{hint}; the table has {listing(_ROWS)}"
    aligned = _in_other_words(f"{text}.aligned")
    if aligned is not None:  # PTX 6.0 to 6.2 had wmma without it, and so have examples of the manual
        return f"no instruction {text!r}: .aligned is missing; write {aligned.ptx}"
    known = [tuple(name.split(".")[1:]) for name in family]
    words = tuple(modifiers)
    for spelling in (words, tuple("shared" if m == "shared::cta" else m for m in words)):
        repairs = [*_replacements(spelling, known), *_additions(spelling, known)]
        if repairs:
            return f"no instruction {text!r}: " + "; or ".join(dict.fromkeys(repairs))
    prefix, tails = _continuations(words, known)
    if prefix and len(tails) <= MAX_TAILS:
        return f"no instruction {text!r}: after {opcode}.{'.'.join(prefix)} may come {listing(tails)}"
    near = difflib.get_close_matches(text, list(family), n=6, cutoff=0.0)
    return f"no instruction {text!r}; the nearest of {len(family)} are {listing(near)}"


# -- pickling: instructions and layouts are found by name, since they hold functions -------------


def _reduced_instruction(instr: Instruction) -> Any:
    if instruction(instr.mnemonic) is not instr:
        raise PicklingError(f"{instr.mnemonic} is not an instruction of the table")
    return instruction, (instr.mnemonic,)


def _reduced_layout(layout: Layout) -> Any:
    opcode = layout.name.partition(".")[0]
    key = _layouts(opcode).get(layout.name)
    if key is None or _layout_at(*key) != layout:
        raise PicklingError(f"no instruction of the table has the layout {layout.name}")
    return _layout_at, key


@cache
def _layouts(opcode: str) -> dict[str, tuple[str, str]]:
    """An instruction and an operand for the name of each layout of the opcode."""
    return {
        operand.layout.name: (instr.mnemonic, operand.name)
        for instr in instructions(opcode)
        for operand in instr.sides
        if operand.layout is not None
    }


def _layout_at(mnemonic: str, operand: str) -> Layout | None:
    return instruction(mnemonic).operand(operand).layout


copyreg.pickle(Instruction, _reduced_instruction)
copyreg.pickle(Layout, _reduced_layout)


MAX_TAILS = 60  # a message shows the first of them


def _continuations(words: tuple[str, ...], known: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[str]]:
    """The longest known prefix of modifiers (without element types), and all its continuations."""
    length = max(sum(takewhile(bool, map(eq, words, k))) for k in known)
    while length and words[length - 1] in ALL:
        length -= 1
    prefix = words[:length]
    tails = ("." + ".".join(k[length:]) for k in known if k[:length] == prefix)
    return prefix, list(dict.fromkeys(tails))


def _replacements(words: tuple[str, ...], known: list[tuple[str, ...]]) -> list[str]:
    """Corrections that replace one modifier."""
    corrections = []
    for i, wrong in enumerate(words):
        other_words = words[:i] + words[i + 1 :]
        allowed = [k[i] for k in known if len(k) == len(words) and k[:i] + k[i + 1 :] == other_words]
        if allowed:
            corrections.append(f".{wrong} is not allowed; in its place: {_dotted(allowed)}")
    return corrections


def _additions(words: tuple[str, ...], known: list[tuple[str, ...]]) -> list[str]:
    """Corrections that remove or insert one modifier."""
    corrections = []
    for i, extra in enumerate(words):
        if words[:i] + words[i + 1 :] in known:
            corrections.append(f".{extra} is one too many")
    for i in range(len(words) + 1):
        missing = [
            k[i] for k in known if len(k) == len(words) + 1 and k[:i] == words[:i] and k[i + 1 :] == words[i:]
        ]
        if missing:
            where = f"after .{words[i - 1]}" if i else "after the opcode"
            corrections.append(f"{where} one of {_dotted(missing)} is missing")
    return corrections


def _dotted(names: list[str]) -> str:
    return listing(f".{name}" for name in dict.fromkeys(names))
